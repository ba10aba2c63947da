"""The t test from summaries against scipy's on the numbers themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import differs_from_highest, mean_differs_from_zero, mean_exceeds_zero


@given(st.integers(2, 30), st.integers(0, 10_000), st.floats(-2, 2))
def test_equals_scipy(count: int, seed: int, shift: float) -> None:
    values_NK = np.random.default_rng(seed).standard_normal((count, 4)) + shift
    stderr_K = values_NK.std(0, ddof=1) / np.sqrt(count)
    found_K = mean_differs_from_zero(values_NK.mean(0), stderr_K, np.full(4, count))
    assert found_K == pytest.approx(stats.ttest_1samp(values_NK, 0).pvalue, abs=1e-12)
    above_K = mean_exceeds_zero(values_NK.mean(0), stderr_K, np.full(4, count))
    assert above_K == pytest.approx(stats.ttest_1samp(values_NK, 0, alternative="greater").pvalue, abs=1e-12)


def test_without_spread_the_answer_is_certain_and_without_numbers_there_is_none() -> None:
    result = mean_differs_from_zero([0.0, 0.3, 0.3, np.nan], [0.0, 0.0, np.nan, np.nan], [5, 5, 1, 0])
    assert result[:2].tolist() == [1.0, 0.0]
    assert np.isnan(result[2:]).all()
    above = mean_exceeds_zero([0.3, -0.3, 0.3, np.nan], [0.0, 0.0, np.nan, np.nan], [5, 5, 1, 0])
    assert above[:2].tolist() == [0.0, 1.0]
    assert np.isnan(above[2:]).all()


def test_correction_leaves_undefined_ones_out() -> None:
    result = corrected([[0.01, np.nan], [0.04, 0.03]])
    assert np.isnan(result[0, 1])
    expected = stats.false_discovery_control([0.01, 0.04, 0.03])
    assert result[[0, 1, 1], [0, 0, 1]] == pytest.approx(expected)


def test_each_mean_against_the_highest_by_hand() -> None:
    mean, stderr, count = [0.5, 0.9, 0.8, np.nan], [0.02, 0.03, 0.01, 0.1], [30, 20, 40, 10]
    raw = [2 * stats.t.sf(0.4 / 0.05, 19), 2 * stats.t.sf(0.1 / 0.04, 19)]
    result = differs_from_highest(mean, stderr, count)
    assert result[:3] == pytest.approx([2 * raw[0], 1.0, raw[1]])
    assert np.isnan(result[3])
    assert np.isnan(differs_from_highest([np.nan], [0.1], [5])).all()
    assert differs_from_highest([0.2, 0.2], [0.0, 0.0], [5, 5]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("correlation", [-0.3, 0.0, 0.9])
def test_equal_means_of_the_same_examples_are_rarely_told_apart(correlation: float) -> None:
    """Four heads of equal mean, whatever the correlation of their numbers over examples."""
    covariance = np.full((4, 4), correlation) + (1 - correlation) * np.eye(4)
    drawn_RNH = np.random.default_rng(0).multivariate_normal(np.zeros(4), covariance, size=(400, 30))
    wrong = sum(
        (differs_from_highest(x_NH.mean(0), x_NH.std(0, ddof=1) / np.sqrt(30), np.full(4, 30)) < 0.05).any()
        for x_NH in drawn_RNH
    )
    assert wrong / 400 <= 0.05
