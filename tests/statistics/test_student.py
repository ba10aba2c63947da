"""The t test from summaries against scipy's on the numbers themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertsecrets.statistics.student import (
    differs_from_highest,
    limits_of_all,
    mean_differs_from_zero,
    mean_exceeds_zero,
    mean_rises,
)


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


def test_each_mean_against_the_highest_by_hand() -> None:
    mean, stderr, count = [0.5, 0.9, 0.8, np.nan], [0.02, 0.03, 0.01, 0.1], [30, 20, 40, 10]
    raw = [2 * stats.t.sf(0.4 / 0.05, 19), 2 * stats.t.sf(0.1 / 0.04, 19)]
    result = differs_from_highest(mean, stderr, count)
    assert result[:3] == pytest.approx([2 * raw[0], 1.0, raw[1]])
    assert np.isnan(result[3])
    assert np.isnan(differs_from_highest([np.nan], [0.1], [5])).all()
    assert differs_from_highest([0.2, 0.2], [0.0, 0.0], [5, 5]).tolist() == [1.0, 1.0]


def test_limits_of_all_are_those_of_one_mean_alone() -> None:
    low, high = limits_of_all([2.0, np.nan], [0.5, np.nan], [9, 0])
    assert (low[0], high[0]) == pytest.approx(stats.t.interval(0.95, 8, 2.0, 0.5))
    assert np.isnan([low[1], high[1]]).all()
    # One number has no spread.
    assert np.isnan(limits_of_all([2.0], [0.0], [1])).all()


def test_rises_are_those_of_scipy_where_numbers_are_not_skewed_to_the_left() -> None:
    value_NV = np.random.default_rng(3).exponential(size=(40, 5)) - np.linspace(0.5, 1.1, 5)
    expected_V = stats.ttest_1samp(value_NV, 0, alternative="greater").pvalue
    np.testing.assert_allclose(mean_rises(value_NV), expected_V)


def test_rises_of_numbers_skewed_to_the_left_are_those_of_halls_transformation() -> None:
    """By a loop over the formula of Hall (1992), with one more fall as large as the largest change."""
    value_NV = 1.2 - np.random.default_rng(4).exponential(size=(40, 5))
    for p, value_N in zip(mean_rises(value_NV), value_NV.T, strict=True):
        assert stats.skew(value_N) < 0
        more_N = np.append(value_N, -np.abs(value_N).max())
        t, n = stats.ttest_1samp(more_N, 0).statistic, 40
        skewness = stats.skew(more_N) * (40 / 41) ** 1.5
        transformed = t + skewness * t**2 / 3 / n**0.5 + skewness**2 * t**3 / 27 / n + skewness / 6 / n**0.5
        assert p == pytest.approx(stats.t.sf(min(t, transformed), 39))


def test_rises_without_spread_are_certain() -> None:
    assert mean_rises(np.stack([np.zeros(5), np.ones(5), -np.ones(5)], 1)).tolist() == [1.0, 0.0, 1.0]


def test_numbers_that_rarely_fall_far_are_seldom_said_to_rise() -> None:
    """Lognormal falls around a mean of 0: the t test says of 13 % of 100 such numbers that they rise, at 1 %."""
    value_NV = np.exp(0.5) - np.exp(np.random.default_rng(5).standard_normal((100, 20_000)))
    assert (stats.ttest_1samp(value_NV, 0, alternative="greater").pvalue <= 0.01).mean() > 0.04
    assert (mean_rises(value_NV) <= 0.01).mean() <= 0.015
