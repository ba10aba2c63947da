"""Read rows from a CSV file of the user's own."""

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
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

_LONGEST_HEADER = 20
"""Lines among which the end of a quoted name is looked for."""

_NAMED = 5
"""Classes that a note names."""


@dataclass(frozen=True)
class CsvRows:
    """The rows of a CSV file.

    Args:
        fields: The wanted fields of each row, stripped, none of them empty.
        lines: The line at which each row ends, from 1.
        skipped: The number of rows left out.
        notes: Sentences on quotes that may not be meant as such.
    """

    fields: list[tuple[str, ...]]
    lines: list[int]
    skipped: int
    notes: tuple[str, ...] = ()


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
    quotes = _Quotes()
    rows = _rows(path, quotes)
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
    labels = {row[-1] for row in fields}
    return CsvRows(fields, lines, skipped, quotes.notes(path, indices[-1], labels))


def column_names(path: Path) -> list[str]:
    """The names in the header of a CSV file; raises UserError if it cannot be read as such."""
    header, _ = next(_rows(path, _Quotes()))
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
                f"Task '{task.name}' has no CSV layout; leave task={task.name} out to take classes and name from the "
                "file."
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
        for note in rows.notes:
            self._note(note)
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
                f"All {shared:,} rows of '{self.files[VALIDATION]}' are among the training rows of "
                f"'{self.files[TRAIN]}'; give other rows in data.eval_path, or leave it out to hold some out."
            )
        if shared:
            self._note(
                f"{shared:,} of the {len(fields):,} rows of {names[0]} have the text of a training row of {names[1]}: "
                "scores on them say little about new texts."
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


@dataclass
class _Quotes:
    """Lines whose quotes may not be meant as such.

    Attributes:
        stray: Lines of a tab-separated file with a quote that nothing closes, read as a part of the text.
        inside: The fields of lines within a quoted text that have as many as the header.
    """

    stray: int = 0
    inside: list[list[str]] = field(default_factory=list)

    def notes(self, path: Path, index: int, labels: Collection[str]) -> tuple[str, ...]:
        """The sentences on a file whose rows have these labels in the field at ``index``."""
        rows = sum(cells[index].strip() in labels for cells in self.inside)
        times = f"{self.stray:,} row{'s' * (self.stray != 1)}"
        stray = f"{path.name}: a quote that nothing closes was read as a part of the text, in {times}."
        looks = f"{rows:,} lines that look like rows are inside quotes and were"
        looks = "1 line that looks like a row is inside quotes and was" if rows == 1 else looks
        swallowed = (
            f"{path.name}: {looks} read as a part of a text; if that is not meant, close or double the quote above."
        )
        return (*((stray,) if self.stray else ()), *((swallowed,) if rows else ()))


def _rows(path: Path, quotes: _Quotes) -> Iterator[tuple[list[str], int]]:
    """The rows that are not blank, header included, and the lines at which they end."""
    lines = _Lines(line for _, line in numbered_lines(path, "give data.path=<CSV file>"))
    first = next(lines, "")
    if not first.strip():
        raise UserError(f"File '{path}' has no header; expected the names of the columns in its first line.")
    limit = csv.field_size_limit(LONGEST_TEXT + 1)
    try:
        if first.count('"') % 2:
            # A name may have line breaks within its quotes.
            first += lines.up_to_a_quote()
        # A separator within quotes separates nothing.
        separator = max(_SEPARATORS, key=lambda mark: len(next(csv.reader([first.replace("\r", " ")], delimiter=mark))))
        header = [
            " ".join(part.strip() for part in name.strip().split("\n"))
            for name in next(csv.reader([first], delimiter=separator))
        ]
        yield header, lines.read
        while line := next(lines, ""):
            begun = lines.read
            row = line.rstrip("\r\n").split(separator)
            if separator == "\t" and '"' in line and _is_stray(row, line, lines.following, len(header)):
                quotes.stray += 1
            else:
                row = next(csv.reader(chain([line], lines), delimiter=separator, strict=True))
            if lines.read > begun:
                inner = [part.split(separator) for text in row for part in text.split("\n")[1:-1]]
                quotes.inside += [cells for cells in inner if len(cells) == len(header)]
            if row:
                yield row, lines.read
    except csv.Error as error:
        raise UserError(
            f"{path}:{lines.read}: not CSV ({error}); fix the row, e.g. the quotes around its texts."
        ) from error
    finally:
        csv.field_size_limit(limit)


class _Lines(Iterator[str]):
    """Lines that are counted as they are read.

    Attributes:
        read: How many were read.
        following: The next one, or an empty text.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.read = 0
        self.following = next(lines, "")

    def __next__(self) -> str:
        if not self.following:
            raise StopIteration
        line, self.following = self.following, next(self._lines, "")
        self.read += 1
        return line

    def up_to_a_quote(self) -> str:
        """The lines up to the next one that has an odd number of quotes; none of them if there is none nearby."""
        taken: list[str] = []
        ahead = list(islice(self, _LONGEST_HEADER))
        for line in ahead:
            taken.append(line)
            if line.count('"') % 2:
                break
        else:
            taken = []
        # Those behind it are read again.
        back = ahead[len(taken) :]
        self.read -= len(back)
        self._lines = chain([*back[1:], *([self.following] if back else [])], self._lines)
        self.following = back[0] if back else self.following
        return "".join(taken)


def _is_stray(row: Sequence[str], line: str, following: str, fields: int) -> bool:
    """Whether a line of a tab-separated file is a row by itself only if its quotes are a part of the text."""
    try:
        # A last line break would be that of a text that goes on.
        alone = next(csv.reader([line.rstrip("\r\n")], delimiter="\t", strict=True))
    except csv.Error:
        return len(row) == fields and (not following or following.count("\t") == fields - 1)
    return len(alone) != fields == len(row)


def _problem(row: Sequence[str], header: Sequence[str], indices: Sequence[int]) -> str | None:
    """What is wrong with a row, in words; None if it can be used."""
    if len(row) != len(header):
        return f"{len(row)} fields, expected {len(header)} as in the header (texts that hold a separator need quotes)"
    empty = [header[index] for index in indices if not row[index].strip()]
    return f"column '{empty[0]}' is empty" if empty else None
