"""Corrections for multiple comparisons: of p-values alone, and of many effects on the same examples; bounds on how many
hypotheses are false.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

LEVEL = 0.05
"""Level of tests of heads, usually as a false discovery rate."""


def holm(p_V: Array) -> Array:
    """P-values adjusted to the family-wise error rate, step-down (Holm 1979)."""
    order_V = np.argsort(p_V)
    count = len(p_V)
    # scipy lacks Holm's method, and statsmodels would be another dependency.
    scaled_V = p_V[order_V] * np.arange(count, 0, -1)
    adjusted_V = np.empty(count)
    adjusted_V[order_V] = np.minimum(np.maximum.accumulate(scaled_V), 1)
    return adjusted_V


def corrected(p: ArrayLike) -> Array:
    """P-values of any shape, adjusted to the false discovery rate (Benjamini and Hochberg 1995) over all defined ones;
    NaN stays NaN.
    """
    p_values = np.asarray(p, np.float64)
    defined = np.isfinite(p_values)
    adjusted = np.full(p_values.shape, np.nan)
    # A sum of probabilities may exceed 1 by rounding.
    adjusted[defined] = scipy.stats.false_discovery_control(np.minimum(p_values[defined], 1))
    return adjusted


_DRAWS = 10_000


def error_correlation(influence_VN: ArrayLike, largest_V: ArrayLike) -> Array:
    """Correlation of the errors of V effects on the same N examples, ``[V, V]``.

    Computed from their influences: effects on the same examples have correlated errors. An effect due to few examples
    gets one more event of the largest size that no other effect shares, as in
    :func:`bertsecrets.statistics.intervals.weighted_limits`: two effects that changed the same example need not change
    the same examples again.

    Args:
        influence_VN: Influence of each example on each effect, as in ``influences``; NaN counts as none.
        largest_V: The largest change of the effect that one example can cause, at least 0.
    """
    share_VN = np.nan_to_num(np.asarray(influence_VN, np.float64)) / np.shape(influence_VN)[-1]
    unseen_V = np.asarray(largest_V, np.float64) ** 2
    covariance_VV = share_VN @ share_VN.T
    variance_V = np.diag(covariance_VV) + unseen_V
    # An effect that cannot change has no error and counts as independent.
    size_V = np.sqrt(np.where(variance_V > 0, variance_V, 1.0))
    correlation_VV = covariance_VV / np.outer(size_V, size_V)
    np.fill_diagonal(correlation_VV, 1.0)
    return np.asarray(correlation_VV)


def joint_draws(correlation_VV: ArrayLike, generator: np.random.Generator, draws: int = _DRAWS) -> Array:
    """Draws from the joint distribution of V standardised errors, ``[V, R]``, each marginally standard normal.

    For many examples, this is the distribution of the Gaussian multiplier bootstrap (Chernozhukov, Chetverikov and Kato
    2013), without a multiplier for every example.
    """
    # Not Cholesky, which needs full rank: effects on the same examples make the matrix singular.
    value_V, vector_VV = np.linalg.eigh(np.asarray(correlation_VV, np.float64))
    # For perfectly correlated errors, rounding leaves eigenvalues just below 0.
    root_VV = vector_VV * np.sqrt(value_V.clip(min=0))
    return np.asarray(root_VV @ generator.standard_normal((len(root_VV), draws)))


def simultaneous_tail(draw_VR: Array, alpha: float) -> float:
    """The tail per limit at which all limits jointly have confidence 1 - ``alpha``.

    The tail beyond the 1 - alpha quantile of the largest absolute draw (max-t; Romano and Wolf 2005). Between alpha / 2
    for perfectly correlated errors and Bonferroni's alpha / (2 V).
    """
    largest_R = np.abs(draw_VR).max(axis=0)
    tail = float(scipy.special.ndtr(-np.quantile(largest_R, 1 - alpha)))
    # The quantile of finitely many draws can exceed the theoretical range.
    return min(max(tail, alpha / (2 * len(draw_VR))), alpha / 2)


def step_down(p_V: ArrayLike, draw_VR: Array) -> Array:
    """One-sided p-values adjusted to the family-wise error rate, step-down, ``[V]``; NaN stays NaN.

    The k-th smallest p-value becomes the probability that the smallest p-value among hypotheses not yet rejected is as
    small (Romano and Wolf 2005; Westfall and Young 1993, section 2.6). Holm's bound (1979) is used where it is smaller
    than the resolution of the draws.

    Args:
        p_V: Marginally valid one-sided p-values of the hypotheses; an effect in the other direction has 1.
        draw_VR: From :func:`joint_draws`.
    """
    p = np.asarray(p_V, np.float64)
    defined_V = np.flatnonzero(np.isfinite(p))
    order_V = defined_V[np.argsort(p[defined_V], kind="stable")]
    # Largest draw among a hypothesis and all with larger p-values.
    remaining_VR = np.maximum.accumulate(draw_VR[order_V[::-1]], axis=0)[::-1]
    threshold_V = scipy.stats.norm.isf(p[order_V])
    beyond_V = (remaining_VR >= threshold_V[:, None]).sum(axis=1)
    estimate_V = (beyond_V + 1) / (draw_VR.shape[1] + 1)
    bonferroni_V = p[order_V] * np.arange(len(order_V), 0, -1)
    adjusted = np.full(p.shape, np.nan)
    # An estimate from draws may be below the p-value itself.
    adjusted_V = np.maximum(np.minimum(estimate_V, bonferroni_V), p[order_V])
    adjusted[order_V] = np.minimum(np.maximum.accumulate(adjusted_V), 1)
    return adjusted


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
    # side="right": Simes' test rejects a p-value on the boundary.
    below_S = np.searchsorted(undecided * p_S, alpha * u_S, side="right")
    return int((1 - u_S + below_S).max())
