"""Spearman's correlation against its definition, and where it is not defined."""

from itertools import permutations, product

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
    result = rank_correlation([*x, np.nan, 3.0], [*y, 1.0, np.nan])
    assert (result.count, result.rho) == (9, pytest.approx(stats.spearmanr(x, y).statistic))
    exact = stats.permutation_test(
        (x,), lambda a: stats.spearmanr(a, y).statistic, permutation_type="pairings", n_resamples=999,
        random_state=np.random.default_rng(1),
    ).pvalue  # fmt: skip
    assert result.p_value == pytest.approx(exact, abs=0.05)
    assert result.low < result.rho < result.high
    assert result.judged


def test_few_points_are_shown_and_not_judged() -> None:
    result = rank_correlation(range(7), range(7))
    assert result.rho == pytest.approx(1)
    assert not result.judged
    assert not result.significant
    assert np.isnan([result.low, result.high, result.p_value]).all()
    assert np.isnan(rank_correlation([1.0] * 9, range(9)).rho)


def _all_orders(layers: int, heads: int) -> list[list[int]]:
    """Every order of a grid's points that moves whole layers and the heads within each."""
    orders = []
    for layer_order in permutations(range(layers)):
        for head_orders in product(permutations(range(heads)), repeat=layers):
            orders.append(
                [layer * heads + h for layer, order in zip(layer_order, head_orders, strict=True) for h in order]
            )
    return orders


def test_grids_are_permuted_by_layers_and_within_them() -> None:
    generator = np.random.default_rng(0)
    layer_L1 = generator.normal(size=(3, 1))
    x_LH, y_LH = (layer_L1 + 0.2 * generator.normal(size=(3, 3)) for _ in range(2))
    rho_P = np.array([stats.spearmanr(x_LH.ravel(), y_LH.ravel()[order]).statistic for order in _all_orders(3, 3)])
    correlation = rank_correlation(x_LH, y_LH)
    rho = stats.spearmanr(x_LH.ravel(), y_LH.ravel()).statistic
    assert correlation.p_value == pytest.approx((np.abs(rho_P) >= abs(rho) - 1e-9).mean(), abs=0.015)
    assert correlation.effective == pytest.approx(1 + 1 / (rho_P**2).mean(), rel=0.03)


def test_layers_with_missing_heads_stay_where_they_are() -> None:
    x_LH = np.arange(12.0).reshape(3, 4)
    y_LH = x_LH.copy()
    y_LH[1, 2] = np.nan
    flat = [stats.spearmanr(np.delete(x_LH.ravel(), 6), np.delete(y_LH.ravel(), 6)[order]).statistic for order in (
        [a + h for a, order in zip((0, 4, 7), orders, strict=True) for h in order]
        for orders in product(permutations(range(4)), permutations(range(3)), permutations(range(4)))
    )]  # fmt: skip
    swapped = [stats.spearmanr(np.delete(x_LH.ravel(), 6), np.delete(y_LH.ravel(), 6)[order]).statistic for order in (
        [a + h for a, order in zip((7, 4, 0), orders, strict=True) for h in order]
        for orders in product(permutations(range(4)), permutations(range(3)), permutations(range(4)))
    )]  # fmt: skip
    correlation = rank_correlation(x_LH, y_LH)
    assert correlation.count == 11
    expected = 1 + 1 / np.square(flat + swapped).mean()
    assert correlation.effective == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("layers", "heads"), [(6, 12), (12, 12)])
@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9])
@pytest.mark.slow
def test_heads_of_a_layer_that_are_alike_are_not_taken_for_a_correlation(layers: int, heads: int, alike: float) -> None:
    generator = np.random.default_rng([layers, int(10 * alike)])
    result, flat, covered = 0, 0, 0
    for _ in range(400):
        x_LH, y_LH = (
            np.sqrt(alike) * generator.normal(size=(layers, 1))
            + np.sqrt(1 - alike) * generator.normal(size=(layers, heads))
            for _ in range(2)
        )
        correlation = rank_correlation(x_LH, y_LH)
        result += correlation.significant
        covered += correlation.low <= 0 <= correlation.high
        flat += rank_correlation(x_LH.ravel(), y_LH.ravel()).significant
    assert result / 400 <= 0.08
    assert covered / 400 >= 0.92
    assert alike == 0 or flat / 400 > 0.15
