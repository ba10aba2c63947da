"""Maps to annotate, on disk: numbers only, so that a folder of them can be passed on where its texts cannot."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.patterns.segments import ONE, UNKNOWN
from bertsecrets.results.files import atomic_write

MAPS, TABLE = "maps.safetensors", "maps.csv"

ANNOTATED = Path(__file__).parent / "annotated"
"""The annotated maps that come with the package."""

_NUMBERS = ("layer", "head", "example", "length", "segments", "separator")
_TOLERANCE = 2e-3
"""What float16 and another machine's arithmetic can move a weight by."""


@dataclass(frozen=True)
class MapRow:
    """Where a map comes from.

    Args:
        map: Its id, e.g. ``mrpc-minilm-pretrained-s42-checkpoint-l03h07-e112``: run, stage, layer, head, example.
        task, model, init: Of the run.
        stage: ``initial`` (before fine-tuning) or ``checkpoint``.
        layer, head: From 0.
        example: Index in the task's evaluation set, from 0.
        length: Tokens L, special tokens included.
        segments: 1 or 2 sentences.
        separator: Position of the first separator token, which ends the first sentence; -1 where there is none.
        sought: The pattern for which it was taken; empty for a map taken whatever it shows.
    """

    map: str
    task: str
    model: str
    init: str
    stage: str
    layer: int
    head: int
    example: int
    length: int
    segments: int
    separator: int
    sought: str = ""

    @property
    def first_segment(self) -> int:
        """As :func:`~bertsecrets.patterns.segments.first_segments` gives it: tokens of the first of two segments."""
        if self.segments != 2:
            return ONE
        return self.separator + 1 if self.separator >= 0 else UNKNOWN


@dataclass(frozen=True)
class MapSet:
    """Maps and where each comes from.

    Args:
        rows: One for each map, in the order in which they were sampled.
        maps: Id -> weights ``[L, L]`` float16 in 0..1, queries in rows, padding cut off.
    """

    rows: tuple[MapRow, ...] = ()
    maps: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        """The map of an id."""
        return self.maps[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The ids, in order."""
        return tuple(row.map for row in self.rows)

    def add(self, rows: Sequence[MapRow], maps: Mapping[str, Tensor]) -> "MapSet":
        """With more maps; those that are here already stay as they are.

        Raises:
            UserError: If an id is here already with other weights.
        """
        own = dict(self.maps)
        for name in maps.keys() & own.keys():
            same = own[name].shape == maps[name].shape and torch.allclose(
                own[name].float(), maps[name].float(), rtol=0, atol=_TOLERANCE
            )
            if not same:
                raise UserError(
                    f"Map '{name}' is in the annotation folder already with other weights, so that two runs go by one "
                    "name; give labelling.folder=<another folder>."
                )
        new = tuple(row for row in rows if row.map not in own)
        return MapSet((*self.rows, *new), {**{name: map_LL.half() for name, map_LL in maps.items()}, **own})

    def write(self, folder: Path) -> None:
        """Writes ``maps.safetensors`` and ``maps.csv``; a reader of the table finds every map it names."""
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / MAPS) as temporary:
            save_file({name: map_LL.contiguous() for name, map_LL in self.maps.items()}, temporary)
        with atomic_write(folder / TABLE) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([column.name for column in fields(MapRow)])
            writer.writerows(astuple(row) for row in self.rows)

    @classmethod
    def read(cls, folder: Path) -> "MapSet":
        """The maps of a folder; none if there is no such folder yet.

        Raises:
            UserError: If the folder's files cannot be read or do not belong together.
        """
        if not (folder / TABLE).is_file():
            return cls()
        try:
            with (folder / TABLE).open(encoding="utf-8", newline="") as file:
                rows = tuple(_row(values) for values in csv.DictReader(file))
            maps = load_file(folder / MAPS)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise UserError(
                f"Folder '{folder}' cannot be read as annotated maps ({error}); give a folder that "
                "analysis=annotate_patterns made."
            ) from error
        missing = [row.map for row in rows if row.map not in maps]
        if missing:
            raise UserError(f"{folder / MAPS} lacks map '{missing[0]}' of {TABLE}; the two files belong together.")
        for row in rows:
            fits = row.segments in (1, 2) and -1 <= row.separator < row.length
            if not fits or maps[row.map].shape != (row.length, row.length):
                raise UserError(
                    f"Map '{row.map}' of {folder / TABLE} is {' x '.join(map(str, maps[row.map].shape))}, with length "
                    f"{row.length}, {row.segments} segments and separator {row.separator}; expected a square map of that "
                    "length, 1 or 2 segments, and a separator within it or -1: sample the map again."
                )
        return cls(rows, {row.map: maps[row.map] for row in rows})


def _row(values: Mapping[str, str]) -> MapRow:
    numbers = {name: int(values[name]) for name in _NUMBERS}
    texts = {column.name: values[column.name] for column in fields(MapRow) if column.name in values}
    return MapRow(**{**texts, **numbers})  # type: ignore[arg-type]
