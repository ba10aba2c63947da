"""Spearman's correlation against its definition, and where it is not defined."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from bertsecrets.statistics.ranks import spearman


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
