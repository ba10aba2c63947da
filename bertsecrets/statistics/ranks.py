"""Rank correlation, and whether it is more than chance."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def spearman(first_N: ArrayLike, second_N: ArrayLike) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; NaN with fewer than three points or without any spread.

    >>> spearman([1, 2, 3], [10, 20, 40])
    1.0
    """
    first_N, second_N = np.asarray(first_N, np.float64), np.asarray(second_N, np.float64)
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
        low, high: 95 % limits (Fisher's z with the variance of Bonett and Wright 2000); NaN below ``FEWEST_POINTS``.
        p_value: Two-sided p-value of 9,999 random permutations, the same at every call; NaN below ``FEWEST_POINTS``.
        count: Number of points with both numbers.
    """

    rho: float
    low: float
    high: float
    p_value: float
    count: int

    @property
    def judged(self) -> bool:
        """Whether there are points enough to judge it."""
        return math.isfinite(self.p_value)

    @property
    def significant(self) -> bool:
        """Whether it differs from 0 at the level of 5 %."""
        return self.judged and self.p_value <= 0.05


def rank_correlation(first_N: ArrayLike, second_N: ArrayLike) -> RankCorrelation:
    """Spearman's rank correlation with its limits and p-value; points with NaN are left out.

    >>> rank_correlation(range(10), range(10)).p_value
    0.0001
    """
    first_N, second_N = np.asarray(first_N, np.float64).ravel(), np.asarray(second_N, np.float64).ravel()
    known_N = np.isfinite(first_N) & np.isfinite(second_N)
    first_N, second_N = first_N[known_N], second_N[known_N]
    count, rho = len(first_N), spearman(first_N, second_N)
    if count < FEWEST_POINTS or not math.isfinite(rho):
        return RankCorrelation(rho, math.nan, math.nan, math.nan, count)
    x_N, y_N = (stats.rankdata(value_N) - (count + 1) / 2 for value_N in (first_N, second_N))
    generator = np.random.default_rng(0)
    shuffled_PN = generator.permuted(np.broadcast_to(y_N, (_PERMUTATIONS, count)), axis=1)
    beyond = (np.abs(shuffled_PN @ x_N) >= abs(float(y_N @ x_N)) - 1e-9).sum()
    reach = stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (count - 3))
    middle = math.atanh(min(max(rho, -1 + 1e-12), 1 - 1e-12))
    low, high = math.tanh(middle - reach), math.tanh(middle + reach)
    return RankCorrelation(rho, low, high, float((beyond + 1) / (_PERMUTATIONS + 1)), count)
