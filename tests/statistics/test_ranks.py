"""Spearman's correlation against its definition, and where it is not defined."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import rankdata

from bertsecrets.statistics.ranks import agreement, rank_correlation, spearman, spearman_within


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


def _orders_in_layers(sizes: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every order of heads within layers of so many heads each: of each layer, its heads."""
    return ([*map(list, orders)] for orders in product(*(permutations(range(size)) for size in sizes)))


def test_the_total_of_grids_is_tested_against_layers_shifted_in_a_circle() -> None:
    generator = np.random.default_rng(0)
    layer_L1 = generator.normal(size=(4, 1))
    x_LH, y_LH = (layer_L1 + 0.4 * generator.normal(size=(4, 3)) for _ in range(2))
    x_LH[2, 1] = np.nan
    defined_LH = np.isfinite(x_LH)
    chance = []
    for layers in ([(start + step * layer) % 4 for layer in range(4)] for start in range(4) for step in (-1, 1)):
        for orders in _orders_in_layers((3, 3, 2, 3)):
            heads = [np.flatnonzero(row)[order] for row, order in zip(defined_LH, orders, strict=True)]
            # Heads without both numbers last, as when they are compared.
            ranked = np.full((4, 3), np.nan)
            ranked[defined_LH] = rankdata(y_LH[defined_LH])
            moved = np.full((4, 3), np.nan)
            for row, layer in zip(moved, layers, strict=True):
                row[: len(heads[layer])] = ranked[layer][heads[layer]]
            of_x = np.full((4, 3), np.nan)
            of_x[defined_LH] = rankdata(x_LH[defined_LH])
            of_x[2, 1:] = of_x[2, 2], np.nan
            both = np.isfinite(of_x) & np.isfinite(moved)
            chance.append(np.corrcoef(of_x[both], moved[both])[0, 1])
    rho = stats.spearmanr(x_LH[defined_LH], y_LH[defined_LH]).statistic
    total = rank_correlation(x_LH, y_LH)
    assert (total.rho, total.count) == (pytest.approx(rho), 11)
    assert total.p_value == pytest.approx((np.abs(chance) >= abs(rho) - 1e-9).mean(), abs=0.015)
    assert total.effective == pytest.approx(min(1 + 1 / np.square(chance).mean(), 11), rel=0.03)
    assert total.claim == total.within


def test_heads_are_permuted_within_layers() -> None:
    generator = np.random.default_rng(1)
    x_LH = generator.normal(size=(3, 4))
    y_LH = x_LH + generator.normal(size=(3, 4))
    y_LH[1, 2] = np.nan
    rows = [(x_H[np.isfinite(y_H)], y_H[np.isfinite(y_H)]) for x_H, y_H in zip(x_LH, y_LH, strict=True)]

    def pooled(orders: Sequence[Sequence[int]]) -> float:
        a, b = (np.concatenate(parts) for parts in zip(*(
            (rankdata(x_H) - rankdata(x_H).mean(), rankdata(y_H)[order] - rankdata(y_H).mean())
            for (x_H, y_H), order in zip(rows, orders, strict=True)
        ), strict=True))  # fmt: skip
        return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))

    rho = pooled([range(len(x_H)) for x_H, _ in rows])
    chance = np.array([pooled(orders) for orders in _orders_in_layers((4, 3, 4))])
    within = rank_correlation(x_LH, y_LH).within
    assert (within.rho, within.count) == (pytest.approx(rho), 11)
    assert within.p_value == pytest.approx((np.abs(chance) >= abs(rho) - 1e-9).mean(), abs=0.015)
    assert within.effective == pytest.approx(1 + 1 / (chance**2).mean(), rel=0.03)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), layers=st.integers(1, 6), heads=st.integers(3, 8))
