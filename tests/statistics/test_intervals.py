"""Intervals of a change that few examples make: limits against their definitions, coverage by enumeration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.verdicts import COUNTS, FLIPS, coverage
from bertsecrets.statistics.intervals import (
    influenced_change,
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


def test_many_small_influences_give_the_normal_interval() -> None:
    influence_N = np.random.default_rng(0).normal(size=4000)
    influence_N -= influence_N.mean()
    limits = influenced_change([0.1], influence_N[None], [1e-4], [1e-4])
    low_V, high_V = limits(np.full(1, TAIL))
    reach = 1.96 * influence_N.std() / np.sqrt(4000)
    assert (0.1 - low_V[0], high_V[0] - 0.1) == (pytest.approx(reach, rel=0.03), pytest.approx(reach, rel=0.03))


def test_an_undefined_change_has_no_limits() -> None:
    limits = influenced_change([np.nan, 0.0], np.array([[np.nan] * 5, [0.0] * 5]), [0.1, 0.1], [0.1, 0.1])
    low_V, high_V = limits(np.full(2, TAIL))
    assert np.isnan([low_V[0], high_V[0]]).all()
    assert low_V[1] < 0 < high_V[1]


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
