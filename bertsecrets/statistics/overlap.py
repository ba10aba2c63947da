"""Test whether two sets of heads overlap more than by chance, given their number of heads in each layer."""

from functools import reduce

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def overlap_by_layer(first_LH: ArrayLike, second_LH: ArrayLike) -> tuple[int, float, float]:
    """Number of heads in both sets, its expectation if heads are drawn at random in each layer, and a two-sided
    p-value.

    The exact test for several 2 by 2 tables: the number in both is a sum of hypergeometric variables, one per layer;
    numbers no more likely than the observed one count (Mehta, Patel and Gray 1985). With one layer it is Fisher's exact
    test.

    Args:
        first_LH, second_LH: Members of the sets, boolean ``[layers, heads]``.
    """
    first_LH, second_LH = np.asarray(first_LH, bool), np.asarray(second_LH, bool)
    heads = first_LH.shape[1]
    of_layers = [
        stats.hypergeom(heads, first, second).pmf(np.arange(heads + 1))
        for first, second in zip(first_LH.sum(1), second_LH.sum(1), strict=True)
    ]
    chance_K = reduce(np.convolve, of_layers)
    both = int((first_LH & second_LH).sum())
    # Rounding must not separate equally likely numbers.
    p = float(chance_K[chance_K <= chance_K[both] * (1 + 1e-7)].sum())
    return both, float(chance_K @ np.arange(len(chance_K))), min(p, 1.0)
