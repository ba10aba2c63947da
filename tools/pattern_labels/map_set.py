"""Attention maps to label, on disk, without any text."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.patterns.map_features import ONE, UNKNOWN
from bertsecrets.results.files import atomic_write
from tools.pattern_labels.labels import write_csv

MAPS, TABLE = "maps.safetensors", "maps.csv"

_NUMBERS = ("layer", "head", "example", "length", "segments", "separator")
_TOLERANCE = 2e-3
"""Largest difference in a weight from float16 and another machine's arithmetic."""


@dataclass(frozen=True)
class MapRow:
    """Origin of a map.

    Args:
        map: Id from run, stage, layer, head and example, e.g. ``mrpc-minilm-pretrained-s42-checkpoint-l03h07-e112``.
        task, model, init: Task, model and initialisation of the run.
        stage: ``initial`` (before fine-tuning) or ``checkpoint``.
        layer, head: From 0.
        example: Index in the task's evaluation set, from 0.
        length: Number of tokens L, special tokens included.
        segments: Number of segments, 1 or 2.
        separator: Position of the token that ends the first segment; -1 without one.
        sought: Pattern that the map was sampled for; empty for a map from the sample of all maps.
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
        """Tokens in the first of two segments, as in :func:`~bertsecrets.patterns.map_features.first_segments`."""
        if self.segments != 2:
            return ONE
        return self.separator + 1 if self.separator >= 0 else UNKNOWN


@dataclass(frozen=True)
class MapSet:
    """Maps and their origins.

    Args:
        rows: One per map, in the order of sampling.
        maps: Id -> weights ``[L, L]`` float16 in 0..1, queries in rows, without padding.
    """

    rows: tuple[MapRow, ...] = ()
    maps: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        """The map with an id."""
        return self.maps[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The ids, in order."""
        return tuple(row.map for row in self.rows)

    def add(self, rows: Sequence[MapRow], maps: Mapping[str, Tensor]) -> "MapSet":
        """This set with more maps; maps that it holds already are kept unchanged.

        Raises:
            UserError: If the set holds one of the ids with other weights.
        """
        earlier = dict(self.maps)
        for name in maps.keys() & earlier.keys():
            same = earlier[name].shape == maps[name].shape and torch.allclose(
                earlier[name].float(), maps[name].float(), rtol=0, atol=_TOLERANCE
            )
            if not same:
                raise UserError(
                    f"Map '{name}' is already in the annotation folder with other weights: two different runs have the "
                    "same name; give --folder <another folder>."
                )
        new = tuple(row for row in rows if row.map not in earlier)
        return MapSet((*self.rows, *new), {**{name: map_LL.half() for name, map_LL in maps.items()}, **earlier})

    def write(self, folder: Path) -> None:
        """Write ``maps.safetensors``, then ``maps.csv``: the table never names a missing map."""
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / MAPS) as temporary:
            save_file({name: map_LL.contiguous() for name, map_LL in self.maps.items()}, temporary)
        write_csv(folder / TABLE, [column.name for column in fields(MapRow)], map(astuple, self.rows))

    @classmethod
    def read(cls, folder: Path) -> "MapSet":
        """The maps of a folder; empty if it holds no ``maps.csv`` yet.

        Raises:
            UserError: If the files cannot be read or do not match.
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
                "python -m tools.pattern_labels sample wrote."
            ) from error
        missing = [row.map for row in rows if row.map not in maps]
        if missing:
            raise UserError(
                f"{folder / MAPS} has no map '{missing[0]}', which {TABLE} lists; restore the two files that were "
                "written together."
            )
        for row in rows:
            fits = row.segments in (1, 2) and -1 <= row.separator < row.length
            if not fits or maps[row.map].shape != (row.length, row.length):
                raise UserError(
                    f"Map '{row.map}' of {folder / TABLE} is {' x '.join(map(str, maps[row.map].shape))}, with length "
                    f"{row.length}, {row.segments} segments and separator {row.separator}; expected a square map of "
                    "that length, 1 or 2 segments, and a separator below the length or -1: sample the map again."
                )
        return cls(rows, {row.map: maps[row.map] for row in rows})


def _row(values: Mapping[str, str]) -> MapRow:
    numbers = {name: int(values[name]) for name in _NUMBERS}
    texts = {column.name: values[column.name] for column in fields(MapRow) if column.name in values}
    return MapRow(**{**texts, **numbers})  # type: ignore[arg-type]
