"""The joint head table: one row per head with all its numbers."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsecrets.results.files import atomic_write, write_parquet, write_text
from bertsecrets.results.formatting import head_code, number

Grid = NDArray[Any]
"""Numbers or texts ``[layers, heads]``."""

CSV, LATEX, PARQUET = "heads_together.csv", "heads_together.tex", "heads_together.parquet"

_SHOWN = 10
"""Columns shown at first; readers can add others."""

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\N{MINUS SIGN}": "$-$", "±": r"$\pm$", "·": r"$\cdot$",
    "\N{EN DASH}": "--", "→": r"$\to$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True)
class HeadColumn:
    """A column of the joint table.

    Args:
        experiment: The experiment's name.
        title: Its title.
        name: Name of the column.
        label: Heading.
        value_LH: Numbers ``[layers, heads]``, or texts.
        effects: Whether the numbers are changes of a score.
    """

    experiment: str
    title: str
    name: str
    label: str
    value_LH: Grid
    effects: bool = False

    @property
    def key(self) -> str:
        """Name of the column in files, e.g. ``drift/cosine``."""
        return f"{self.experiment}/{self.name}"

    @property
    def is_number(self) -> bool:
        """Whether it has numbers, rather than texts."""
        return bool(self.value_LH.dtype.kind == "f")

    @cached_property
    def texts(self) -> list[str]:
        """Text of each head, in order of layer and head."""
        return [number(float(value)) if self.is_number else str(value) for value in self.value_LH.ravel()]


@dataclass(frozen=True)
class HeadsTogether:
    """One row for each head, which readers sort, filter and open in the viewer.

    Args:
        columns: At least one; all of one shape. Those of an experiment follow one another.
        verdicts: Verdict on each head, as in :mod:`bertsecrets.results.verdicts`, the most needed head first; empty for
            none.
    """

    columns: Sequence[HeadColumn]
    verdicts: Mapping[tuple[int, int], str] = field(default_factory=dict)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Layer and head of each row."""
        layers, heads = self.columns[0].value_LH.shape
        return [(layer, head) for layer in range(layers) for head in range(heads)]

    @cached_property
    def main(self) -> list[HeadColumn]:
        """The texts and the first numbers of each experiment: as many as fit on a page."""
        numbers: Counter[str] = Counter()
        rank = {}
        for column in self.columns:
            numbers[column.experiment] += column.is_number
            # Texts come first, then every experiment's first number, then its second one.
            rank[column.key] = numbers[column.experiment] if column.is_number else 0
        shown = sorted(rank, key=lambda key: rank[key])[:_SHOWN]
        return [column for column in self.columns if column.key in shown]

    @property
    def ranks(self) -> dict[tuple[int, int], int]:
        """Place of each head in the order of need, from 0; heads without a verdict are left out."""
        return {head: rank for rank, head in enumerate(self.verdicts)}

    @property
    def groups(self) -> dict[str, bool]:
        """Title of each experiment, and whether the page shows any of its columns at first."""
        shown = {column.title for column in self.main}
        return {column.title: column.title in shown for column in self.columns}

    def write(self, folder: Path) -> None:
        """Write ``heads_together.csv`` and ``.parquet``, every column in full precision, and ``.tex``, the main ones.

        Raises:
            UserError: If the disk is full.
        """
        # The module csv ends lines itself.
        with atomic_write(folder / CSV) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["layer", "head", *(column.key for column in self.columns)])
            flat = [column.value_LH.ravel().tolist() for column in self.columns]
            for row, (layer, head) in enumerate(self.heads):
                writer.writerow([layer, head, *(_cell(values[row]) for values in flat)])
        write_text(folder / LATEX, self.latex())
        write_parquet(folder / PARQUET, self.arrow())

    def arrow(self) -> pa.Table:
        """Every column: ``layer`` and ``head`` as int32, numbers as float64 (null where undefined), texts as
        strings.
        """
        columns = {
            name: pa.array([head[axis] for head in self.heads], pa.int32())
            for axis, name in enumerate(("layer", "head"))
        }
        for column in self.columns:
            # An undefined number is null, as its cell in the CSV is empty.
            columns[column.key] = pa.array(column.value_LH.ravel().tolist(), from_pandas=True)
        return pa.table(columns)

    def latex(self) -> str:
        """The main columns as a ``longtable`` with ``booktabs`` rules."""
        columns = self.main
        kinds = "".join("r" if column.is_number else "l" for column in columns)
        header = " & ".join(["head", *(_escape(f"{column.title}: {column.label}") for column in columns)])
        texts = [column.texts for column in columns]
        rows = [
            " & ".join([head_code(layer, head), *(_escape(cells[row]) for cells in texts)]) + r" \\"
            for row, (layer, head) in enumerate(self.heads)
        ]
        lines = [
            "% needs \\usepackage{booktabs,longtable}",
            f"\\begin{{longtable}}{{l{kinds}}}",
            r"\toprule",
            f"{header} \\\\",
            r"\midrule",
            r"\endhead",
            *rows,
            r"\bottomrule",
            r"\end{longtable}",
        ]
        return "\n".join(lines) + "\n"


def _cell(value: float | str) -> float | str:
    return "" if isinstance(value, float) and not np.isfinite(value) else value


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
