"""Spearman's correlation against its definition, and where it is not defined."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import rankdata

from bertsecrets.statistics.ranks import rank_correlation, spearman


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(3, 50), tied=st.booleans())
def test_equals_the_correlation_of_mid_ranks(seed: int, count: int, tied: bool) -> None:
    first_N, second_N = np.random.default_rng(seed).normal(0, 3, (2, count))
    if tied:
        first_N = first_N.round()
    if np.ptp(first_N) == 0:
        return
    expected = np.corrcoef(rankdata(first_N), rankdata(second_N))[0, 1]
    assert spearman(first_N, second_N) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("first", "second"), [([1, 2], [2, 1]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [5, 5, 5])])
def test_undefined_with_two_points_or_without_spread(first: list[float], second: list[float]) -> None:
    assert np.isnan(spearman(first, second))


def test_a_rank_correlation_has_limits_and_a_permutation_p_value() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=9)
    y = x + 1.5 * generator.normal(size=9)
    found = rank_correlation([*x, np.nan, 3.0], [*y, 1.0, np.nan])
    assert (found.count, found.rho) == (9, pytest.approx(stats.spearmanr(x, y).statistic))
    exact = stats.permutation_test(
        (x,), lambda a: stats.spearmanr(a, y).statistic, permutation_type="pairings", n_resamples=999,
        random_state=np.random.default_rng(1),
    ).pvalue  # fmt: skip
    assert found.p_value == pytest.approx(exact, abs=0.05)
    assert found.low < found.rho < found.high
    assert found.judged


def test_few_points_are_shown_and_not_judged() -> None:
    found = rank_correlation(range(7), range(7))
    assert found.rho == pytest.approx(1)
    assert not found.judged
    assert not found.significant
    assert np.isnan([found.low, found.high, found.p_value]).all()
    assert np.isnan(rank_correlation([1.0] * 9, range(9)).rho)
