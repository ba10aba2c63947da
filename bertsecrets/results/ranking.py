"""Which heads cannot be told from the highest one, in a sentence."""

import numpy as np
from numpy.typing import NDArray

from bertsecrets.results.formatting import head_label
from bertsecrets.statistics.student import differs_from_highest

_LEVEL = 0.05
_LISTED = 5

Array = NDArray[np.float64]


def like_the_highest(value_LH: Array, stderr_LH: Array, count_LH: NDArray[np.int64]) -> str:
    """A sentence on the heads whose means cannot be told from the highest; empty with a single head.

    Args:
        value_LH, stderr_LH, count_LH: Means, their standard errors and numbers of examples.
    """
    known_LH = np.isfinite(value_LH)
    if known_LH.sum() < 2:
        return ""
    p_LH = differs_from_highest(value_LH, stderr_LH, count_LH)
    if np.isfinite(p_LH).sum() < 2:
        count = int(count_LH[known_LH].max())
        return f"With {count:,} example{'s' * (count != 1)} the order of the heads cannot be tested."
    like_LH = known_LH & ~(p_LH < _LEVEL)
    like_LH[np.unravel_index(int(np.nanargmax(value_LH)), value_LH.shape)] = False
    total = int(like_LH.sum())
    if not total:
        return "The top head is significantly higher than every other (standard errors, Holm-corrected)."
    order = np.argsort(np.where(like_LH, -value_LH, np.inf), axis=None, kind="stable")[: min(total, _LISTED)]
    names = ", ".join(head_label(*divmod(int(index), value_LH.shape[1])) for index in order)
    more = f" and {total - _LISTED} more" if total > _LISTED else ""
    return f"Indistinguishable from the top: {names}{more} (standard errors, Holm-corrected p ≥ {_LEVEL:g})."
