"""How many heads can be spared, against the verdicts, closed testing by hand, and simulated sweeps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from bertsecrets.ablation.judging import MARGINS, judged_rows, spared_heads
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.rows import Spared, SparedAt
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import corrected_against_margin, judge, p_against_margin
from bertsecrets.api_results import DisabledHeads
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.present.disabling import spared_in_words
from bertsecrets.statistics.corrections import least_false
from bertsecrets.task_heads import METRICS

JUDGING = AblationSettings(resamples=100, permutations=100).judging()


def task(*metrics: str) -> Task:
    return Task(name="toy", metrics=metrics, texts=1, labels=("a", "b"))


def outcomes(label_N: np.ndarray, clean_N: np.ndarray, prediction_VN: np.ndarray, heads: int) -> Outcomes:
    def logits(prediction: np.ndarray) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.from_numpy(prediction).long(), 2).float()

    plan = Plan("uniform", len(prediction_VN) // heads, heads, tuple(every_head(len(prediction_VN) // heads, heads)))
    index_N = torch.arange(len(label_N))
    return Outcomes(plan, index_N, torch.from_numpy(label_N).float(), logits(clean_N), logits(prediction_VN.T.copy()))


def drawn(flips_V: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    label_N = generator.integers(0, 2, count)
    clean_N = np.where(generator.random(count) < 0.8, label_N, 1 - label_N)
    flipped_VN = generator.random((len(flips_V), count)) < flips_V[:, None]
    return label_N, clean_N, np.where(flipped_VN, 1 - clean_N, clean_N)


def curve(data: tuple[np.ndarray, ...], metric: str = "accuracy", **settings: Any) -> tuple[Spared, list[SparedAt]]:
    counts, *points = spared_heads(outcomes(*data, heads=4), task(metric), replace(JUDGING, **settings))
    assert (counts.metric, counts.mode) == (metric, "uniform")
    return counts, [point for point in points if isinstance(point, SparedAt)]


def spared(data: tuple[np.ndarray, ...], metric: str = "accuracy", **settings: Any) -> Spared:
    return curve(data, metric, **settings)[0]


def margin_of_no_change(metric: str, label_N: np.ndarray, clean_N: np.ndarray, margin: float) -> float:
    """The p-value of a loss of the margin of a head that changes no prediction."""
    if metric == "accuracy":
        return float((1 - margin) ** len(label_N))
    return float(p_against_margin(METRICS[metric], PairedPredictions(label_N, clean_N, clean_N[None]), margin)[0])


def test_without_a_margin_no_head_is_spared_and_all_else_is_the_same() -> None:
    """Needed heads, intervals, the bound on any head and the curve do not depend on the margin."""
    judging = AblationSettings.read("ablation", {"margin": None, "resamples": 100, "permutations": 100}).judging()
    label_N, clean_N, prediction_VN = drawn(np.array([0.0, 0.0, 0.02, 0.4]), 400, seed=1)
    paired = PairedPredictions(*(array.astype(float) for array in (label_N, clean_N, prediction_VN)))
    with_margin, without = (judge(METRICS["accuracy"], paired, each) for each in (JUDGING, judging))
    assert with_margin.verdict == ("dispensable", "dispensable", "inconclusive", "needed")
    assert without.verdict == ("inconclusive", "inconclusive", "inconclusive", "needed")
    assert np.isnan(without.p_margin).all()
    for name in ("low_simultaneous", "high_simultaneous", "p_needed"):
        np.testing.assert_array_equal(getattr(without, name), getattr(with_margin, name))
    counts, points = curve((label_N, clean_N, prediction_VN))
    unjudged, *same = spared_heads(outcomes(label_N, clean_N, prediction_VN, heads=4), task("accuracy"), judging)
    assert same == points
    assert unjudged == replace(counts, margin=None, each=0, at_least=0, of_each=0, falsely=0.0)
    assert spared_in_words(unjudged).startswith("With 95 % confidence (one-sided), each of ")
    with pytest.raises(UserError, match=r"ablation.margin is 0; expected a positive number .*, or null"):
        AblationSettings.read("ablation", {"margin": 0})


@pytest.mark.parametrize("others", [0, 13, 60, 71])
def test_an_unchanged_head_has_a_verdict_of_its_own(others: int) -> None:
    """With mid-p and Benjamini-Hochberg alone, 12 unchanged heads of 72 were not spared, and 13 were."""
    label_N, clean_N, prediction_VN = drawn(np.repeat([0.0, 0.2], [72 - others, others]), 400, seed=4)
    for margin, shown in ((0.0075, True), (0.007, False)):
        judging = replace(JUDGING, margin=margin)
        data = (array.astype(float) for array in (label_N, clean_N, prediction_VN))
        verdicts = judge(METRICS["accuracy"], PairedPredictions(*data), judging)
        assert all((verdict == "dispensable") == shown for verdict in verdicts.verdict[: 72 - others])
        assert verdicts.p_margin[0] == pytest.approx((1 - margin) ** 400)
        counts = spared((label_N, clean_N, prediction_VN), margin=margin)
        assert counts.each == shown * (72 - others)
        # By hand: 72 heads that lose the margin are each spared with at most that probability; or a twentieth of what
        # Benjamini and Hochberg spare, which is all if 72 / (72 - others) times the p-value is at most 0.05.
        by_rate = 0.05 * (72 - others) if 0.05 * (72 - others) >= 72 * 0.9925**400 else 0
        expected = max(72 * 0.9925**400, by_rate)
        assert counts.falsely == (pytest.approx(expected) if shown else 0)
        assert counts.unchanged == 72 - others
        assert counts.excluded_unchanged == pytest.approx(1 - (0.05 / 72) ** (1 / 400), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12), st.floats(0.001, 0.2), st.floats(0.01, 0.2))
def test_spared_is_monotone_in_the_p_value(p: list[float], unchanged: float, rate: float) -> None:
    p_V = np.array(p)
    spared_V = corrected_against_margin(p_V, np.full(len(p), unchanged)) <= rate
    adjusted_V = multipletests(p_V, method="fdr_bh")[1]
    # The last digit of a p-value at the rate depends on the order of the operations.
    assume((np.abs(adjusted_V - rate) > 1e-9).all())
    by_rate_V = adjusted_V <= rate
    largest = max(p_V[by_rate_V].max(initial=0.0), unchanged if unchanged <= rate else 0.0)
    assert spared_V.tolist() == (p_V <= largest).tolist()


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_counts_at_every_margin_are_those_of_the_verdicts_and_of_closed_testing(metric: str) -> None:
    data = drawn(np.repeat([0.0, 0.002, 0.01, 0.05], 3), 500, seed=1)
    points = curve(data, metric)[1]
    label_N, clean_N, prediction_VN = (array.astype(float) for array in data)
    assert len(points) == len(MARGINS)
    for index in (0, 3, 7, 19):
        margin, counts = points[index].margin, points[index]
        verdicts = judge(
            METRICS[metric], PairedPredictions(label_N, clean_N, prediction_VN), replace(JUDGING, margin=margin)
        )
        assert counts.each == sum(verdict == "dispensable" for verdict in verdicts.verdict)
        p_V = p_against_margin(METRICS[metric], PairedPredictions(label_N, clean_N, prediction_VN), margin)
        # Heads as good as one that changes no prediction, by their own p-value; all others by Benjamini and Hochberg.
        own = margin_of_no_change(metric, label_N, clean_N, margin)
        by_rate_V = multipletests(p_V, method="fdr_bh")[1] <= 0.05
        assert (by_rate_V | (p_V <= own * (own <= 0.05))).sum() == counts.each
        assert counts.at_least == least_false(p_V, 0.05)
    assert points[-1].each > 0
    assert (np.diff([point.each for point in points]) >= 0).all()
    assert (np.diff([point.at_least for point in points]) >= 0).all()


def test_another_margin_is_a_point_of_the_curve() -> None:
    counts, points = curve(drawn(np.full(8, 0.01), 400, seed=0), margin=0.013)
    assert len(points) == len(MARGINS) + 1
    (judged,) = [point for point in points if point.margin == counts.margin]
    assert (judged.each, judged.at_least) == (counts.each, counts.at_least)


def test_the_excluded_loss_is_the_margin_from_which_the_bound_holds_all_heads() -> None:
    data = drawn(np.repeat([0.0, 0.01], 4), 400, seed=2)
    counts = spared(data)
    for margin, reached in ((counts.excluded * 1.001, True), (counts.excluded * 0.999, False)):
        assert (spared(data, margin=margin).at_least == 8) == reached


def test_what_cannot_be_judged_has_no_counts() -> None:
    single = drawn(np.zeros(1), 50, seed=0)
    assert spared_heads(outcomes(*single, heads=1), task("accuracy"), JUDGING) == []
    one_example = tuple(array[..., :1] for array in drawn(np.zeros(4), 50, seed=0))
    assert spared_heads(outcomes(*one_example, heads=4), task("accuracy"), JUDGING) == []


def test_an_undefined_score_spares_nothing() -> None:
    label_N, clean_N, prediction_VN = drawn(np.full(4, 0.1), 60, seed=0)
    counts, points = curve((np.zeros_like(label_N), clean_N, prediction_VN), "f1")
    assert {(point.each, point.at_least) for point in points} == {(0, 0)}
    assert counts.excluded is None


@pytest.mark.parametrize("count", [2, 20, 29])
def test_few_examples_rule_out_large_losses_alone(count: int) -> None:
    """Without a changed answer, n examples leave room for a loss of 1 - alpha^(1/n)."""
    label_N = np.arange(count) % 2
    counts = spared((label_N, label_N, np.tile(label_N, (8, 1))))
    assert (counts.each, counts.at_least) == (0, 0)
    assert counts.excluded == pytest.approx(1 - 0.05 ** (1 / count), rel=1e-3)


def test_a_notebook_gets_the_counts_the_curve_and_a_table() -> None:
    data = drawn(np.repeat([0.0, 0.02], 4), 300, seed=3)
    swept = outcomes(*data, heads=4)
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "val") | {"step": 0}
    rows = judged_rows(swept, task("accuracy"), identity, JUDGING)
    disabled = DisabledHeads(swept, rows, spared_heads(swept, task("accuracy"), JUDGING), task("accuracy"))
    result, (counts, points) = disabled.spared(), curve(data)
    at_least, one_by_one = [point.at_least for point in points], [point.each for point in points]
    assert (result.counts, repr(result)) == (counts, spared_in_words(counts))
    assert repr(result) in repr(disabled)
    bound, each, _ = result.plot().axes[0].lines
    assert (bound.get_ydata().tolist(), each.get_ydata().tolist()) == (at_least, one_by_one)
    assert bound.get_xdata() == pytest.approx(100 * MARGINS)
    assert result.to_pandas()["at_least"].tolist() == at_least
    with pytest.raises(UserError, match="Metric 'f1' was not tested"):
        disabled.spared("f1")
    with pytest.raises(UserError, match="Fewer than two heads were disabled alone"):
        DisabledHeads(swept, rows, [], task("accuracy")).spared()
