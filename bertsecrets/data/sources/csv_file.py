"""Read rows from a CSV file of the user's own."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_warn

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import (
    LONGEST_TEXT,
    TRAIN,
    VALIDATION,
    check_length,
    column_index,
    numbered_lines,
    read_score,
)
from bertsecrets.data.task import CsvLayout, Task
from bertsecrets.errors import UserError, choices
from bertsecrets.settings import shown

_SEPARATORS = (",", ";", "\t")

_NAMED = 5
"""Classes that a note names."""


@dataclass(frozen=True)
class CsvRows:
    """The rows of a CSV file.

    Args:
        fields: The wanted fields of each row, stripped, none of them empty.
        lines: The line at which each row ends, from 1.
        skipped: The number of rows left out.
    """

    fields: list[tuple[str, ...]]
    lines: list[int]
    skipped: int


def read_csv(path: Path, columns: Sequence[str], skip_bad_rows: bool = False) -> CsvRows:
    """Read columns of a CSV file in UTF-8, with a header; the separator is a comma, a semicolon or a tab.

    Args:
        path: The file.
        columns: Names in the header.
        skip_bad_rows: Leave out rows with another number of fields than the header and rows with an empty cell.

    Raises:
        UserError: If the file cannot be read as such, lacks a column, has a bad row, or has no rows.
    """
    fields: list[tuple[str, ...]] = []
    lines: list[int] = []
    skipped = 0
    rows = _rows(path)
    header, _ = next(rows, ([], 0))
    indices = [column_index(path, header, name, " (set data.text and data.label)") for name in columns]
    for row, line in rows:
        problem = _problem(row, header, indices)
        if problem is None:
            wanted = tuple(row[index].strip() for index in indices)
            for name, text in zip(columns, wanted, strict=True):
                check_length(text, f"{path}:{line}: column '{name}'")
            fields.append(wanted)
            lines.append(line)
        elif skip_bad_rows:
            skipped += 1
        else:
            raise UserError(
                f"{path}:{line}: {problem}; fix the row, or leave such rows out with data.skip_bad_rows=true."
            )
    if not fields:
        raise UserError(f"File '{path}' has no rows that can be used; expected at least one below the header.")
    return CsvRows(fields, lines, skipped)


def column_names(path: Path) -> list[str]:
    """The names in the header of a CSV file; raises UserError if it cannot be read as such."""
    header, _ = next(_rows(path))
    return header


class CsvSource:
    """A CSV file with training rows, and optionally one with evaluation rows.

    Args:
        task: Names columns and labels.
        path: The file with training rows.
        eval_path: The file with evaluation rows, the split ``validation``.
        skip_bad_rows: Leave out rows that cannot be used, with a warning that counts them.

    Raises:
        UserError: If the task has no such layout.
    """

    def __init__(self, task: Task, path: Path, eval_path: Path | None = None, skip_bad_rows: bool = False) -> None:
        if task.csv is None:
            raise UserError(
                f"Task '{task.name}' has no CSV layout; leave task={task.name} out to take classes and name from the file."
            )
        self.task = task
        self.layout: CsvLayout = task.csv
        self.files = {TRAIN: path} if eval_path is None else {TRAIN: path, VALIDATION: eval_path}
        self.skip_bad_rows = skip_bad_rows
        self.notes: list[str] = []
        self._rows: dict[str, CsvRows] = {}

    def examples(self, split: str) -> list[Example]:
        if split not in self.files:
            raise UserError(f"Unknown split '{split}' of task '{self.task.name}'; {choices(split, self.files)}.")
        path = self.files[split]
        rows = self._read(split)
        if rows.skipped:
            self._note(
                f"{path.name}: {rows.skipped:,} rows with an empty cell or another number of fields were left out."
            )
        if split == VALIDATION:
            self._compare_with_training(rows.fields)
        return [
            Example(index, tuple(texts), self._label(label, f"{path}:{line}"))
            for index, ((*texts, label), line) in enumerate(zip(rows.fields, rows.lines, strict=True))
        ]

    def _read(self, split: str) -> CsvRows:
        if split not in self._rows:
            columns = [*self.layout.texts, self.layout.label]
            self._rows[split] = read_csv(self.files[split], columns, self.skip_bad_rows)
        return self._rows[split]

    def _compare_with_training(self, fields: Sequence[Sequence[str]]) -> None:
        """Count evaluation rows that the model has seen, and name classes that it has not."""
        trained = self._read(TRAIN).fields
        texts = {tuple(row[:-1]) for row in trained}
        shared = sum(tuple(row[:-1]) in texts for row in fields)
        names = self.files[VALIDATION].name, self.files[TRAIN].name
        if fields and shared == len(fields):
            raise UserError(
                f"All {shared:,} rows of '{self.files[VALIDATION]}' are among the training rows of '{self.files[TRAIN]}'; give other "
                "rows in data.eval_path, or leave it out to hold some out."
            )
        if shared:
            self._note(
                f"{shared:,} of the {len(fields):,} rows of {names[0]} have the text of a training row of {names[1]}: scores on them "
                "say little about new texts."
            )
        if not self.task.is_regression:
            unseen = sorted({row[-1] for row in fields} - {row[-1] for row in trained})
            if unseen:
                listed = ", ".join(map(shown, unseen[:_NAMED]))
                self._note(
                    f"{names[0]} has classes that no training row has, and that the model cannot learn: {listed}."
                )

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            rank_zero_warn(note)

    def has(self, split: str) -> bool:
        return split in self.files

    def prepare(self) -> None:
        pass

    def _label(self, text: str, where: str) -> int | float:
        if self.task.is_regression:
            return read_score(text, self.task, where)
        if text not in self.task.labels:
            raise UserError(
                f"{where}: label {shown(text)} of task '{self.task.name}'; {choices(text, self.task.labels)}."
            )
        return self.task.labels.index(text)


def _rows(path: Path) -> Iterator[tuple[list[str], int]]:
    """The rows that are not blank, header included, and the lines at which they end."""
    lines = (line for _, line in numbered_lines(path, "give data.path=<CSV file>"))
    first = next(lines, "")
    if not first.strip():
        raise UserError(f"File '{path}' has no header; expected the names of the columns in its first line.")
    limit = csv.field_size_limit(LONGEST_TEXT + 1)
    # A separator within quotes separates nothing.
    separator = max(_SEPARATORS, key=lambda mark: len(next(csv.reader([first.replace("\r", " ")], delimiter=mark))))
    header = csv.reader([first], delimiter=separator)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        yield [name.strip() for name in next(header)], 1
        for row in reader:
            if row:
                yield row, reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}:{reader.line_num + 1}: not CSV ({error}); fix the row, e.g. the quotes around its texts."
        ) from error
    finally:
        csv.field_size_limit(limit)


def _problem(row: Sequence[str], header: Sequence[str], indices: Sequence[int]) -> str | None:
    """What is wrong with a row, in words; None if it can be used."""
    if len(row) != len(header):
        return f"{len(row)} fields, expected {len(header)} as in the header (texts that hold a separator need quotes)"
    empty = [header[index] for index in indices if not row[index].strip()]
    return f"column '{empty[0]}' is empty" if empty else None
