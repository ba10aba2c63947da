"""How many heads can be spared, against the verdicts, closed testing by hand, and simulated sweeps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from bertsecrets.ablation.judging import judged_rows
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.spared import MARGINS, Spared, points, spared_heads, spared_in_words
from bertsecrets.ablation.verdicts import corrected_against_margin, judge, p_against_margin
from bertsecrets.api_results import DisabledHeads
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.statistics.closed_testing import least_false

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


def spared(data: tuple[np.ndarray, ...], metric: str = "accuracy", **settings: Any) -> Spared:
    record = spared_heads(outcomes(*data, heads=4), task(metric), replace(JUDGING, **settings))
    assert list(record) == [f"spared_{metric}_uniform"]
    return Spared(**record[f"spared_{metric}_uniform"])


def margin_of_no_change(metric: str, label_N: np.ndarray, clean_N: np.ndarray, margin: float) -> float:
    """The p-value of a loss of the margin of a head that changes no prediction."""
    if metric == "accuracy":
        return float((1 - margin) ** len(label_N))
    return float(p_against_margin(metric, PairedPredictions(label_N, clean_N, clean_N[None]), margin)[0])


@pytest.mark.parametrize("others", [0, 13, 60, 71])
def test_an_unchanged_head_has_a_verdict_of_its_own(others: int) -> None:
    """With mid-p and Benjamini-Hochberg alone, 12 unchanged heads of 72 were not spared, and 13 were."""
    label_N, clean_N, prediction_VN = drawn(np.repeat([0.0, 0.2], [72 - others, others]), 400, seed=4)
    for margin, shown in ((0.0075, True), (0.007, False)):
        judging = replace(JUDGING, margin=margin)
        data = (array.astype(float) for array in (label_N, clean_N, prediction_VN))
        verdicts = judge("accuracy", PairedPredictions(*data), judging)
        assert all((verdict == "dispensable") == shown for verdict in verdicts.verdict[: 72 - others])
        assert verdicts.p_margin[0] == pytest.approx((1 - margin) ** 400)
        counts = spared((label_N, clean_N, prediction_VN), margin=margin)
        assert counts.at_margin[0] == shown * (72 - others)
        # By hand: 72 heads that lose the margin are each spared with at most that probability; or a twentieth of what Benjamini and
        # Hochberg spare, which is all if 72 / (72 - others) times the p-value is at most 0.05.
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
    counts = spared(data, metric)
    label_N, clean_N, prediction_VN = (array.astype(float) for array in data)
    assert len(counts.margins) == len(MARGINS)
    for index in (0, 3, 7, 19):
        margin = counts.margins[index]
        verdicts = judge(metric, PairedPredictions(label_N, clean_N, prediction_VN), replace(JUDGING, margin=margin))
        assert counts.each[index] == sum(verdict == "dispensable" for verdict in verdicts.verdict)
        p_V = p_against_margin(metric, PairedPredictions(label_N, clean_N, prediction_VN), margin)
        # Heads as good as one that changes no prediction, by their own p-value; all others by Benjamini and Hochberg.
        own = margin_of_no_change(metric, label_N, clean_N, margin)
        by_rate_V = multipletests(p_V, method="fdr_bh")[1] <= 0.05
        assert (by_rate_V | (p_V <= own * (own <= 0.05))).sum() == counts.each[index]
        assert counts.at_least[index] == least_false(p_V, 0.05)
    assert counts.each[-1] > 0
    assert (np.diff(counts.each) >= 0).all()
    assert (np.diff(counts.at_least) >= 0).all()


def test_another_margin_is_a_point_of_the_curve() -> None:
    counts = spared(drawn(np.full(8, 0.01), 400, seed=0), margin=0.013)
    assert counts.margin in counts.margins
    assert len(counts.margins) == len(MARGINS) + 1
    assert counts.at_margin == (
        counts.each[counts.margins.index(0.013)],
        counts.at_least[counts.margins.index(0.013)],
    )


def test_the_excluded_loss_is_the_margin_from_which_the_bound_holds_all_heads() -> None:
    data = drawn(np.repeat([0.0, 0.01], 4), 400, seed=2)
    counts = spared(data)
    assert counts.excluded is not None
    for margin, reached in ((counts.excluded * 1.001, True), (counts.excluded * 0.999, False)):
        assert (spared(data, margin=margin).at_margin[1] == 8) == reached


def test_what_cannot_be_judged_has_no_counts() -> None:
    single = drawn(np.zeros(1), 50, seed=0)
    assert spared_heads(outcomes(*single, heads=1), task("accuracy"), JUDGING) == {}
    one_example = tuple(array[..., :1] for array in drawn(np.zeros(4), 50, seed=0))
    assert spared_heads(outcomes(*one_example, heads=4), task("accuracy"), JUDGING) == {}


def test_an_undefined_score_spares_nothing() -> None:
    label_N, clean_N, prediction_VN = drawn(np.full(4, 0.1), 60, seed=0)
    counts = spared((np.zeros_like(label_N), clean_N, prediction_VN), "f1")
    assert (set(counts.each), set(counts.at_least), counts.excluded) == ({0}, {0}, None)


@pytest.mark.parametrize("count", [2, 20, 29])
def test_few_examples_rule_out_large_losses_alone(count: int) -> None:
    """Without a changed answer, n examples leave room for a loss of 1 - alpha^(1/n)."""
    label_N = np.arange(count) % 2
    counts = spared((label_N, label_N, np.tile(label_N, (8, 1))))
    assert counts.at_margin == (0, 0)
    assert counts.excluded == pytest.approx(1 - 0.05 ** (1 / count), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"falsely": 1.29, "unchanged": 54, "excluded_unchanged": 0.01802},
            "63 of 72 heads can each be spared; on average, such a sweep spares at most about 1.3 that lose 1.0 point or more; with 95 % "
            "confidence at least 41 of 72 lose less than 1.0 point. With 95 % confidence (one-sided), no single head loses 2.4 points or "
            "more, and none of the 54 that change no prediction 1.9.",
        ),
        (
            {"unchanged": 72, "excluded_unchanged": 0.025},
            "63 of 72 heads can each be spared; on average, such a sweep spares at most about 3.2 that lose 1.0 point or more; with 95 % "
            "confidence at least 41 of 72 lose less than 1.0 point. With 95 % confidence (one-sided), no single head loses 2.4 points or more.",
        ),
        (
            {"each": [0, 0], "at_least": [0, 0], "of_each": 0, "excluded": None},
            "No head is shown to lose less than 1.0 point.",
        ),
        (
            {"each": [0, 2], "at_least": [0, 0], "of_each": 0},
            "2 of 72 heads can each be spared; on average, such a sweep spares at most about 0.1 that lose 1.0 point or more. With 95 % "
            "confidence (one-sided), no single head loses 2.4 points or more.",
        ),
        (
            {"each": [0, 4], "at_least": [0, 3], "of_each": 2, "excluded": 0.03},
            "4 of 72 heads can each be spared; on average, such a sweep spares at most about 0.2 that lose 1.0 point or more; with 95 % "
            "confidence at least 3 of 72 lose less than 1.0 point, 2 of the 4 among them. With 95 % confidence (one-sided), no single head "
            "loses 3.0 points or more.",
        ),
    ],
)
def test_sentences(changes: dict[str, Any], sentence: str) -> None:
    record = {
        "metric": "accuracy",
        "mode": "uniform",
        "margins": [0.005, 0.01],
        "each": [0, 63],
        "at_least": [0, 41],
        "of_each": 41,
        "heads": 72,
        "excluded": 0.0231,
        "margin": 0.01,
        "level": 0.95,
        "false_discovery_rate": 0.05,
    }
    assert spared_in_words(Spared(**{**record, **changes})) == sentence


def test_a_point_and_points() -> None:
    assert [points(loss) for loss in (0.01, 0.005, 0.02)] == ["1.0 point", "0.5 points", "2.0 points"]


def test_a_notebook_gets_the_counts_the_curve_and_a_table() -> None:
    data = drawn(np.repeat([0.0, 0.02], 4), 300, seed=3)
    swept = outcomes(*data, heads=4)
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "val") | {"step": 0}
    rows = judged_rows(swept, task("accuracy"), identity, JUDGING)
    disabled = DisabledHeads(swept, rows, spared_heads(swept, task("accuracy"), JUDGING), task("accuracy"))
    result, counts = disabled.spared(), spared(data)
    assert repr(result) == spared_in_words(counts)
    assert repr(result) in repr(disabled)
    bound, each, _ = result.plot().axes[0].lines
    assert (bound.get_ydata().tolist(), each.get_ydata().tolist()) == (list(counts.at_least), list(counts.each))
    assert bound.get_xdata() == pytest.approx(100 * MARGINS)
    assert result.to_pandas()["at_least"].tolist() == list(counts.at_least)
    with pytest.raises(UserError, match="Heads were not judged by 'f1'"):
        disabled.spared("f1")
    with pytest.raises(UserError, match="Fewer than two heads were disabled alone"):
        DisabledHeads(swept, rows, {}, task("accuracy")).spared()


@pytest.mark.slow
def test_over_equal_experiments_the_curve_varies_less_than_the_count_at_one_margin() -> None:
    """100 sets of 400 examples, on which 72 heads flip the same fragile fifth of the examples, 1.2 % of all, and lose nothing."""
    read = []
    for seed in range(100):
        generator = np.random.default_rng(seed)
        label_N = (generator.random(400) < 0.6).astype(int)
        fragile_N = generator.random(400) < 0.2
        right_N = generator.random(400) < np.where(fragile_N, 0.5, 0.85)
        clean_N = np.where(right_N, label_N, 1 - label_N)
        flipped_VN = (generator.random((72, 400)) < 0.012 / 0.2) & fragile_N
        counts = spared((label_N, clean_N, np.where(flipped_VN, 1 - clean_N, clean_N)))
        half = counts.margins[int(np.argmax(np.array(counts.at_least) >= 36))]
        read.append((*counts.at_margin, 100 * half, 100 * (counts.excluded or np.nan)))
    first, middle, third = np.percentile(read, [25, 50, 75], axis=0)
    each, at_least, half, excluded = range(4)
    # One by one 12, 16 or 21 heads at one margin; the bound varies half as much, and the margin of half of the heads by a quarter point.
    assert (third - first)[each] <= 0.7 * middle[each]
    assert (third - first)[at_least] <= 0.8 * (third - first)[each]
    assert (third - first)[half] <= 0.2 * middle[half]
    assert (third - first)[excluded] <= 0.25 * middle[excluded]
