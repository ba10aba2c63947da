"""Bounds on the number of false hypotheses by closed testing, simultaneous over all sets."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def largest_undecided(p_V: ArrayLike, alpha: float) -> int:
    """Size of the largest set of hypotheses that Simes' test does not reject; 0 if it rejects every set (Hommel 1988).

    Args:
        p_V: P-values; NaN counts as 1.
        alpha: Level of the test, between 0 and 1.
    """
    sorted_V = np.sort(np.nan_to_num(np.asarray(p_V, np.float64), nan=1.0))
    for size in range(len(sorted_V), 0, -1):
        # Among all sets of this size, the set of the largest p-values is the hardest to reject.
        if (size * sorted_V[-size:] > alpha * np.arange(1, size + 1)).all():
            return size
    return 0


def least_false(p_V: ArrayLike, alpha: float, subset_V: ArrayLike | None = None) -> int:
    """Lower confidence bound on the number of false hypotheses with confidence 1 - ``alpha``, simultaneous over all
    sets.

    Closed testing (Goeman and Solari 2011, section 2) with Simes' test, by the shortcut of Goeman, Meijer, Krebs and
    Solari (2019, section 3): ``max_u 1 - u + #{v: h p_v <= u alpha}`` over u = 1, 2, ..., h of
    :func:`largest_undecided`. A set may be chosen by its p-values. Simes' inequality holds for p-values that are
    independent or positively dependent (Sarkar 1998), such as one-sided ones of normal errors with correlations of at
    least 0; negative correlations exceed alpha by little (Samuel-Cahn 1996).

    Args:
        p_V: P-values, each valid by itself; NaN counts as 1.
        alpha: Probability with which any of the bounds may fail, between 0 and 1.
        subset_V: Mask of the hypotheses in the set, bool; None for all.
    """
    p = np.nan_to_num(np.asarray(p_V, np.float64), nan=1.0)
    p_S = np.sort(p if subset_V is None else p[np.asarray(subset_V, bool)])
    # The maximum over no hypotheses is undefined.
    if not len(p_S):
        return 0
    undecided = largest_undecided(p, alpha)
    u_S = np.arange(1, len(p_S) + 1)
    # A p-value on the boundary is rejected, as in Simes' test, hence side="right".
    below_S = np.searchsorted(undecided * p_S, alpha * u_S, side="right")
    return int((1 - u_S + below_S).max())
