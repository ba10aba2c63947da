"""Rank correlation, and whether it is more than chance."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


def spearman(first_N: ArrayLike, second_N: ArrayLike) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; NaN with fewer than three points or without any spread.

    >>> spearman([1, 2, 3], [10, 20, 40])
    1.0
    """
    first_N, second_N = np.asarray(first_N, np.float64), np.asarray(second_N, np.float64)
    # scipy would warn, and call two points a correlation of 1.
    if len(first_N) < 3 or np.ptp(first_N) == 0 or np.ptp(second_N) == 0:
        return float("nan")
    return float(stats.spearmanr(first_N, second_N).statistic)


FEWEST_POINTS = 8
"""A correlation over fewer points is shown, but not judged."""

_PERMUTATIONS = 9999


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation over the points with both numbers.

    Args:
        rho: The correlation; NaN where undefined.
        low, high: 95 % limits (Fisher's z with the variance of Bonett and Wright 2000, for as many points as ``effective``);
            NaN below ``FEWEST_POINTS`` or four effective points.
        p_value: Two-sided p-value of 9,999 random permutations, the same at every call; NaN below ``FEWEST_POINTS``.
        count: Number of points with both numbers.
        effective: Number of independent points whose correlation would vary as much by chance: ``1 + 1 / variance`` over the
            permutations. Smaller than ``count`` where heads of a layer are alike; NaN below ``FEWEST_POINTS``.
    """

    rho: float
    low: float
    high: float
    p_value: float
    count: int
    effective: float

    @property
    def judged(self) -> bool:
        """Whether there are points enough to judge it."""
        return math.isfinite(self.p_value)

    @property
    def significant(self) -> bool:
        """Whether it differs from 0 at the level of 5 %."""
        return self.judged and self.p_value <= 0.05


def rank_correlation(first: ArrayLike, second: ArrayLike) -> RankCorrelation:
    """Spearman's rank correlation with its limits and p-value; points with NaN are left out.

    Two grids ``[layers, heads]`` are permuted by layers and, within each, by heads (multi-level blocks; Winkler, Webster,
    Vidaurre, Nichols and Smith 2015): heads of one layer resemble each other, so that permuting all heads alike finds too
    many correlations. Layers with unequal numbers of points do not change places. One-dimensional points are exchangeable.

    Args:
        first, second: Numbers of the same points, ``[N]`` or ``[layers, heads]``.

    >>> rank_correlation(range(10), range(10)).p_value
    0.0001
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    defined = np.isfinite(first) & np.isfinite(second)
    count, rho = int(defined.sum()), spearman(first[defined], second[defined])
    if count < FEWEST_POINTS or not math.isfinite(rho):
        return RankCorrelation(rho, math.nan, math.nan, math.nan, count, math.nan)
    x_N, y_N = (stats.rankdata(value[defined]) - (count + 1) / 2 for value in (first, second))
    sizes = defined.sum(axis=1) if defined.ndim == 2 else np.array([count])
    order_PN = _orders(sizes[sizes > 0], np.random.default_rng(0))
    scale = math.sqrt(float(x_N @ x_N) * float(y_N @ y_N))
    chance_P = y_N[order_PN] @ x_N / scale
    # Rounding must not tell equal correlations apart. The observed order counts as one more: p is never 0.
    p_value = float(((np.abs(chance_P) >= abs(rho) - 1e-9).sum() + 1) / (_PERMUTATIONS + 1))
    # The mean square about 0, the correlation without association: layers add a spread of their own, never a shift.
    spread = float((chance_P**2).mean())
    effective = min(1 + 1 / spread, float(count)) if spread else math.nan
    if not effective > 3:
        return RankCorrelation(rho, math.nan, math.nan, p_value, count, effective)
    reach = stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (effective - 3))
    # Fisher's z of 1 is infinite.
    middle = math.atanh(min(max(rho, -1 + 1e-12), 1 - 1e-12))
    return RankCorrelation(rho, math.tanh(middle - reach), math.tanh(middle + reach), p_value, count, effective)


def _orders(sizes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Random orders of points in consecutive blocks, ``[permutations, points]``: blocks of one size change places, and
    the points within each."""
    starts = np.cumsum(sizes) - sizes
    order_PN = np.empty((_PERMUTATIONS, int(sizes.sum())), np.int64)
    for size in np.unique(sizes):
        start_K = starts[sizes == size]
        moved_PK = generator.permuted(np.broadcast_to(start_K, (_PERMUTATIONS, len(start_K))), axis=1)
        for k, start in enumerate(start_K):
            within_PN = generator.permuted(np.broadcast_to(np.arange(size), (_PERMUTATIONS, size)), axis=1)
            order_PN[:, start : start + size] = moved_PK[:, k, None] + within_PN
    return order_PN
