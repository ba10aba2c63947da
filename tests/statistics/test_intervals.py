"""Intervals of a change that few examples make: limits against their definitions, coverage by enumeration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.verdicts import COUNTS, FLIPS, coverage
from bertsecrets.statistics.intervals import (
    exceeds,
    exceeds_each,
    influenced_change,
    paired_proportions,
    proportion_limits,
    weighted_limits,
)

TAIL = 0.025


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.data(), st.floats(0.001, 0.4))
def test_limits_of_a_proportion_are_mid_p(examples: int, data: st.DataObject, tail: float) -> None:
    count = data.draw(st.integers(0, examples))
    low, high = (float(limit[0]) for limit in proportion_limits([count], examples, tail))
    above = stats.binom.sf(count, examples, low) + stats.binom.pmf(count, examples, low) / 2
    below = stats.binom.cdf(count, examples, high) - stats.binom.pmf(count, examples, high) / 2
    assert low == pytest.approx(0, abs=1e-12) if count == 0 else above == pytest.approx(tail, abs=1e-6)
    assert high == pytest.approx(1, abs=1e-12) if count == examples else below == pytest.approx(tail, abs=1e-6)


def test_limits_of_equal_weights_are_those_of_a_poisson_count() -> None:
    count_V, weight = np.array([0, 1, 4, 30]), 0.02
    low_V, high_V = weighted_limits(count_V * weight, count_V * weight**2, np.full(4, weight), TAIL)
    for count, low, high in zip(count_V, low_V / weight, high_V / weight, strict=True):
        above = stats.poisson.sf(count, low) + stats.poisson.pmf(count, low) / 2
        below = stats.poisson.cdf(count, high) - stats.poisson.pmf(count, high) / 2
        assert low == 0 if count == 0 else above == pytest.approx(TAIL, abs=1e-6)
        assert below == pytest.approx(TAIL, abs=1e-6)


def test_no_flip_has_an_interval() -> None:
    low_V, high_V = paired_proportions([0], [0], 277)(np.full(1, TAIL))
    # Half of the chance of no flip at all is 2.5 %.
    assert high_V[0] == -low_V[0] == pytest.approx(np.hypot(1 - 0.05 ** (1 / 277), 0), rel=1e-6)


def test_many_small_influences_give_the_normal_interval() -> None:
    influence_N = np.random.default_rng(0).normal(size=4000)
    influence_N -= influence_N.mean()
    limits = influenced_change([0.1], influence_N[None], [1e-4], [1e-4])
    low_V, high_V = limits(np.full(1, TAIL))
    reach = 1.96 * influence_N.std() / np.sqrt(4000)
    assert (0.1 - low_V[0], high_V[0] - 0.1) == (pytest.approx(reach, rel=0.03), pytest.approx(reach, rel=0.03))


def test_the_test_and_the_interval_agree() -> None:
    lost_V, won_V = np.array([0, 3, 12, 0, 30]), np.array([0, 3, 2, 5, 10])
    estimate_V = (won_V - lost_V) / 300
    limits = paired_proportions(lost_V, won_V, 300)
    for margin in (0.01, 0.05):
        p_V = exceeds(limits, estimate_V, -margin)
        for index, p in enumerate(p_V):
            if min(p, 1 - p) < 1e-7:
                continue
            low_V, high_V = limits(np.full(5, min(p, 1 - p)))
            assert (low_V if p <= 0.5 else high_V)[index] == pytest.approx(-margin, abs=1e-5)
        for tail in (0.01, 0.05):
            assert (p_V <= tail).tolist() == (limits(np.full(5, tail))[0] >= -margin).tolist()
    assert exceeds(limits, estimate_V, -0.01)[4] > 0.99


def test_an_undefined_change_has_no_limits() -> None:
    limits = influenced_change([np.nan, 0.0], np.array([[np.nan] * 5, [0.0] * 5]), [0.1, 0.1], [0.1, 0.1])
    low_V, high_V = limits(np.full(2, TAIL))
    assert np.isnan([low_V[0], high_V[0]]).all()
    assert low_V[1] < 0 < high_V[1]
    assert np.isnan(exceeds(limits, [np.nan, 0.0], -0.01)[0])


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize("harmful", [0.5, 0.75, 1.0])
def test_the_interval_of_accuracy_covers_at_few_flips(flips: float, harmful: float) -> None:
    """Exact coverage by enumeration of all counts."""
    for count in COUNTS:
        assert coverage("accuracy", flips, harmful, count, 0) >= 0.94, count


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("metric", ["f1", "matthews", "pearson", "spearman"])
def test_intervals_cover_the_truth_at_few_flips(metric: str) -> None:
    for count in COUNTS:
        for flips in FLIPS:
            for harmful in (1.0, 0.5) if metric in ("f1", "matthews") else (1.0,):
                covered = coverage(metric, flips, harmful, count, 2000)
                assert covered >= 0.93, (count, flips, harmful, covered)


def test_p_values_of_several_bounds_are_those_of_each() -> None:
    generator = np.random.default_rng(0)
    influence_VN = generator.standard_normal((6, 200)) * (generator.random((6, 200)) < 0.05)
    influence_VN -= influence_VN.mean(axis=1, keepdims=True)
    lost_V, won_V = np.array([0, 0, 2, 9, 30, 4]), np.array([0, 3, 0, 4, 8, 5])
    change_V = np.array([-0.02, 0.0, 0.01, -0.004, np.nan, 0.03])
    bounds = [-0.08, -0.03, -0.01, -0.0025, 0.01]
    for limits, estimate_V in (
        (paired_proportions(lost_V, won_V, 300), (won_V - lost_V) / 300),
        (influenced_change(change_V, influence_VN, np.full(6, 0.005), np.full(6, 0.005)), change_V),
    ):
        p_BV = exceeds_each(limits, estimate_V, bounds)
        expected_BV = np.stack([exceeds(limits, estimate_V, bound) for bound in bounds])
        shown_BV = np.maximum(expected_BV, 1e-6)
        assert p_BV == pytest.approx(shown_BV, rel=0.01, nan_ok=True)
