"""The t test from summaries against scipy's on the numbers themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero, mean_exceeds_zero


@given(st.integers(2, 30), st.integers(0, 10_000), st.floats(-2, 2))
def test_equals_scipy(count: int, seed: int, shift: float) -> None:
    values_NK = np.random.default_rng(seed).standard_normal((count, 4)) + shift
    stderr_K = values_NK.std(0, ddof=1) / np.sqrt(count)
    found_K = mean_differs_from_zero(values_NK.mean(0), stderr_K, np.full(4, count))
    assert found_K == pytest.approx(stats.ttest_1samp(values_NK, 0).pvalue, abs=1e-12)
    above_K = mean_exceeds_zero(values_NK.mean(0), stderr_K, np.full(4, count))
    assert above_K == pytest.approx(stats.ttest_1samp(values_NK, 0, alternative="greater").pvalue, abs=1e-12)


def test_without_spread_the_answer_is_certain_and_without_numbers_there_is_none() -> None:
    found = mean_differs_from_zero([0.0, 0.3, 0.3, np.nan], [0.0, 0.0, np.nan, np.nan], [5, 5, 1, 0])
    assert found[:2].tolist() == [1.0, 0.0]
    assert np.isnan(found[2:]).all()
    above = mean_exceeds_zero([0.3, -0.3, 0.3, np.nan], [0.0, 0.0, np.nan, np.nan], [5, 5, 1, 0])
    assert above[:2].tolist() == [0.0, 1.0]
    assert np.isnan(above[2:]).all()


def test_correction_leaves_undefined_ones_out() -> None:
    found = corrected([[0.01, np.nan], [0.04, 0.03]])
    assert np.isnan(found[0, 1])
    expected = stats.false_discovery_control([0.01, 0.04, 0.03])
    assert found[[0, 1, 1], [0, 0, 1]] == pytest.approx(expected)
