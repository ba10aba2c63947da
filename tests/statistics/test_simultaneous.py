"""Joint limits and tests, against closed forms, statsmodels and a bootstrap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from bertsecrets.statistics.corrections import (
    error_correlation,
    joint_draws,
    simultaneous_tail,
    step_down,
)

P_VALUES = st.lists(st.floats(1e-6, 1), min_size=1, max_size=7)


def independent(effects: int, draws: int = 40_000) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((effects, draws))


def test_errors_are_correlated_as_in_a_bootstrap_of_the_examples():
    generator = np.random.default_rng(1)
    change_VN = generator.standard_normal((3, 400))
    change_VN[1] = 0.8 * change_VN[0] + 0.6 * change_VN[1]
    resampled_RV = np.array([change_VN[:, generator.integers(400, size=400)].mean(1) for _ in range(4000)])
    influence_VN = change_VN - change_VN.mean(1, keepdims=True)
    expected_VV = np.corrcoef(resampled_RV.T)
    assert error_correlation(influence_VN, np.zeros(3)) == pytest.approx(expected_VV, abs=0.06)


def test_an_unseen_event_is_shared_by_no_other_effect():
    """Two effects of one and the same example, each with an unseen event of its size: variances 1 + 1, covariance 1."""
    influence_VN = np.zeros((2, 50))
    influence_VN[:, 7] = -1.0
    assert error_correlation(influence_VN, np.full(2, 1 / 50)) == pytest.approx(np.array([[1, 0.5], [0.5, 1]]))


def test_effects_that_nothing_moves_count_as_independent():
    assert (error_correlation(np.full((2, 30), np.nan), np.zeros(2)) == np.eye(2)).all()


def test_draws_have_the_correlation():
    correlation_VV = np.array([[1, 0.8, 0.1], [0.8, 1, 0.3], [0.1, 0.3, 1]])
    draw_VR = joint_draws(correlation_VV, np.random.default_rng(0), draws=100_000)
    assert np.cov(draw_VR) == pytest.approx(correlation_VV, abs=0.02)
    assert min(stats.kstest(draw_R[:2000], "norm").pvalue for draw_R in draw_VR) > 0.001


def test_effects_that_err_as_one_have_one_draw():
    draw_VR = joint_draws(np.ones((40, 40)), np.random.default_rng(0), draws=100)
    assert np.ptp(draw_VR, axis=0) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("effects", [1, 10, 72])
def test_the_tail_of_independent_effects_is_that_of_sidak(effects: int):
    expected = (1 - 0.95 ** (1 / effects)) / 2
    assert simultaneous_tail(independent(effects, 200_000), 0.05) == pytest.approx(expected, rel=0.06)


def test_the_tail_of_effects_that_err_as_one_is_that_of_one():
    draw_VR = np.repeat(independent(1, 200_000), 30, axis=0)
    assert simultaneous_tail(draw_VR, 0.05) == pytest.approx(0.025, rel=0.02)


def test_step_down_of_independent_effects_is_that_of_sidak():
    p_V = np.array([0.2, 0.001, 0.04, 0.9, 0.004])
    expected = multipletests(p_V, method="holm-sidak")[1]
    assert step_down(p_V, independent(5, 400_000)) == pytest.approx(expected, rel=0.1)


def test_step_down_of_effects_that_err_as_one_needs_no_correction():
    draw_VR = np.repeat(independent(1, 400_000), 4, axis=0)
    assert step_down([0.03, 0.03, 0.03, 0.03], draw_VR) == pytest.approx(0.03, rel=0.05)


@settings(max_examples=12, deadline=None)
@given(p=P_VALUES)
def test_step_down_lies_between_the_raw_and_holms_p_values(p: list[float]):
    adjusted = step_down(p, independent(len(p), 2_000))
    # The largest errs by the draws alone.
    assert (adjusted >= np.array(p) * 0.5 - 0.02).all()
    assert (adjusted <= multipletests(p, method="holm")[1] + 1e-12).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


def test_step_down_keeps_undefined_p_values():
    adjusted = step_down([np.nan, 0.01], independent(2))
    assert np.isnan(adjusted[0])
    assert adjusted[1] == pytest.approx(0.01)
