"""Read rows from a folder in the original GLUE layout."""

from collections.abc import Iterator
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_warn

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import SplitFiles, column_index, numbered_lines, read_score
from bertsecrets.data.task import Task, TsvLayout
from bertsecrets.errors import UserError
from bertsecrets.settings import shown


class TsvSource(SplitFiles):
    """Tab-separated files in UTF-8, with or without byte order mark; quotes are not special.

    Args:
        task: Names files, columns and labels.
        root: The folder that holds the tasks' folders.
        skip_bad_rows: Leave out rows with too few fields, with a warning that counts them.

    Raises:
        UserError: If the folder does not exist or the task has no such layout.
    """

    def __init__(self, task: Task, root: Path, skip_bad_rows: bool = False) -> None:
        if task.tsv is None:
            raise UserError(f"Task '{task.name}' has no TSV layout; add a tsv section to conf/task/{task.name}.yaml.")
        if not root.is_dir():
            raise UserError(f"data.root '{root}' is not a directory; give the one that holds {task.tsv.folder}.")
        super().__init__(task, root / task.tsv.folder, task.tsv.files)
        self.layout: TsvLayout = task.tsv
        self.skip_bad_rows = skip_bad_rows

    def examples(self, split: str) -> list[Example]:
        path = self.path(split)
        examples: list[Example] = []
        skipped = 0
        rows = _rows(path, f"data.root must hold {self.layout.folder}/{path.name} in the GLUE layout")
        columns = self._columns(path, split, rows)
        width = max(columns.values()) + 1
        # GLUE's test files have no labels.
        labelled = self.layout.label in columns and not split.startswith("test")
        for line, fields in rows:
            if len(fields) < width:
                if self.skip_bad_rows:
                    skipped += 1
                    continue
                raise UserError(
                    f"{path}:{line}: {len(fields)} fields, expected at least {width}; fix the row, or leave such rows "
                    "out with data.skip_bad_rows=true."
                )
            label = self._label(fields[columns[self.layout.label]], f"{path}:{line}") if labelled else None
            texts = tuple(fields[columns[name]].strip() for name in self.layout.texts)
            examples.append(Example(len(examples), texts, label))
        if skipped:
            self.notes.append(f"{path.name}: {skipped} rows with too few fields were left out.")
            rank_zero_warn(f"{path}: {skipped} rows with too few fields were left out.")
        if not examples:
            raise UserError(f"File '{path}' holds no examples; expected at least one row below the header.")
        return examples

    def _columns(self, path: Path, split: str, rows: Iterator[tuple[int, list[str]]]) -> dict[str, int]:
        """Column name -> position; reads the header if the file has one."""
        if split in self.layout.headless:
            return dict(self.layout.positions)
        header = next(rows, (0, []))[1]
        if not header:
            raise UserError(f"File '{path}' is empty; expected a header and a row for each example.")
        needed = list(self.layout.texts)
        if not split.startswith("test"):
            needed.append(self.layout.label)
        return {name: column_index(path, header, name) for name in needed}

    def _label(self, text: str, where: str) -> int | float:
        if self.task.is_regression:
            return read_score(text, self.task, where)
        name = self.task.tsv_labels.get(text, text)
        if name not in self.task.labels:
            valid = self.task.tsv_labels or self.task.labels
            raise UserError(
                f"{where}: label {shown(text)} of task '{self.task.name}'; expected one of {', '.join(valid)}."
            )
        return self.task.labels.index(name)


def _rows(path: Path, advice: str) -> Iterator[tuple[int, list[str]]]:
    """Line numbers from 1 and fields of the rows that are not empty; raises UserError as :func:`numbered_lines`."""
    for number, line in numbered_lines(path, advice):
        content = line.rstrip("\r\n")
        if content:
            yield number, content.split("\t")