def test_the_correlation_within_layers_is_the_mean_of_theirs_whatever_depth_does(
    seed: int, layers: int, heads: int
) -> None:
    generator = np.random.default_rng(seed)
    x_LH, y_LH = generator.normal(size=(2, layers, heads))
    by_layer = [stats.spearmanr(x_H, y_H).statistic for x_H, y_H in zip(x_LH, y_LH, strict=True)]
    assert spearman_within(x_LH, y_LH) == pytest.approx(np.mean(by_layer), abs=1e-12)
    profile_L1, scale_L1 = generator.normal(0, 5, (layers, 1)), generator.uniform(0.1, 9, (layers, 1))
    assert spearman_within(profile_L1 + scale_L1 * x_LH, y_LH - profile_L1) == pytest.approx(np.mean(by_layer))


def test_one_number_a_layer_cannot_be_told_from_depth() -> None:
    correlation = rank_correlation(np.arange(12.0)[:, None], np.arange(12.0)[:, None])
    # Of 24 shifts and directions one gives 1 and one -1.
    assert correlation.p_value == pytest.approx(1 / 12, abs=0.01)
    assert (correlation.judged, correlation.significant) == (False, False)


@pytest.mark.parametrize(("layers", "heads"), [(6, 12), (12, 12)])
@pytest.mark.parametrize("depth", ["alike", "smooth", "trend"])
@pytest.mark.slow
def test_what_two_numbers_owe_to_depth_is_not_called_a_correlation(layers: int, heads: int, depth: str) -> None:
    generator = np.random.default_rng([layers, len(depth)])
    place_L = np.arange(layers)
    smooth_LL = np.linalg.cholesky(np.exp(-((place_L[:, None] - place_L) ** 2) / 8) + 1e-6 * np.eye(layers))
    found, total, covered = 0, 0, 0
    for _ in range(200):
        grids = []
        for _ in range(2):
            normal_L = generator.normal(size=layers)
            profiles = {"alike": normal_L, "smooth": smooth_LL @ normal_L, "trend": 1.7 * stats.zscore(place_L)}
            grids.append(profiles[depth][:, None] + generator.normal(size=(layers, heads)))
        correlation = rank_correlation(*grids)
        found += correlation.significant
        covered += correlation.within.low <= 0 <= correlation.within.high
        total += correlation.p_value <= 0.05
    assert found / 200 <= 0.09
    assert covered / 200 >= 0.91
    # No order of a few layers tells a trend that both have from a correlation.
    assert (total / 200 > 0.15) == (depth == "trend")


def test_the_interval_of_an_agreement_is_a_jackknife_over_layers() -> None:
    generator = np.random.default_rng(3)
    value_GLH = generator.normal(size=(5, 4)) + 0.7 * generator.normal(size=(3, 5, 4))
    value_GLH[1, 2, 3] = np.nan

    def mean(layers: Sequence[int]) -> float:
        pairs = ((0, 1), (0, 2), (1, 2))
        points = [(layer, head) for layer in layers for head in range(4) if (layer, head) != (2, 3)]
        return float(np.mean([
            stats.spearmanr(*([value_GLH[(grid, *point)] for point in points] for grid in pair)).statistic
            for pair in pairs
        ]))  # fmt: skip

    z_L = [np.arctanh(mean([layer for layer in range(5) if layer != out])) for out in range(5)]
    stderr = np.sqrt(4 / 5 * sum((z - np.mean(z_L)) ** 2 for z in z_L))
    result = agreement(value_GLH, 0.3)
    assert result.rho == pytest.approx(mean(range(5)))
    ends = np.tanh(np.arctanh(result.rho) + np.array([-1, 1]) * stats.t.ppf(0.975, 4) * stderr)
    assert (result.low, result.high) == pytest.approx(tuple(ends))
    reached = (np.arctanh(result.rho) - np.arctanh(0.3)) / stderr
    assert result.p_value == pytest.approx(2 * stats.t.cdf(-abs(reached), 4))
    assert np.isnan([agreement(value_GLH[:, :2]).low, agreement(value_GLH[:, :2]).p_value]).all()
    assert agreement(np.repeat(value_GLH[:1], 2, axis=0)).rho == pytest.approx(1)
