"""Corrections for testing many variants at once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def benjamini_hochberg(p_V: Array) -> Array:
    """P-values adjusted to the false discovery rate (Benjamini and Hochberg 1995)."""
    order_V = np.argsort(p_V)[::-1]
    count = len(p_V)
    scaled_V = p_V[order_V] * count / np.arange(count, 0, -1)
    adjusted_V = np.empty(count)
    adjusted_V[order_V] = np.minimum(np.minimum.accumulate(scaled_V), 1)
    return adjusted_V


def holm(p_V: Array) -> Array:
    """P-values adjusted to the family-wise error rate, step-down (Holm 1979)."""
    order_V = np.argsort(p_V)
    count = len(p_V)
    scaled_V = p_V[order_V] * np.arange(count, 0, -1)
    adjusted_V = np.empty(count)
    adjusted_V[order_V] = np.minimum(np.maximum.accumulate(scaled_V), 1)
    return adjusted_V


def corrected(p: ArrayLike) -> Array:
    """P-values adjusted to the false discovery rate over all that are defined (Benjamini and Hochberg 1995)."""
    given = np.asarray(p, np.float64)
    known = np.isfinite(given)
    found = np.full(given.shape, np.nan)
    found[known] = benjamini_hochberg(given[known])
    return found
