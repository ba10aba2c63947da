"""Paired tests against statsmodels, scipy and a loop over all patterns of swaps."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import metric_value
from scipy.stats import binomtest, spearmanr
from statsmodels.stats.contingency_tables import mcnemar

from bertsecrets.ablation.judging import selection_check
from bertsecrets.ablation.predictions import PairedPredictions, influences
from bertsecrets.ablation.significance import bootstrap_changes, mcnemar_exact, swap_test
from bertsecrets.task_heads import METRICS
from bertsecrets.task_heads.metric import Array


@settings(max_examples=100, deadline=None)
@given(both=st.integers(0, 30), lost=st.integers(0, 40), won=st.integers(0, 40), neither=st.integers(1, 30))
def test_mcnemar_equals_statsmodels(both: int, lost: int, won: int, neither: int) -> None:
    expected = mcnemar([[both, lost], [won, neither]], exact=True).pvalue if lost + won else 1.0
    np.testing.assert_allclose(mcnemar_exact(np.array([lost]), np.array([won]))[0], expected, rtol=1e-9)


def test_mcnemar_of_many_examples_equals_scipy() -> None:
    assert mcnemar_exact(np.array([700]), np.array([500]))[0] == pytest.approx(
        binomtest(500, 1200, 0.5).pvalue, rel=1e-9
    )


@pytest.mark.parametrize("metric", ["f1", "matthews", "pearson"])
def test_swaps_equal_a_loop_over_all_patterns(metric: str) -> None:
    generator = np.random.default_rng(3)
    count = 8
    if metric == "pearson":
        label_N = generator.normal(size=count)
        # Standardised, as the test does, so that the loop can swap raw numbers.
        clean_N, variant_N = (
            (x - x.mean()) / x.std() for x in (label_N + generator.normal(size=(2, count)) * [[0.3], [1.5]])
        )
    else:
        label_N = np.array([1, 1, 1, 0, 0, 1, 0, 1.0])
        clean_N = label_N.copy()
        variant_N = np.array([1, 0, 0, 1, 0, 1, 0, 0.0])
    observed = metric_value(metric, label_N, variant_N) - metric_value(metric, label_N, clean_N)
    beyond = []
    for pattern in itertools.product([False, True], repeat=count):
        swap_N = np.array(pattern)
        first, second = np.where(swap_N, variant_N, clean_N), np.where(swap_N, clean_N, variant_N)
        change = metric_value(metric, label_N, second) - metric_value(metric, label_N, first)
        beyond.append(abs(change) >= abs(observed) - 1e-12)
    result = swap_test(
        METRICS[metric], PairedPredictions(label_N, clean_N, variant_N[None]), 9999, np.random.default_rng(0)
    )
    assert result[0] == pytest.approx(np.mean(beyond), abs=1e-12)


def test_random_swaps_approach_the_exact_value() -> None:
    generator = np.random.default_rng(0)
    label_N = generator.integers(0, 2, 14).astype(float)
    clean_N, variant_N = label_N.copy(), 1 - label_N
    variant_N[:4] = label_N[:4]
    exact = swap_test(
        METRICS["f1"], PairedPredictions(label_N, clean_N, variant_N[None]), 2**14, np.random.default_rng(0)
    )[0]
    random = swap_test(
        METRICS["f1"], PairedPredictions(label_N, clean_N, variant_N[None]), 1000, np.random.default_rng(0)
    )[0]
    assert random == pytest.approx(exact, abs=4 * np.sqrt(exact / 1000) + 2e-3)


def test_swaps_find_what_is_there_and_leave_what_is_not() -> None:
    generator = np.random.default_rng(0)
    label_N = generator.normal(size=300)
    clean_N = label_N + 0.5 * generator.normal(size=300)
    worse_N = label_N + 2.0 * generator.normal(size=300)
    moved_N = 3 * clean_N + 7
    for metric in ("pearson", "spearman"):
        p_V = swap_test(
            METRICS[metric], PairedPredictions(label_N, clean_N, np.stack([worse_N, clean_N, moved_N])), 999, generator
        )
        assert p_V[0] == pytest.approx(0.001)
        assert p_V[1] == 1.0
        assert p_V[2] > 0.9  # a correlation sees neither scale nor location
    assert spearmanr(worse_N, label_N).statistic < spearmanr(clean_N, label_N).statistic


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "macro_f1", "pearson", "spearman"])
def test_many_examples_are_resampled_in_parts_with_the_numbers_of_the_whole(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    count = 101  # no multiple of the swaps that a generator draws together
    label_N = generator.integers(0, 3 if metric == "macro_f1" else 2, count).astype(float)
    prediction_VN = np.where(generator.random((4, count)) < 0.2, 1.0 - label_N.clip(max=1), label_N)
    if metric in ("pearson", "spearman"):
        prediction_VN += generator.normal(size=prediction_VN.shape)

    def numbers() -> tuple[Array, ...]:
        data = (METRICS[metric], PairedPredictions(label_N, prediction_VN[0], prediction_VN[1:]))
        check = selection_check(*data, dict.fromkeys("012", 1.0), "zero", seed=0)
        return (
            bootstrap_changes(*data, 300, np.random.default_rng(1)),
            swap_test(*data, 1999, np.random.default_rng(2)),
            np.array([check.claimed, *vars(check.kept).values(), float(check.best), check.chosen]),
            influences(METRICS[metric], label_N, prediction_VN),
        )

    whole = numbers()
    assert 0 < whole[1].min() < 1
    # 3 rows of weights, 3 variants, and 4 rows of swaps.
    monkeypatch.setattr("bertsecrets.ablation.predictions._AT_ONCE", 3 * count + 3)
    for one, other in zip(whole, numbers(), strict=True):
        if metric == "pearson":
            # Sums of floats depend in their last bits on how many are taken at once.
            np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-15)
        else:
            np.testing.assert_array_equal(other, one)
