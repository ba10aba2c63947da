"""The baseline that the network must beat: three masses of a map and five thresholds."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.scoring import confusion, macro_f1
from bertsecrets.patterns.segments import ONE, UNKNOWN

Array = NDArray[np.float64]

_COLUMNS = 3
_REACH = 1
_GRID = np.arange(0.02, 0.92, 0.02)
_ROUNDS = 4
_STARTS = 6
_NUMBER = {pattern: number for number, pattern in enumerate(PATTERNS)}


def masses(maps: Sequence[Tensor], first_segments: Sequence[int]) -> Array:
    """Column, diagonal and segment mass of maps ``[L, L]``, ``[N, 3]``; 0 is what uniform attention has.

    Column mass: what the three columns hold that receive most. Diagonal mass: the most that three neighbouring
    diagonals hold whose middle is at most two from the main one. Segment mass: what rows keep within their own of two
    segments, 0 for one; of unknown segments, the most for any boundary that leaves three tokens on each side.

    Args:
        maps: The maps.
        first_segments: Of each, as :func:`~bertsecrets.patterns.segments.first_segments` gives them.
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
    """A map shows columns, a diagonal or blocks where their mass reaches a threshold, tried from the top.

    Args:
        both_columns, both_diagonal: For ``vertical_diagonal``.
        block: For ``block``, where the diagonal holds no more.
        diagonal: For ``diagonal``, where columns hold no more.
        columns: For ``vertical``.
    """

    both_columns: float = 0.2
    both_diagonal: float = 0.14
    block: float = 0.18
    diagonal: float = 0.16
    columns: float = 0.16

    def __call__(self, mass_N3: ArrayLike) -> NDArray[np.int64]:
        """The numbers of the patterns."""
        columns_N, diagonal_N, block_N = np.asarray(mass_N3, np.float64).T
        conditions = [
            (columns_N >= self.both_columns) & (diagonal_N >= self.both_diagonal),
            (block_N >= self.block) & (block_N >= diagonal_N),
            (diagonal_N >= self.diagonal) & (diagonal_N >= columns_N),
            columns_N >= self.columns,
        ]
        order = [_NUMBER[name] for name in ("vertical_diagonal", "block", "diagonal", "vertical")]
        return np.select(conditions, order, _NUMBER["heterogeneous"]).astype(np.int64)


def tune(mass_N3: ArrayLike, label_N: ArrayLike, weight_N: ArrayLike, seed: int = 0) -> Rules:
    """The thresholds of the highest weighted macro-F1, by coordinate search from several starts."""
    mass_N3, label_N, weight_N = np.asarray(mass_N3), np.asarray(label_N), np.asarray(weight_N)
    generator = np.random.default_rng(seed)

    def score(thresholds: Sequence[float]) -> float:
        return float(macro_f1(confusion(label_N, Rules(*thresholds)(mass_N3), weight_N)))

    best = list(astuple(Rules()))
    for start in range(_STARTS):
        current = list(astuple(Rules())) if start == 0 else list(generator.choice(_GRID, len(fields(Rules))))
        for _ in range(_ROUNDS):
            for place in range(len(current)):
                tried = [score([*current[:place], each, *current[place + 1 :]]) for each in _GRID]
                current[place] = float(_GRID[int(np.argmax(tried))])
        if score(current) > score(best):
            best = current
    return Rules(*best)
