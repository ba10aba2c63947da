"""Read tables with the ``datasets`` library: the user's own files, GLUE files, folders, and hub data sets."""

import csv
import glob
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from logging import CRITICAL
from pathlib import Path
from typing import Any

from huggingface_hub import logging as hub_logging
from pytorch_lightning.utilities import rank_zero_warn

from bertsecrets.data.example import Example
from bertsecrets.data.groups import with_groups
from bertsecrets.data.sources.base import (
    FORMATS,
    LONGEST_TEXT,
    TEXT,
    TRAIN,
    VALIDATION,
    SplitFiles,
    check_length,
    check_own_order,
    column_index,
    numbered_lines,
    read_answers,
    read_score,
    reading,
)
from bertsecrets.data.sources.choice_rows import choice_texts
from bertsecrets.data.tags import annotated_words, tag_numbers
from bertsecrets.data.task import HubLayout, TableLayout, Task, TsvLayout
from bertsecrets.errors import UserError, choices
from bertsecrets.results.formatting import counted
from bertsecrets.settings import shown
from bertsecrets.task_heads.labels import ANSWERS, IGNORED, Answers

_SEPARATORS = (",", ";", "\t")
DOCUMENT = "document"
"""Column of files of words that tells which sentences are of one document."""
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_MORE = " more"
"""Column for fields beyond the header; it cannot clash, because header names are stripped."""
_RETURN = "\ufdd0"
"""In place of a carriage return; a character that no text has."""
_NAMED = 5
"""Most classes that a note lists."""

_TOO_MANY = "more fields than in the header (texts that contain a separator need quotes)"
_FIX = "fix the row, or skip such rows with data.skip_bad_rows=true"

Dataset = Any
"""A ``datasets.Dataset``; the library is imported where it is used, because importing it takes a second."""


@dataclass(frozen=True)
class Table:
    """The usable rows of a split.

    Args:
        rows: The rows.
        name: Their file or data set, for messages.
        place: Maps the position of a row to its location, for messages.
        notes: Sentences about skipped rows and likely mistakes.
    """

    rows: Dataset
    name: str
    place: Callable[[int], str]
    notes: Sequence[str] = ()


