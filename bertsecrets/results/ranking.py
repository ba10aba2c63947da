"""Which heads cannot be told from the highest or lowest one, in a sentence."""

import numpy as np
from numpy.typing import NDArray

from bertsecrets.results.formatting import head_label
from bertsecrets.statistics.student import differs_from_highest

_LEVEL = 0.05
_LISTED = 5

Array = NDArray[np.float64]


def like_the_extreme(
    value_LH: Array, stderr_LH: Array, count_LH: NDArray[np.int64], *, lowest: bool = False, layers: bool = False
) -> str:
    """A sentence on the heads whose means cannot be told from the highest; empty with a single head.

    Args:
        value_LH, stderr_LH, count_LH: Means, their standard errors and numbers of examples.
        lowest: Whether the lowest head is meant instead.
        layers: Whether the rows are whole layers, ``[layers, 1]``.
    """
    finite_LH = np.isfinite(value_LH)
    if finite_LH.sum() < 2:
        return ""
    noun = "layer" if layers else "head"
    top, side = ("lowest", "lower") if lowest else ("top", "higher")
    rank_LH = -value_LH if lowest else value_LH
    p_LH = differs_from_highest(rank_LH, stderr_LH, count_LH)
    if np.isfinite(p_LH).sum() < 2:
        count = int(count_LH[finite_LH].max())
        return f"With {count:,} example{'s' * (count != 1)} the order of the {noun}s cannot be tested."
    like_LH = finite_LH & ~(p_LH < _LEVEL)
    like_LH[np.unravel_index(int(np.nanargmax(rank_LH)), rank_LH.shape)] = False
    total = int(like_LH.sum())
    if not total:
        return f"The {top} {noun} is significantly {side} than every other (standard errors, Holm-corrected)."
    if total == finite_LH.sum() - 1:
        return f"No other {noun} can be told from it (standard errors, Holm-corrected p ≥ {_LEVEL:g})."
    order = np.argsort(np.where(like_LH, -rank_LH, np.inf), axis=None, kind="stable")[: min(total, _LISTED)]
    components = (divmod(int(index), value_LH.shape[1]) for index in order)
    names = ", ".join(head_label(layer, None if layers else head) for layer, head in components)
    more = f" and {total - _LISTED} more" if total > _LISTED else ""
    return f"Indistinguishable from the {top}: {names}{more} (standard errors, Holm-corrected p ≥ {_LEVEL:g})."
