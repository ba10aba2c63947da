"""Rank correlation."""

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