class TableSource:
    """The shared part of table sources: from columns to examples.

    Args:
        task: Names labels.
        layout: Names the columns.
        group: Name of the column that groups rows; None if rows are independent.
    """

    def __init__(self, task: Task, layout: HubLayout | TableLayout | TsvLayout, group: str | None = None) -> None:
        self.task = task
        self.texts = tuple(layout.texts)
        self.choices = () if isinstance(layout, TsvLayout) else tuple(layout.choices)
        self.label = layout.label
        self.group = group
        self.notes: list[str] = []

    def table(self, split: str) -> Table:
        """The rows of a split; raises UserError if they cannot be read, or lack a column."""
        raise NotImplementedError

    def examples(self, split: str) -> list[Example]:
        table = self.table(split)
        for note in table.notes:
            self.note(note)
        return self._built(table)

    def prepare(self) -> None:
        """Files need no work before they are read."""

    def note(self, sentence: str) -> None:
        """Warn once, and keep the sentence for the pages."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            rank_zero_warn(sentence)

    @property
    def columns(self) -> dict[str, str]:
        """The columns to read, the label last if there is one, and the setting of each."""
        group = {} if self.group is None else {self.group: "data.group"}
        label = {} if self.task.head.makes_labels else {self.label: "data.label"}
        choices = dict.fromkeys(self.choices, "data.choices")
        return {**group, **dict.fromkeys(self.texts, "data.text"), **choices, **label}

    def _built(self, table: Table) -> list[Example]:
        present = [name for name in self.columns if name in table.rows.column_names]
        values = table.rows.select_columns(present).with_format(None)[:]
        labelled = self.label in present
        # Numbers are class indices if the column names its classes, else they are class names.
        names = class_names(table.rows.features[self.label]) if labelled else None
        columns = [*(values[name] for name in self.texts), values[self.label] if labelled else [None] * len(table.rows)]
        examples = []
        for index, (*texts, label) in enumerate(zip(*columns, strict=True)):
            if self.task.head.per_word:
                examples.append(self._tagged(index, texts[0], label, names, table.place(index)))
                continue
            for column, text in zip(self.texts, texts, strict=True):
                if not isinstance(text, str):
                    raise UserError(f"{table.place(index)}: column '{column}' contains {shown(text)}; expected a text.")
                check_length(text, f"{table.place(index)}: column '{column}'")
            if self.task.kind == ANSWERS:
                place = table.place(index)
                answers = None if label is None else answers_of(label, texts[1], self.task.unanswerable, place)
                examples.append(Example(index, tuple(texts), answers))
                continue
            if self.choices:
                cells = [values[name][index] for name in self.choices]
                texts = [*choice_texts(texts, cells, self.choices, table.place(index))]
            examples.append(Example(index, tuple(texts), self._label(label, names, table.place, index)))
        if self.group is None:
            return examples
        return with_groups(examples, values[self.group], f"Column '{self.group}' of {table.name}")

    def _tagged(self, index: int, words: Any, tags: Any, names: list[str] | None, place: str) -> Example:
        """A row whose columns hold the words of a sentence and their tags."""
        text, annotation = annotated_words(words, f"{place}: column '{self.texts[0]}'")
        check_length(text, place)
        if names is not None and isinstance(tags, Sequence):
            tags = [tag if tag is None or tag == IGNORED else names[tag] for tag in tags]
        label = None if tags is None else tag_numbers(tags, self.task.labels, len(annotation.words), place)
        return Example(index, (text,), label, (annotation,))

    def _label(
        self, label: Any, names: list[str] | None, place: Callable[[int], str], index: int
    ) -> int | float | None:
        limits = self.task.label_range
        # -1 stands for no label, as in GLUE's test splits on the hub.
        withheld = label == -1 and ("-1" not in self.task.labels if limits is None else limits[0] > -1)
        if label is None or withheld:
            return None
        if self.task.is_regression:
            return read_score(label, self.task, place(index))
        places = {name.casefold(): place for place, name in enumerate(self.task.labels)}
        # The task may have the column's classes in another order.
        if names is not None and len(places) == len(names) and {name.casefold() for name in names} == places.keys():
            return places[names[label].casefold()]
        name = str(label) if names is None else label
        name = self.task.tsv_labels.get(name, name) if isinstance(label, str) else name
        if name in self.task.labels:
            return self.task.labels.index(name)
        if not isinstance(label, int) or not 0 <= label < len(self.task.labels):
            numbers = f"0 to {len(self.task.labels) - 1} or {', '.join(self.task.labels)}"
            texts = f"one of {', '.join(self.task.tsv_labels or self.task.labels)}"
            raise UserError(
                f"{place(index)}: label {shown(label)} of task '{self.task.name}'; expected "
                f"{numbers if isinstance(label, int) else texts}."
            )
        check_own_order(self.task)
        return label


class FileSource(TableSource):
    """A file with training rows, and optionally one with evaluation rows.

    Args:
        task: Names columns and labels.
        kind: Their format: ``csv``, ``jsonl``, ``parquet``, ``columns`` or ``text``.
        path: The file with training rows.
        eval_path: The file with evaluation rows, the split ``validation``.
        skip_bad_rows: Skip unusable rows, with a warning that counts them.
        group: See :class:`TableSource`.

    Raises:
        UserError: If the task has no such layout.
    """

    def __init__(
        self,
        task: Task,
        kind: str,
        path: Path,
        eval_path: Path | None = None,
        skip_bad_rows: bool = False,
        group: str | None = None,
    ) -> None:
        if task.table is None:
            raise UserError(
                f"Task '{task.name}' defines no file columns; remove task={task.name} to infer the task from the file."
            )
        super().__init__(task, task.table, group)
        self.kind = kind
        self.files = {TRAIN: path} if eval_path is None else {TRAIN: path, VALIDATION: eval_path}
        self.skip_bad_rows = skip_bad_rows
        self.name = f"'{path}'"
        self._tables: dict[str, Table] = {}

    def splits(self) -> Mapping[str, Dataset]:
        """The usable rows of each file; raises UserError as :meth:`table`."""
        return {split: self.table(split).rows for split in self.files}

    def table(self, split: str) -> Table:
        if split not in self.files:
            raise UserError(f"Unknown split '{split}' of task '{self.task.name}'; {choices(split, self.files)}.")
        if split not in self._tables:
            path, skip = self.files[split], self.skip_bad_rows
            # The kind is the training rows' format; other files may differ.
            kind = self.kind if split == TRAIN else FORMATS.get(path.suffix.lower(), self.kind)
            if kind == "csv":
                self._tables[split] = read_csv(path, self.columns, filled=set(self.columns), skip_bad_rows=skip)
            else:
                advice = f"give {'data.path' if split == TRAIN else 'data.eval_path'}=<{kind} file>"
                if kind == TEXT and not self.task.head.makes_labels:
                    raise UserError(
                        f"'{path}' has texts without labels, which kind '{self.task.head.kind}' needs; set "
                        "task.kind=masked, or give a file with labels, such as data=csv (data=columns if each line has "
                        "a word and its tag)."
                    )
                if kind == TEXT:
                    rows = read_lines(path, advice)
                elif kind == "columns":
                    rows = read_columns(path, self.texts[0], self.label, advice)
                else:
                    rows = _read_typed(path, kind, advice)
                for column, key in self.columns.items():
                    column_index(path, rows.column_names, column, f" (set {key})")
                cells = rows.select_columns(list(self.columns)).with_format(None)[:]
                self._tables[split] = _usable(
                    path, cells, set(self.columns), lambda row: f"{path}, row {row + 1}", skip, rows
                )
        return self._tables[split]

    def examples(self, split: str) -> list[Example]:
        examples = super().examples(split)
        if split == VALIDATION:
            self._compare_with_training(examples)
        return examples

    def _compare_with_training(self, examples: Sequence[Example]) -> None:
        """Warn about evaluation rows that occur in training, and about classes that do not."""
        trained = self._built(self.table(TRAIN))
        evaluated, training = self.files[VALIDATION], self.files[TRAIN]
        texts, groups = {one.texts for one in trained}, {one.group for one in trained}
        shared = sum(one.texts in texts for one in examples)
        if shared == len(examples):
            raise UserError(
                f"All {shared:,} rows of '{evaluated}' are among the training rows of '{training}'; give other rows "
                "in data.eval_path, or remove it to hold some out."
            )
        grouped = 0 if self.group is None else sum(one.group in groups for one in examples)
        for count, what in ((shared, "text"), (grouped, f"'{self.group}'")):
            if count:
                self.note(
                    f"{count:,} of the {len(examples):,} rows of {evaluated.name} have the same {what} as a training "
                    f"row of {training.name}, so scores on them say little about new texts."
                )
        unseen = classes_in(examples) - classes_in(trained)
        if unseen and not self.task.is_regression:
            listed = ", ".join(sorted(shown(self.task.labels[label]) for label in unseen)[:_NAMED])
            self.note(
                f"{evaluated.name} has classes that are missing from the training rows, so the model cannot learn "
                f"them: {listed}."
            )

    def has(self, split: str) -> bool:
        return split in self.files


class TsvSource(SplitFiles, TableSource):
    """A folder in the original GLUE layout: tab-separated files in which quotes are not special.

    Args:
        task: Names files, columns and labels.
        root: The parent of the tasks' folders.
        skip_bad_rows: Skip rows with too few or too many fields, with a warning that counts them.
        group: See :class:`TableSource`.

    Raises:
        UserError: If the folder does not exist or the task has no such layout.
    """

    def __init__(self, task: Task, root: Path, skip_bad_rows: bool = False, group: str | None = None) -> None:
        if task.tsv is None:
            raise UserError(f"Task '{task.name}' has no TSV layout; add a tsv section to conf/task/{task.name}.yaml.")
        if not root.is_dir():
            raise UserError(f"data.root '{root}' is not a directory; give the parent folder of {task.tsv.folder}.")
        SplitFiles.__init__(self, task, root / task.tsv.folder, task.tsv.files)
        TableSource.__init__(self, task, task.tsv, group)
        self.layout: TsvLayout = task.tsv
        self.skip_bad_rows = skip_bad_rows

    def table(self, split: str) -> Table:
        path, positions = self.path(split), self.layout.positions
        # GLUE's test files have no labels.
        needed = {name: key for name, key in self.columns.items() if name != self.label or not split.startswith("test")}
        names = None
        if split in self.layout.headless:
            needed = {name: key for name, key in needed.items() if name in positions}
            of_position = {position: name for name, position in positions.items()}
            names = [of_position.get(place, f" {place}") for place in range(max(positions.values()) + 1)]
        table = read_csv(
            path,
            dict.fromkeys(needed, ""),
            filled={self.label} & needed.keys(),
            skip_bad_rows=self.skip_bad_rows,
            names=names,
            advice=f"data.root must contain {self.layout.folder}/{path.name} in the GLUE layout",
            quotes=False,
        )
        return replace(table, rows=table.rows.select_columns(list(needed)))


class HubSource(TableSource):
    """A data set on the hub, or a local copy.

    Args:
        task: Names data set, configuration and columns.
        path: A local folder instead of the hub's name, readable by ``load_dataset`` or written by ``save_to_disk``.
        revision, cache_dir: Passed to the library.
        group: See :class:`TableSource`.

    Raises:
        UserError: If the task is not on the hub, or ``path`` is not a directory.
    """

    def __init__(
        self, task: Task, path: str | None, revision: str | None, cache_dir: str | None, group: str | None = None
    ) -> None:
        if task.hub is None:
            raise UserError(f"Task '{task.name}' has no hub layout; add a hub section to conf/task/{task.name}.yaml.")
        if path is not None and not Path(path).expanduser().is_dir():
            raise UserError(f"data.path '{path}' is not a directory; give a local copy of data set '{task.hub.path}'.")
        super().__init__(task, task.hub, group)
        self.layout: HubLayout = task.hub
        # The library would treat a relative path such as "csv" as the name of its file reader.
        self.folder = None if path is None else Path(path).expanduser().resolve()
        self.revision = revision
        self.cache_dir = cache_dir
        self.name = f"data set '{self.folder or self.layout.path}'"

    def table(self, split: str) -> Table:
        rows = self._load(split)
        for name in self.columns:
            if name not in rows.column_names:
                raise UserError(f"D{self.name[1:]} has no column '{name}'; {choices(name, rows.column_names)}.")
        if len(rows) == 0:
            raise UserError(f"Split '{split}' of {self.name} is empty; expected at least one row.")
        return Table(rows, self.name, lambda index: f"{split} row {index} of {self.name}")

    def has(self, split: str) -> bool:
        return True

    def prepare(self) -> None:
        self._load(TRAIN)

    def splits(self) -> Mapping[str, Dataset]:
        """All splits of the data set by name; raises UserError if it cannot be loaded."""
        splits: Mapping[str, Dataset] = self._load(None)
        return splits

    def _load(self, split: str | None) -> Any:
        import datasets
        import datasets.packaged_modules
        from datasets.packaged_modules.csv.csv import CsvConfig

        description = f"D{self.name[1:]}" if split is None else f"Split '{split}' of {self.name}"
        if self.folder is None:
            readers = Path(datasets.packaged_modules.__file__).parent
            if any((around / self.layout.path).is_dir() for around in (readers, Path())):
                raise UserError(
                    f"'{self.layout.path}' is also the name of a folder here or of a file format, which the datasets "
                    "library would read instead of the data set; give data.path=<folder>, or the full name on the "
                    "hub."
                )
            local = "data.path=<folder>" if self.task.tsv is None else "data=tsv data.root=<GLUE folder>"
            with attempt(description, f"if the hub cannot be reached, use a local folder: {local}"):
                return datasets.load_dataset(
                    self.layout.path, self.layout.name, split=split, revision=self.revision, cache_dir=self.cache_dir
                )
        folder = str(self.folder)
        with attempt(description, "check the folder data.path"):
            if (self.folder / "state.json").is_file() or (self.folder / "dataset_dict.json").is_file():
                saved = datasets.load_from_disk(folder)
                # A single split counts as training rows.
                splits = {TRAIN: saved} if isinstance(saved, datasets.Dataset) else saved
                return splits if split is None else splits[split]
            # Keep the texts "NA" and "null"; readers of other formats lack these settings.
            builder = datasets.load_dataset_builder(folder, cache_dir=self.cache_dir)
            texts = {"keep_default_na": False, "na_values": [""]} if isinstance(builder.config, CsvConfig) else {}
            return datasets.load_dataset(folder, split=split, cache_dir=self.cache_dir, **texts)


def read_csv(
    path: Path,
    needed: Mapping[str, str],
    *,
    filled: Collection[str],
    skip_bad_rows: bool = False,
    names: Sequence[str] | None = None,
    advice: str = "give data.path=<CSV file>",
    quotes: bool = True,
) -> Table:
    """Read a UTF-8 CSV file; the separator is a comma, a semicolon or a tab. Cells are stripped texts.

    Args:
        path: The file.
        needed: Names of required columns, the label last, with the setting of each, if any.
        filled: Columns that must not be empty.
        skip_bad_rows: Skip rows with an empty cell or too many fields.
        names: The column names of a file without a header; None to read them from its first line.
        advice: What to do if the file is missing, as the end of a sentence.
        quotes: Whether quotes around a field are special.

    Raises:
        UserError: If the file cannot be read as CSV, lacks a column, has a bad row, or has no rows.
    """
    import datasets

    lines = _lines(path, advice)
    header, separator = _header(path, lines) if quotes else (names or lines[0].strip("\r\n").split("\t"), "\t")
    for column, key in needed.items():
        column_index(path, header, column, f" (set {key})" if key else "")
    # If every line is a row, an unclosed quote joins no lines.
    tabs = {line.count("\t") for line in lines if line.strip()}
    plain = not quotes or (separator == "\t" and tabs == {len(header) - 1})
    records = (
        [(number, number, [cell.strip() for cell in line.split("\t")]) for number, line in enumerate(lines, 1)]
        if plain
        else [*_records(path, lines, separator)]
    )
    records = records if names is not None else records[1:]
    # Required names occur only once.
    columns = [name if header.index(name) == place else f" {place}" for place, name in enumerate(header)]
    cells = {
        name: [row[place] if place < len(row) else "" for *_, row in records] for place, name in enumerate(columns)
    }
    notes = []
    if plain and quotes:
        cells, stray = _unquoted(cells)
        if stray:
            notes.append(f"{path.name}: an unclosed quote was read as part of the text, in {counted(stray, 'row')}.")
    more = ["".join(row[len(columns) :]) for *_, row in records]
    rows = datasets.Dataset.from_dict(cells)
    table = _usable(path, {**cells, _MORE: more}, filled, lambda row: f"{path}:{records[row][0]}", skip_bad_rows, rows)
    label = list(needed)[-1]
    labels, place = set(table.rows.unique(label)), header.index(label)
    inside = [line.split(separator) for begin, end, _ in records for line in lines[begin : end - 1]]
    alike = sum(len(fields) == len(header) and fields[place].strip() in labels for fields in inside)
    if alike:
        they = "1 line that looks like a row is inside quotes and was"
        they = they if alike == 1 else f"{alike:,} lines that look like rows are inside quotes and were"
        notes.append(
            f"{path.name}: {they} read as part of a text; if that is not intended, close or double the quote above."
        )
    return replace(table, notes=(*table.notes, *notes))


def class_names(feature: Any) -> list[str] | None:
    """The names of the classes of a column, or of the items of its lists; None if it has none."""
    names: list[str] | None = getattr(getattr(feature, "feature", feature), "names", None)
    return names


def read_columns(path: Path, words: str, tags: str, advice: str) -> Dataset:
    """Read a file with a word in each line and a blank line between sentences, such as that of CoNLL-2003.

    Lines that begin with ``-DOCSTART-``, or ``# newdoc`` in CoNLL-U, start a document, and are left out; so are other
    comments of CoNLL-U, the lines of its multiword tokens and of its empty nodes. Columns are separated by tabs, or
    else by spaces.

    Args:
        path: The file.
        words, tags: The columns, by number from 0 (-1 is the last), or by their names in CoNLL-U.
        advice: What to do if the file is missing, as the end of a sentence.

    Returns:
        A row for each sentence: its words, its tags (None where CoNLL-U has ``_``), and the number of its ``document``.

    Raises:
        UserError: If the file cannot be read, a line has too few columns, or there are no sentences.
    """
    import datasets

    columns: dict[str, list[Any]] = {words: [], tags: [], DOCUMENT: []}
    names: tuple[str, ...] = _CONLLU if path.suffix == ".conllu" else ()
    document, new = 0, True
    for number, line in numbered_lines(path, advice, "the line"):
        content = line.rstrip("\r\n")
        if content.startswith("# global.columns ="):
            names = tuple(content.split("=", 1)[1].lower().split())
        starts = content.startswith(("-DOCSTART-", "# newdoc"))
        if starts and columns[DOCUMENT]:
            document += 1
        # A word may be "#", but a comment has no tab.
        comment = content.startswith("#") and bool(names) and "\t" not in content
        if starts or comment or not content.strip():
            new = new or not comment
            continue
        fields = content.split("\t") if "\t" in content else content.split()
        if names and not fields[0].isdecimal():
            continue
        if new:
            for column, first in ((words, []), (tags, []), (DOCUMENT, document)):
                columns[column].append(first)
            new = False
        for column, key in ((words, "data.text"), (tags, "data.label")):
            field = fields[_place(column, names, len(fields), f"{path}:{number}", key)]
            columns[column][-1].append(None if names and column == tags and field == "_" else field.strip())
    if not columns[DOCUMENT]:
        raise UserError(f"File '{path}' has no sentences; expected a word and its tag in each line.")
    return datasets.Dataset.from_dict(columns)


def read_lines(path: Path, advice: str) -> Dataset:
    """Read plain text: a row for each line with its ``text``, and the number of its ``document``.

    Blank lines end a document, and so does a file.

    Args:
        path: The file, or a folder with ``.txt`` files.
        advice: What to do if it is missing, as the end of a sentence.

    Raises:
        UserError: If it cannot be read, or has no text.
    """
    import datasets

    columns: dict[str, list[Any]] = {TEXT: [], DOCUMENT: []}
    document = -1
    for file in sorted(path.glob("*.txt")) if path.is_dir() else [path]:
        new = True
        for _, line in numbered_lines(file, advice, "the text"):
            if line.strip():
                document += new
                columns[TEXT].append(line.strip())
                columns[DOCUMENT].append(document)
            new = not line.strip()
    if not columns[TEXT]:
        raise UserError(f"'{path}' has no text; expected a text in each line{', in .txt files' * path.is_dir()}.")
    return datasets.Dataset.from_dict(columns)


def _place(column: str, names: Sequence[str], fields: int, where: str, key: str) -> int:
    """The place of a column by its number or name; raises UserError if there is none."""
    if column.lower() in names:
        return names.index(column.lower())
    number = int(column) if column.lstrip("-").isdecimal() else fields
    if not -fields <= number < fields:
        expected = f"0 to {fields - 1}, or -1 for the last" + (f", or {', '.join(names)}" if names else "")
        raise UserError(f"{where}: there is no column '{column}' among {fields}; set {key} to {expected}.")
    return number % fields


def file_columns(path: Path, kind: str) -> list[str]:
    """The names of the columns of a ``csv``, ``jsonl`` or ``parquet`` file; raises UserError if it cannot be read."""
    advice = "give a file with texts and labels"
    return (
        _header(path, _lines(path, advice))[0] if kind == "csv" else list(_read_typed(path, kind, advice).column_names)
    )


def _lines(path: Path, advice: str) -> list[str]:
    """The lines of a CSV file; raises UserError if the first is blank, or line feeds are missing."""
    lines = [line for _, line in numbered_lines(path, advice)]
    if not lines or not lines[0].strip():
        raise UserError(f"File '{path}' has no header; expected the names of the columns in its first line.")
    if len(lines) == 1 and "\r" in lines[0].strip():
        raise UserError(f"File '{path}' ends its lines with carriage returns; save it with line feeds.")
    return lines


def _header(path: Path, lines: Sequence[str]) -> tuple[list[str], str]:
    """The column names, and the separator that yields most of them."""
    found = []
    for separator in _SEPARATORS:
        # Quotes that this separator does not close may extend far.
        with suppress(UserError):
            found.append((next(_records(path, lines, separator))[2], separator))
    if not found:
        raise UserError(f"File '{path}' has an unclosed quote in its header; remove it.")
    names, separator = max(found, key=lambda one: len(one[0]))
    # A name may have line breaks within its quotes.
    return [" ".join(part.strip() for part in name.split("\n")) for name in names], separator


def _records(path: Path, lines: Sequence[str], separator: str) -> Iterator[tuple[int, int, list[str]]]:
    """The first and the last line, from 1, and the stripped cells of each row of a CSV file.

    Raises:
        UserError: If a quote is not closed.
    """
    csv.field_size_limit(LONGEST_TEXT)
    # The csv module would end a row at a carriage return. It accepts an unclosed quote, which the added line closes;
    # elsewhere that line is a row of its own.
    reader = csv.reader((line.replace("\r", _RETURN) for line in (*lines, '"')), delimiter=separator)
    begin = 1
    try:
        for row in reader:
            if reader.line_num <= len(lines):
                yield begin, reader.line_num, [cell.replace(_RETURN, "\r").strip() for cell in row]
                begin = reader.line_num + 1
            elif row != [""]:
                raise csv.Error("a quote is not closed")
    except csv.Error as error:
        raise UserError(
            f"{path}:{begin}: the row cannot be read ({error}); fix the row, e.g. the quotes around its texts."
        ) from error


def _read_typed(path: Path, kind: str, advice: str) -> Dataset:
    """The rows of a ``jsonl`` or ``parquet`` file, which has typed cells."""
    import datasets

    with reading(path, advice):
        path.open("rb").close()
    # A separate cache: the library's cache identifies a file by its time stamp.
    with attempt(f"File '{path}'", "fix it"), tempfile.TemporaryDirectory() as cache:
        return datasets.load_dataset(
            "json" if kind == "jsonl" else kind,
            data_files={TRAIN: glob.escape(str(path.resolve()))},
            split=TRAIN,
            cache_dir=cache,
            keep_in_memory=True,
        )


def _usable(
    path: Path,
    cells: Mapping[str, Sequence[Any]],
    filled: Collection[str],
    place: Callable[[int], str],
    skip_bad_rows: bool,
    rows: Dataset,
) -> Table:
    """The rows of a file without bad ones, see :func:`read_csv`.

    Args:
        cells: The columns that identify bad rows.
        filled: Columns that must not be empty.
        place: Maps the position of a row to its location.
        rows: The rows.
    """
    kept, skipped = [], 0
    for index, row in enumerate(zip(*cells.values(), strict=True)):
        without = {name for name, cell in zip(cells, row, strict=True) if cell in (None, "")}
        if len(without) == len(row):
            # A blank line.
            continue
        empty = next((name for name in cells if name in without and name in filled), None)
        if empty is None and (_MORE not in cells or _MORE in without):
            kept.append(index)
        elif skip_bad_rows:
            skipped += 1
        else:
            problem = _TOO_MANY if empty is None else f"column '{empty}' is empty"
            raise UserError(f"{place(index)}: {problem}; {_FIX}.")
    if not kept:
        raise UserError(f"File '{path}' has no usable rows; expected at least one below the header.")
    were = "was" if skipped == 1 else "were"
    note = f"{path.name}: {counted(skipped, 'row')} with an empty cell or too many fields {were} skipped."
    return Table(rows.select(kept), f"'{path}'", lambda index: place(kept[index]), [note] if skipped else [])


def _unquoted(cells: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], int]:
    """Cells without surrounding quotes, and the number of rows with a cell that starts with an unclosed quote."""
    whole = re.compile(r'"(?:[^"]|"")*"')
    stray = sum(
        any(cell[:1] == '"' and not whole.fullmatch(cell) for cell in row) for row in zip(*cells.values(), strict=True)
    )
    return {
        name: [cell[1:-1].replace('""', '"').strip() if whole.fullmatch(cell) else cell for cell in column]
        for name, column in cells.items()
    }, stray


@contextmanager
def attempt(description: str, advice: str) -> Iterator[None]:
    """Turn the library's errors into one sentence: what could not be loaded, why, and what to do."""
    import datasets

    # Their log lines, such as one for each attempt to reach the hub, are less useful than the message below.
    loggings = (datasets.logging, hub_logging)
    levels = [logging.get_verbosity() for logging in loggings]
    for logging in loggings:
        logging.set_verbosity(CRITICAL)
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    # The errors of datasets, the hub client and its HTTP client have no common base class.
    except Exception as error:
        generated = isinstance(error, datasets.exceptions.DatasetGenerationError)
        cause = error.__cause__ if generated and error.__cause__ is not None else error
        lines = (str(cause).strip() or type(cause).__name__).splitlines()
        if isinstance(error, datasets.exceptions.DatasetGenerationCastError):
            # Its first line is uninformative, and its cause prints both schemas; the other lines name the columns and
            # the file.
            lines = [" ".join(" ".join(str(error).splitlines()[1:]).split()).partition(" Please ")[0]]
        raise UserError(f"{description} could not be loaded ({lines[0].rstrip('.')}); {advice}.") from error
    finally:
        for logging, level in zip(loggings, levels, strict=True):
            logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def answers_of(label: Any, context: str, optional: bool, where: str) -> Answers:
    """The answers of a row in the layout of the hub's SQuAD: lists of texts and of the characters where they begin."""
    if not isinstance(label, Mapping) or not all(isinstance(label.get(key), list) for key in ("text", "answer_start")):
        raise UserError(
            f"{where}: {shown(label)} is no answer; expected lists of the answers and of the characters where they "
            'begin, {"text": ["..."], "answer_start": [0]}.'
        )
    return read_answers(label["text"], label["answer_start"], context, optional=optional, where=where)


def classes_in(examples: Iterable[Example]) -> set[int]:
    """The classes of some examples, or of their words."""
    labels = (one.label if isinstance(one.label, tuple) else (one.label,) for one in examples)
    return {int(label) for label in chain.from_iterable(labels) if isinstance(label, int | float)}
