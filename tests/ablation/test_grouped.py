"""Verdicts where examples belong together, beside loops over groups."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from references import metric_value

from bertsecrets.ablation.judging import selection_check
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.significance import bootstrap_changes, swap_test
from bertsecrets.ablation.verdicts import Judging, judge, judge_rises
from bertsecrets.task_heads import METRICS

JUDGING = Judging(resamples=500)


def predictions(metric: str, group_N: np.ndarray, seed: int = 0) -> PairedPredictions:
    """Two variants whose changes go together in each group."""
    generator = np.random.default_rng(seed)
    count = len(group_N)
    if metric in ("pearson", "spearman"):
        label_N, noise_VN = generator.normal(size=count), generator.normal(size=(2, group_N.max() + 1))[:, group_N]
        clean_N = label_N + generator.normal(size=count)
        return PairedPredictions(label_N, clean_N, clean_N + 0.4 * noise_VN, group_N=group_N)
    label_N = (generator.random(count) < 0.6).astype(float)
    clean_N = np.where(generator.random(count) < 0.8, label_N, 1 - label_N)
    flipped_VN = (generator.random((2, group_N.max() + 1)) < 0.4)[:, group_N]
    return PairedPredictions(label_N, clean_N, np.where(flipped_VN, 1 - clean_N, clean_N), group_N=group_N)


def change(metric: str, paired: PairedPredictions, chosen_N: np.ndarray) -> list[float]:
    clean = metric_value(metric, paired.label_N[chosen_N], paired.clean_N[chosen_N])
    return [metric_value(metric, paired.label_N[chosen_N], one[chosen_N]) - clean for one in paired.prediction_VN]


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "pearson", "spearman"])
def test_the_bootstrap_draws_whole_groups(metric: str) -> None:
    group_N = np.repeat(np.arange(30), np.random.default_rng(1).integers(1, 9, 30))
    paired = predictions(metric, group_N)
    members = [np.flatnonzero(group_N == group) for group in range(30)]
    generator = np.random.default_rng(5)
    naive = [
        change(metric, paired, np.concatenate([members[g] for g in generator.integers(0, 30, 30)])) for _ in range(300)
    ]
    expected, drawn = (
        np.std(naive, axis=0),
        bootstrap_changes(METRICS[metric], paired, 600, np.random.default_rng(0)).std(0),
    )
    assert drawn == pytest.approx(expected, rel=0.15)
    effects = judge(METRICS[metric], paired, JUDGING)
    assert effects.stderr == pytest.approx(expected, rel=0.15)
    # The influences, by which limits are made, vary as the resamples do.
    assert paired.influences(METRICS[metric]).std(-1) / np.sqrt(30) == pytest.approx(expected, rel=0.25)
    if METRICS[metric].of_classes:
        # Their changes go together in a group.
        single = judge(METRICS[metric], replace(paired, group_N=None), JUDGING)
        assert ((effects.high - effects.low) > (single.high - single.low)).all()


@pytest.mark.parametrize("metric", ["accuracy", "f1", "pearson"])
def test_groups_are_swapped_as_a_whole(metric: str) -> None:
    group_N = np.repeat(np.arange(8), [1, 2, 3, 4, 5, 6, 7, 8])
    paired = predictions(metric, group_N)
    observed = np.abs(change(metric, paired, np.arange(len(group_N))))
    clean_N, p_V = paired.clean_N, []
    for row, one_N in enumerate(paired.prediction_VN):
        if metric == "pearson":
            clean_N, one_N = ((x - x.mean()) / x.std() for x in (paired.clean_N, one_N))
        swapped = []
        for pattern in product((False, True), repeat=8):
            swap_N = np.array(pattern)[group_N]
            pair = [
                metric_value(metric, paired.label_N, np.where(swap_N, *both))
                for both in ((one_N, clean_N), (clean_N, one_N))
            ]
            swapped.append(abs(pair[1] - pair[0]) >= observed[row] - 1e-9)
        p_V.append(np.mean(swapped))
    assert swap_test(METRICS[metric], paired, 9999, np.random.default_rng(0)) == pytest.approx(p_V)
    assert judge(METRICS[metric], paired, JUDGING).p_value == pytest.approx(p_V)


def test_order_and_names_of_groups_do_not_matter() -> None:
    group_N = np.repeat(np.arange(40), 5)
    paired = predictions("accuracy", group_N)
    order_N = np.random.default_rng(2).permutation(200)
    shuffled = PairedPredictions(
        paired.label_N[order_N],
        paired.clean_N[order_N],
        paired.prediction_VN[:, order_N],
        group_N=3 + 7 * group_N[order_N],
    )
    first, second = (judge(METRICS["accuracy"], one, JUDGING) for one in (paired, shuffled))
    for name in ("delta", "low", "high", "p_value", "p_loss", "high_simultaneous", "smallest_effect"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), nan_ok=True), name


def test_groups_of_one_are_examples() -> None:
    paired = predictions("f1", np.arange(200))
    for name in ("p_value", "stderr"):
        alone = getattr(judge(METRICS["f1"], replace(paired, group_N=None), JUDGING), name)
        assert getattr(judge(METRICS["f1"], paired, JUDGING), name) == pytest.approx(alone)
    assert judge(METRICS["f1"], paired, JUDGING).low == pytest.approx(
        judge(METRICS["f1"], replace(paired, group_N=None), JUDGING).low, rel=0.02
    )


def test_a_selection_check_splits_groups() -> None:
    """One group alone gains: whichever half it is in, the other half gains nothing."""
    group_N = np.repeat(np.arange(4), 50)
    label_N, clean_N = np.zeros(200), np.zeros(200)
    clean_N[group_N == 0] = 1
    variant_VN = np.where(group_N == 0, 0.0, clean_N)[None]
    paired = PairedPredictions(label_N, clean_N, variant_VN, group_N=group_N)
    check = selection_check(METRICS["accuracy"], paired, {"head": 0.0}, "zero", seed=0)
    # Half of the 100 examples of its half.
    assert check.claimed + check.kept.value == pytest.approx(0.5)
    assert check.positive * 0.5 == pytest.approx(check.kept.value)


def test_a_rise_of_the_loss_is_judged_by_groups() -> None:
    change_NV = np.random.default_rng(0).normal(0.3, 1, (40, 3))
    repeated = np.repeat(change_NV, 6, axis=0)
    paired = PairedPredictions(np.zeros(240), np.zeros(240), np.zeros((3, 240)), group_N=np.repeat(np.arange(40), 6))
    by_group, alone = judge_rises(paired.by_unit(repeated.T).T, JUDGING), judge_rises(change_NV, JUDGING)
    for grouped_V, alone_V in zip(by_group, alone, strict=True):
        assert grouped_V == pytest.approx(alone_V)
