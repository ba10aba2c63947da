"""Student's t test from a mean and its standard error."""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from bertsecrets.statistics.corrections import holm

Array = NDArray[np.float64]


def mean_limits(value_NV: ArrayLike, alpha: float) -> tuple[Array, Array, Array]:
    """Means over N numbers and their limits with confidence 1 - ``alpha``, ``[V]`` each; N is at least 2."""
    value = np.asarray(value_NV, np.float64)
    mean_V, count = value.mean(0), len(value)
    reach_V = scipy.stats.t.isf(alpha / 2, count - 1) * value.std(0, ddof=1) / np.sqrt(count)
    return mean_V, mean_V - reach_V, mean_V + reach_V


def limits_of_all(mean: ArrayLike, stderr: ArrayLike, count: ArrayLike, alpha: float = 0.05) -> tuple[Array, Array]:
    """Simultaneous limits of means with joint confidence 1 - ``alpha``, in the shape of ``mean``.

    They remain valid for a selected extreme. Student's t at the level of Šidák (1967), which is valid for two-sided
    limits under any correlation of the means. NaN with fewer than two numbers.

    Args:
        mean, stderr, count: Means, their standard errors, and sample sizes; NaN is ignored.
        alpha: Probability that any of the limits fails.
    """
    mean, stderr, count = (np.asarray(values, np.float64) for values in (mean, stderr, count))
    means = max(int((np.isfinite(mean) & np.isfinite(stderr)).sum()), 1)
    reach = scipy.stats.t.isf((1 - (1 - alpha) ** (1 / means)) / 2, count - 1) * stderr
    return mean - reach, mean + reach


def mean_rises(value_NV: ArrayLike) -> Array:
    """One-sided p-values of means being 0 or less, from N >= 2 numbers each, ``[V]``.

    Student's t test, which is conservative for numbers skewed to the right. Numbers skewed to the left may lack the
    rare large falls that would lower their mean: one fall as large as the largest change is added, and t is corrected
    for the remaining skewness (Hall 1992). If a few examples dominate, this comes close to the level but slightly
    exceeds it (simulated in ``benchmarks/procedures.py``).
    """
    value_NV = np.asarray(value_NV, np.float64)
    count = len(value_NV)
    t_V, skewness_V = _studentised(value_NV)
    guarded_V, left_V = _studentised(np.concatenate([value_NV, -np.abs(value_NV).max(0, keepdims=True)]))
    with np.errstate(invalid="ignore"):
        corrected_V = (
            guarded_V
            + left_V * guarded_V**2 / (3 * np.sqrt(count))
            + left_V**2 * guarded_V**3 / (27 * count)
            + left_V / (6 * np.sqrt(count))
        )
    t_V = np.where(skewness_V < 0, np.minimum(guarded_V, np.where(left_V < 0, corrected_V, guarded_V)), t_V)
    return np.asarray(scipy.stats.t.sf(t_V, count - 1))


def _studentised(value_NV: Array) -> tuple[Array, Array]:
    """Student's t of a mean of 0, and the skewness, ``[V]`` each; equal numbers give an infinite t with their sign, and
    skewness 0.
    """
    mean_V, count = value_NV.mean(0), len(value_NV)
    spread_V = value_NV.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness_V = ((value_NV - mean_V) ** 3).mean(0) / spread_V**3
        t_V = mean_V / spread_V * np.sqrt(count)
    return np.nan_to_num(t_V, nan=-np.inf, posinf=np.inf, neginf=-np.inf), np.nan_to_num(skewness_V)


def ratio_limits(
    top: float, bottom: float, top_variance: float, bottom_variance: float, covariance: float, count: int
) -> tuple[float, float] | None:
    """95 % limits of the ratio of two means over the same examples (Fieller 1954); None if the lower mean may be 0.

    The ratios R for which a t test does not reject a mean of 0 for top - R bottom.

    Args:
        top, bottom: The means.
        top_variance, bottom_variance, covariance: Variances and covariance of the means, not of the examples.
        count: Number of examples.
    """
    square = float(scipy.stats.t.ppf(0.975, count - 1)) ** 2
    # If not above 0, the lower mean may be 0 and the set of ratios is unbounded.
    leading = bottom**2 - square * bottom_variance
    if leading <= 0:
        return None
    middle, last = bottom * top - square * covariance, top**2 - square * top_variance
    reach = math.sqrt(max(middle**2 - leading * last, 0.0))
    return (middle - reach) / leading, (middle + reach) / leading


def mean_exceeds_zero(mean: ArrayLike, stderr: ArrayLike, count: ArrayLike) -> Array:
    """One-sided p-values of a mean of ``count`` numbers being 0 or less; NaN as for :func:`mean_differs_from_zero`."""
    half = mean_differs_from_zero(mean, stderr, count) / 2
    return np.where(np.asarray(mean) > 0, half, 1 - half)


def mean_differs_from_zero(mean: ArrayLike, stderr: ArrayLike, count: ArrayLike) -> Array:
    """Two-sided p-values of a mean of ``count`` numbers being 0; NaN with fewer than two, or where it is undefined.

    Without variation the result is certain: 1 where the mean is 0 and 0 elsewhere.
    """
    mean, stderr, count = (np.asarray(values, np.float64) for values in (mean, stderr, count))
    with np.errstate(invalid="ignore", divide="ignore"):
        p = 2 * scipy.stats.t.sf(np.abs(mean) / stderr, count - 1)
    p = np.where((stderr == 0) & (count > 1), np.where(mean == 0, 1.0, 0.0), p)
    return np.where((count > 1) & np.isfinite(mean), p, np.nan)


def differs_from_highest(mean: ArrayLike, stderr: ArrayLike, count: ArrayLike) -> Array:
    """P-values for each mean being equal to the highest, from the means only, in the shape of ``mean``.

    Means over the same examples have an unknown correlation, so the standard error of a difference is replaced by its
    upper bound, the sum of both. Two-sided t tests with the degrees of freedom of the smaller sample, adjusted by
    Holm's method over the others. 1 for the highest itself; NaN if not testable.

    Args:
        mean, stderr, count: Means, their standard errors, and sample sizes; NaN is ignored.
    """
    mean, stderr, count = (np.asarray(values, np.float64) for values in (mean, stderr, count))
    p = np.full(mean.shape, np.nan)
    if not np.isfinite(mean).any():
        return p
    top = np.unravel_index(int(np.nanargmax(mean)), mean.shape)
    raw = mean_differs_from_zero(mean[top] - mean, stderr[top] + stderr, np.minimum(count, count[top]))
    raw[top] = np.nan
    tested = np.isfinite(raw)
    p[tested] = holm(raw[tested])
    p[top] = 1.0
    return p
