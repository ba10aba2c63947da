"""The five patterns that an attention map can show (Kovaleva et al. 2019, section 4.1 and Figure 1)."""

from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]

_CLEAR = 0.5
"""A head has a pattern if at least this share of its maps shows it."""


class Pattern(str, Enum):
    """The pattern of one map ``[L, L]``; every map has exactly one.

    The order matches keys 1 to 5 of the annotation page and the classifier's outputs.
    """

    VERTICAL = "vertical"
    """Attention mainly to a few tokens, such as [CLS] and [SEP]: vertical lines."""
    DIAGONAL = "diagonal"
    """Attention to the previous, the same or the following tokens."""
    VERTICAL_DIAGONAL = "vertical_diagonal"
    """A mix of the two."""
    BLOCK = "block"
    """Attention within each segment, in inputs of two."""
    HETEROGENEOUS = "heterogeneous"
    """Highly variable, with no distinct structure: anything else."""


PATTERNS: tuple[str, ...] = tuple(pattern.value for pattern in Pattern)
"""The five names; a pattern's number is its index here."""

UNCERTAIN = "uncertain"
"""Label of a map for which the two most probable patterns are too close."""

NAMES: tuple[str, ...] = (*PATTERNS, UNCERTAIN)
"""The columns of shares of patterns."""


def pattern_label(name: str) -> str:
    """A pattern's name on pages."""
    return name.replace("_", " + ")


def dominant_patterns(share_LHC: ArrayLike) -> NDArray[np.int64]:
    """The pattern shown by at least half of a head's maps, ``[layers, heads]``; -1 for none or ``uncertain``.

    Args:
        share_LHC: Shares of :data:`NAMES`.
    """
    shares_LHC = np.nan_to_num(np.asarray(share_LHC, np.float64))
    best_LH = shares_LHC.argmax(-1)
    return np.where((shares_LHC.max(-1) >= _CLEAR) & (best_LH < len(PATTERNS)), best_LH, -1)


def over_seeds(share_RLHC: Array, error_RLHC: Array) -> tuple[Array, Array]:
    """Mean share over heads and seeds, and the half-width of its 95 % interval, ``[patterns]``: over seeds, or over
    examples with one seed.

    All heads see the same examples, and the table does not contain the correlation of their errors; with one seed, the
    mean of their standard errors is an upper bound on the standard error of the mean.
    """
    share_RC: Array = np.nanmean(share_RLHC, axis=(1, 2))
    seeds = len(share_RC)
    if seeds == 1:
        return share_RC[0], 1.96 * np.nanmean(error_RLHC[0], axis=(0, 1))
    # The variance between seeds includes the variance between examples.
    return share_RC.mean(0), stats.t.ppf(0.975, seeds - 1) * share_RC.std(0, ddof=1) / np.sqrt(seeds)
