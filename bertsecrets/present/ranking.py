"""Which heads do not differ significantly from the highest or lowest, as a sentence."""

import numpy as np
from numpy.typing import NDArray

from bertsecrets.results.formatting import counted, head_label, with_limits
from bertsecrets.results.views import LEVEL
from bertsecrets.statistics.student import differs_from_highest, limits_of_all

_LISTED = 5

Array = NDArray[np.float64]


def picked(
    head: tuple[int, int],
    value_LH: Array,
    stderr_LH: Array,
    count_LH: NDArray[np.int64],
    *,
    bounds: tuple[float, float] | None = None,
    columns: int = 1,
    digits: int = 3,
) -> str:
    """The mean of a head selected among all, with simultaneous 95 % limits over all heads.

    Args:
        head: Layer and head.
        value_LH, stderr_LH, count_LH: Means, their standard errors and numbers of examples of all heads.
        bounds: The smallest and the largest possible mean; None if there are none.
        columns: Number of columns it was selected from.
        digits: Digits after the decimal point.
    """
    limits = limits_of_all(value_LH, stderr_LH, count_LH, LEVEL / columns)
    low, high = (float(limit_LH[head]) for limit_LH in limits)
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return with_limits(float(value_LH[head]), low, high, digits)


def like_the_extreme(
    value_LH: Array, stderr_LH: Array, count_LH: NDArray[np.int64], *, lowest: bool = False, layers: bool = False
) -> str:
    """A sentence on the heads whose means do not differ significantly from the highest; empty with a single head.

    Args:
        value_LH, stderr_LH, count_LH: Means, their standard errors and numbers of examples.
        lowest: Whether to compare with the lowest head instead.
        layers: Whether the rows are whole layers, ``[layers, 1]``.
    """
    if np.isfinite(value_LH).sum() < 2:
        return ""
    rank_LH = -value_LH if lowest else value_LH
    top, side = ("lowest", "lower") if lowest else ("top", "higher")
    return ties_in_words(
        rank_LH,
        differs_from_highest(rank_LH, stderr_LH, count_LH),
        count_LH,
        tests="standard errors",
        ahead=f"The {top} {'layer' if layers else 'head'} is significantly {side} than every other",
        top=top,
        layers=layers,
    )


def ties_in_words(
    rank_LH: Array,
    p_LH: Array,
    count_LH: NDArray[np.int64],
    *,
    tests: str,
    ahead: str,
    top: str = "top",
    layers: bool = False,
) -> str:
    """A sentence on the heads that do not differ significantly from the first.

    Args:
        rank_LH: Values that rank the heads, highest first; NaN for unranked heads.
        p_LH: Corrected p-values for equality of each head with the first; NaN if not testable.
        count_LH: Numbers of examples.
        tests: The test behind the p-values.
        ahead: The sentence if every other head is significantly behind the first.
        top: Name of the end of the order.
        layers: Whether the rows are whole layers, ``[layers, 1]``.
    """
    noun = "layer" if layers else "head"
    finite_LH = np.isfinite(rank_LH)
    others_LH = finite_LH.copy()
    others_LH[np.unravel_index(int(np.nanargmax(rank_LH)), rank_LH.shape)] = False
    if not np.isfinite(p_LH[others_LH]).any():
        count = int(count_LH[finite_LH].max())
        return f"With {counted(count, 'example')} the order of the {noun}s cannot be tested."
    like_LH = others_LH & ~(p_LH < LEVEL)
    total = int(like_LH.sum())
    if not total:
        return f"{ahead} ({tests}, Holm-corrected)."
    if total == others_LH.sum():
        return f"No other {noun} differs significantly from it ({tests}, Holm-corrected p ≥ {LEVEL:g})."
    order = np.argsort(np.where(like_LH, -rank_LH, np.inf), axis=None, kind="stable")[: min(total, _LISTED)]
    components = (divmod(int(index), rank_LH.shape[1]) for index in order)
    names = ", ".join(head_label(layer, None if layers else head) for layer, head in components)
    more = f" and {total - _LISTED} more" if total > _LISTED else ""
    return f"Not significantly different from the {top}: {names}{more} ({tests}, Holm-corrected p ≥ {LEVEL:g})."
