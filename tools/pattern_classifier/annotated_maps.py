"""Annotated maps to train and evaluate the pattern classifier on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from tools.pattern_labels.labels import CLEAR, LABELS, Label, consensus, read_labels, votes
from tools.pattern_labels.map_set import TABLE, MapRow, MapSet

PROJECT_MAPS = Path(__file__).resolve().parents[1] / "pattern_labels" / "annotated_maps"
"""The project's annotated maps."""

_LEAST_HEADS, _LEAST_TASKS = 6, 3


@dataclass(frozen=True)
class AnnotatedMaps:
    """Annotated maps.

    Args:
        rows: Origins of the N maps.
        maps: The maps ``[L, L]``.
        pattern_N: Number of each map's pattern by consensus, int64.
        vote_NP: Share of each map's labels for each pattern, ``[N, 5]``: the training target; disputed maps weigh
            less.
    """

    rows: Sequence[MapRow]
    maps: Sequence[Tensor]
    pattern_N: NDArray[np.int64]
    vote_NP: NDArray[np.float64]

    @property
    def heads(self) -> list[tuple[str, int, int]]:
        """Model, layer and head of each map; a head before and after fine-tuning is one head."""
        return [(row.model, row.layer, row.head) for row in self.rows]

    @property
    def models(self) -> list[str]:
        """The model of each map."""
        return [row.model for row in self.rows]

    @property
    def tasks(self) -> list[str]:
        """The task of each map."""
        return [row.task for row in self.rows]

    @property
    def clear_N(self) -> NDArray[np.bool_]:
        """Whether at least ``CLEAR`` of a map's labels are equal."""
        clear_N: NDArray[np.bool_] = self.vote_NP.max(1) >= CLEAR
        return clear_N

    @property
    def first_segment_N(self) -> NDArray[np.int64]:
        """Tokens in each map's first segment."""
        return np.array([row.first_segment for row in self.rows])


def read_annotated_maps(*folders: Path) -> AnnotatedMaps:
    """The maps of annotation folders with a consensus.

    Raises:
        UserError: If a folder holds no labelled maps, or none of all has a consensus.
    """
    maps = MapSet()
    labels: list[Label] = []
    for folder in folders:
        if not (folder / TABLE).is_file() or not (folder / LABELS).is_file():
            raise UserError(
                f"Folder '{folder}' holds no {TABLE} with {LABELS}; give an annotation folder with imported labels."
            )
        more = MapSet.read(folder)
        maps = maps.add(more.rows, more.maps)
        labels += read_labels(folder)
    pattern_of, pattern_by_pass = consensus(labels), votes(labels)
    rows = [row for row in maps.rows if row.map in pattern_of]
    answers = [[PATTERNS.index(pattern) for pattern in pattern_by_pass[row.map].values()] for row in rows]
    counts = [np.bincount(numbers, minlength=len(PATTERNS)) for numbers in answers]
    count_NP = np.array(counts, np.float64).reshape(-1, len(PATTERNS))
    if not rows:
        raise UserError(
            f"No map in '{', '.join(map(str, folders))}' has a consensus; import labels of at least two passes that "
            "agree."
        )
    return AnnotatedMaps(
        rows,
        [maps[row.map] for row in rows],
        np.array([PATTERNS.index(pattern_of[row.map]) for row in rows], np.int64),
        count_NP / count_NP.sum(1, keepdims=True),
    )


def check_enough_to_train(annotated: AnnotatedMaps) -> None:
    """Check that the maps can be held out by heads and by tasks.

    Raises:
        UserError: If they are of fewer than six heads or three tasks.
    """
    heads, tasks = len(set(annotated.heads)), len(set(annotated.tasks))
    if heads < _LEAST_HEADS or tasks < _LEAST_TASKS:
        raise UserError(
            f"{len(annotated.rows)} maps have a consensus, of {heads} heads and {tasks} tasks; label maps of at least "
            f"{_LEAST_HEADS} heads and {_LEAST_TASKS} tasks, which cross-validation needs."
        )
