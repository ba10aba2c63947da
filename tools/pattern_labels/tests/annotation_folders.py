"""Sets of random maps, and tables of labels filled in like a spreadsheet."""

import csv
from pathlib import Path

import torch

from tools.pattern_labels.map_set import MapRow, MapSet


def map_set(count: int = 23) -> MapSet:
    generator = torch.Generator().manual_seed(0)
    rows, maps = [], {}
    for i in range(count):
        length, pair = 8 + i, i % 2
        row = MapRow(
            f"toy-s1-initial-l{i % 3:02d}h00-e{i}",
            "toy",
            "tiny",
            "pretrained",
            "initial",
            i % 3,
            0,
            i,
            length,
            1 + pair,
            4,
        )
        rows.append(row)
        maps[row.map] = torch.rand(length, length, generator=generator).softmax(-1)
    return MapSet().add(rows, maps)


def fill(path: Path, patterns: dict[str, str]) -> Path:
    """Fill in a sheet's table like a spreadsheet."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        delimiter = ";" if ";" in file.readline() else ","
        file.seek(0)
        rows = [{**row, "pattern": patterns.get(row["map"], "")} for row in csv.DictReader(file, delimiter=delimiter)]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(rows)
    return path
