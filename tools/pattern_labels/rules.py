"""Threshold rules for the five patterns: they propose maps to label, and they are the classifier's baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.map_features import ONE, UNKNOWN

Array = NDArray[np.float64]

_COLUMNS = 3
_REACH = 1
_NUMBER = {pattern: number for number, pattern in enumerate(PATTERNS)}


def masses(maps: Sequence[Tensor], first_segments: Sequence[int]) -> Array:
    """Column, diagonal and segment mass of maps ``[L, L]``, ``[N, 3]``, each minus that of uniform attention.

    Column mass: attention in the three columns that receive most. Diagonal mass: the most attention in three
    neighbouring diagonals with the middle one at most two tokens from the main diagonal. Segment mass: attention within
    the two segments, 0 for one; for unknown segments, the most over all boundaries with three tokens on each side.

    Args:
        maps: The N maps.
        first_segments: Per map, as in :func:`~bertsecrets.patterns.map_features.first_segments`.
    """
    pairs = zip(maps, first_segments, strict=True)
    return np.array([_masses(map_LL.double().numpy(), first) for map_LL, first in pairs])


def _masses(map_LL: Array, first_segment: int) -> tuple[float, float, float]:
    length = len(map_LL)
    received_K = np.sort(map_LL.mean(0))
    columns = received_K[-_COLUMNS:].sum() - _COLUMNS / length
    excess = {
        offset: np.trace(map_LL, offset) / length - (length - abs(offset)) / length**2
        for offset in range(-2 - _REACH, 3 + _REACH)
    }
    diagonal = max(sum(excess[centre + near] for near in range(-_REACH, _REACH + 1)) for centre in range(-2, 3))
    if first_segment == ONE:
        return float(columns), float(diagonal), 0.0
    total_QK = np.zeros((length + 1, length + 1))
    total_QK[1:, 1:] = map_LL.cumsum(0).cumsum(1)
    cut_N = np.arange(3, length - 2) if first_segment == UNKNOWN else np.array([first_segment])
    first_N, whole_N = total_QK[cut_N, cut_N], total_QK[length, length]
    second_N = whole_N - total_QK[cut_N, length] - total_QK[length, cut_N] + first_N
    within_N = (first_N + second_N) / length - (cut_N**2 + (length - cut_N) ** 2) / length**2
    return float(columns), float(diagonal), float(within_N.max())


@dataclass(frozen=True)
class Rules:
    """Thresholds on the masses; the first pattern in this order that fits is taken, else ``heterogeneous``.

    Args:
        both_columns, both_diagonal: Least column and diagonal mass of ``vertical_diagonal``.
        block: Least segment mass of ``block``, which the diagonal mass must not exceed.
        diagonal: Least diagonal mass of ``diagonal``, which the column mass must not exceed.
        columns: Least column mass of ``vertical``.
    """

    both_columns: float = 0.2
    both_diagonal: float = 0.14
    block: float = 0.18
    diagonal: float = 0.16
    columns: float = 0.16

    def __call__(self, mass_N3: ArrayLike) -> NDArray[np.int64]:
        """Numbers of the patterns, ``[N]``, from :func:`masses`."""
        columns_N, diagonal_N, block_N = np.asarray(mass_N3, np.float64).T
        conditions = [
            (columns_N >= self.both_columns) & (diagonal_N >= self.both_diagonal),
            (block_N >= self.block) & (block_N >= diagonal_N),
            (diagonal_N >= self.diagonal) & (diagonal_N >= columns_N),
            columns_N >= self.columns,
        ]
        order = [_NUMBER[name] for name in ("vertical_diagonal", "block", "diagonal", "vertical")]
        return np.select(conditions, order, _NUMBER["heterogeneous"]).astype(np.int64)
