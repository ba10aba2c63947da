"""Student's t test from a mean and its standard error."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertsecrets.statistics.corrections import holm

Array = NDArray[np.float64]


def mean_limits(value_NV: ArrayLike, alpha: float) -> tuple[Array, Array, Array]:
    """Means over N numbers and their limits, which hold with probability 1 - ``alpha``, ``[V]`` each; N is at least 2."""
    value = np.asarray(value_NV, np.float64)
    mean_V, count = value.mean(0), len(value)
    reach_V = stats.t.isf(alpha / 2, count - 1) * value.std(0, ddof=1) / np.sqrt(count)
    return mean_V, mean_V - reach_V, mean_V + reach_V


def mean_exceeds_zero(mean: ArrayLike, stderr: ArrayLike, count: ArrayLike) -> Array:
    """One-sided p-values of a mean of ``count`` numbers being 0 or less; NaN as for :func:`mean_differs_from_zero`."""
    half = mean_differs_from_zero(mean, stderr, count) / 2
    return np.where(np.asarray(mean) > 0, half, 1 - half)


def mean_differs_from_zero(mean: ArrayLike, stderr: ArrayLike, count: ArrayLike) -> Array:
    """Two-sided p-values of a mean of ``count`` numbers being 0; NaN with fewer than two, or where it is undefined.

    Without any spread the answer is certain: 1 where the mean is 0 and 0 elsewhere.
    """
    mean, stderr, count = (np.asarray(values, np.float64) for values in (mean, stderr, count))
    with np.errstate(invalid="ignore", divide="ignore"):
        p = 2 * stats.t.sf(np.abs(mean) / stderr, count - 1)
    p = np.where((stderr == 0) & (count > 1), np.where(mean == 0, 1.0, 0.0), p)
    return np.where((count > 1) & np.isfinite(mean), p, np.nan)


def differs_from_highest(mean: ArrayLike, stderr: ArrayLike, count: ArrayLike) -> Array:
    """P-values of each mean equalling the highest one, from the means alone, in the shape of ``mean``.

    Means over the same examples depend on each other in an unknown way: the standard error of a difference is taken as the
    sum of both, which it cannot exceed. Two-sided t tests with the degrees of freedom of the smaller sample, adjusted by
    Holm's method over the others. 1 for the highest itself; NaN where it cannot be tested.

    Args:
        mean, stderr, count: Means, their standard errors, and how many numbers they are of; a NaN is left out.
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
