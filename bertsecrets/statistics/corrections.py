"""Corrections for multiple comparisons."""

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
