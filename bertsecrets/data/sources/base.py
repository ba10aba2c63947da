"""The interface of sources of rows, and their shared code."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from bertsecrets.data.example import Example
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.settings import CONF, shown
from bertsecrets.task_heads.labels import Answers

TRAIN, VALIDATION = "train", "validation"
"""Names of the training split and of the usual evaluation split."""

HELD_OUT = "held_out"
"""Name of the evaluation split taken from the training rows if the data have none."""

ALL = "all"
"""Name of the evaluation split that consists of all training rows, for a model that is not trained here."""

CHOOSING = "choosing"
"""Name of the evaluation set, and of its split, of training rows for choosing the checkpoint."""

SPLIT_WORDS = {
    "train": ("train",),
    "validation": ("dev", "devel", "development", "valid", "validation", "val"),
    "test": ("test",),
}
"""Words in file names that identify each split."""

TEXT = "text"
"""Plain text, without labels."""

FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    **dict.fromkeys((".conll", ".conllu", ".conllx", ".bio", ".iob", ".iob2"), "columns"),
}
"""Formats by the suffix of a file; a .txt file may have any format."""

_NAMED = 4
"""Most files that a message lists."""

LONGEST_TEXT = 1_000_000
"""Characters of a row or a text; a tokenizer needs 60 bytes of memory for each."""


class Source(Protocol):
    """The rows of a task's splits.

    Attributes:
        notes: Sentences about skipped or unusual rows in the splits read so far.
    """

    @property
    def notes(self) -> Sequence[str]: ...

    def examples(self, split: str) -> list[Example]:
        """All examples of a split, in file order; raises UserError if there are none or one is not valid."""

    def has(self, split: str) -> bool:
        """Whether the source has a split that may be missing from the data."""

    def prepare(self) -> None:
        """Work for one process per machine, such as downloading; raises UserError if it fails."""


class BuiltIn:
    """The base of sources that ship with the package: every split is there."""

    notes: Sequence[str] = ()

    def has(self, split: str) -> bool:
        return True

    def prepare(self) -> None:
        """Nothing needs to be downloaded."""


class SplitFiles:
    """Files of splits; the base of sources that read such files.

    Args:
        task: Named in messages.
        folder: The folder of the files.
        files: Split -> file name.
        discovered: Split -> files, where splits are inferred from their names; None if ``files`` names them.
    """

    def __init__(
        self,
        task: Task,
        folder: Path,
        files: Mapping[str, str],
        discovered: Mapping[str, Sequence[Path]] | None = None,
    ) -> None:
        self.task = task
        self.folder = folder
        self.files = files
        self.discovered = discovered
        self.notes: list[str] = []

    def path(self, split: str) -> Path:
        """The file of a split; raises UserError if the layout names none."""
        if split not in self.files:
            raise UserError(f"Unknown split '{split}' of task '{self.task.name}'; {choices(split, self.files)}.")
        return self.folder / self.files[split]

    def paths(self, split: str) -> Sequence[Path]:
        """The files of a split, logged if they were discovered; raises UserError if there are none."""
        if self.discovered is None:
            return [self.path(split)]
        # A slow import: configurations are checked without Lightning.
        from pytorch_lightning.utilities import rank_zero_info

        paths = self.discovered.get(split, [])
        if not paths:
            raise UserError(
                f"Folder '{self.folder}' has no file for split '{split}'; add one with {SPLIT_WORDS[split][0]} in its "
                "name."
            )
        names = ", ".join(path.name for path in paths[:_NAMED])
        more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
        rank_zero_info(f"Split '{split}' of task '{self.task.name}': {names}{more}")
        return paths

    def has(self, split: str) -> bool:
        if self.discovered is not None:
            return bool(self.discovered.get(split))
        path = self.path(split)
        if not os.path.exists(path):
            # A slow import: configurations are checked without Lightning.
            from pytorch_lightning.utilities import rank_zero_warn

            rank_zero_warn(f"File '{path}' is missing; split '{split}' of task '{self.task.name}' is left out.")
        return os.path.exists(path)

    def prepare(self) -> None:
        pass


def split_by_name(names: Mapping[Path, str]) -> dict[str, list[Path]]:
    """Assign files to splits by words in their names.

    Without a validation file, the test files, else unnamed files, else the training files are used for validation;
    training files used so do not form a training split, so that no text is in both.

    Args:
        names: File -> the name to inspect; at least one.
    """
    words = {path: set(re.split(r"[^a-z]+", name.lower())) for path, name in names.items()}
    files = {
        split: [path for path in names if words[path] & set(split_words)] for split, split_words in SPLIT_WORDS.items()
    }
    unnamed = [path for path in names if not any(path in named for named in files.values())]
    stand_ins: Sequence[list[Path]] = (files["validation"], files["test"], unnamed, files["train"])
    evaluated = next(named for named in stand_ins if named)
    return {**files, "validation": evaluated, "train": [] if evaluated == files["train"] else files["train"]}


def numbered_lines(path: Path, advice: str, unit: str = "the row") -> Iterator[tuple[int, str]]:
    """The unmodified lines of a UTF-8 file, with or without byte order mark, and their numbers from 1.

    Only a line feed ends a line: other line separators occur inside texts.

    Args:
        path: The file.
        advice: What to do if it is missing, as the end of a sentence.
        unit: What a line is, for messages.

    Raises:
        UserError: If the file is missing, not a file, may not be read, or is not UTF-8, or a line is too long.
    """
    with reading(path, advice), path.open(encoding="utf-8-sig", newline="\n") as file:
        number = 0
        # Never read more of a line than the longest valid one.
        while line := file.readline(LONGEST_TEXT + 2):
            number += 1
            check_length(line.rstrip("\r\n"), f"{path}:{number}: {unit}")
            yield number, line


@contextmanager
def reading(path: Path, advice: str) -> Iterator[None]:
    """Turn errors of opening and decoding a file into one sentence; the advice is for a missing file."""
    if path.is_fifo() or path.is_socket() or path.is_char_device() or path.is_block_device():
        # Opening a pipe may block forever, and it cannot be read twice.
        raise UserError(f"'{path}' is a pipe or a device; write its content to a file and give that.")
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"File '{path}' is missing; {advice}.") from error
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UserError(f"File '{path}' cannot be read ({reason}); give a readable file.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"File '{path}' is not UTF-8 ({error.reason}); convert it to UTF-8.") from error


def column_index(path: Path, header: Sequence[str], name: str, advice: str = "") -> int:
    """The position of a column in a file's header; raises UserError, with the advice, unless it occurs exactly once."""
    if name not in header:
        raise UserError(f"File '{path}' has no column '{name}'; {choices(name, header)}{advice}.")
    if header.count(name) > 1:
        raise UserError(f"File '{path}' has {header.count(name)} columns '{name}'; rename all but one.")
    return header.index(name)


def check_length(text: str, where: str) -> None:
    """Raise UserError, naming the place, if a text is too long to be a sentence, or a pair of them."""
    if len(text) > LONGEST_TEXT:
        raise UserError(
            f"{where} is longer than {LONGEST_TEXT:,} characters; shorten or remove it, as only the first tokens of a "
            "text are used."
        )


def check_characters(text: str) -> None:
    """Raise UserError if a text has a lone surrogate, which tokenizers cannot read; UTF-8 files have none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"Text {shown(text)} has a lone surrogate, {shown(text[error.start])}, at character {error.start}; remove "
            "it, or decode the text with its original encoding."
        ) from error


def check_own_order(task: Task) -> None:
    """Raise UserError if the classes of a built-in task are reordered, as its rows use class numbers."""
    path, labels = CONF / "task" / f"{task.name}.yaml", task.labels
    content: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    own = tuple(content.get("labels") or ())
    if own != labels and sorted(own) == sorted(labels):
        raise UserError(
            f"task.labels is {', '.join(labels)}, but the rows of task '{task.name}' number their classes in the "
            f"order {', '.join(own)}; remove task.labels."
        )


def read_score(text: str | float, task: Task, where: str) -> float:
    """A score within the task's range; raises UserError, naming the place, for anything else."""
    assert task.label_range is not None
    low, high = task.label_range
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UserError(
            f"{where}: score {shown(text)} of task '{task.name}'; expected a number from {low:g} to {high:g}."
        )
    return value


def read_answers(texts: Sequence[Any], starts: Sequence[Any], context: str, *, optional: bool, where: str) -> Answers:
    """The gold answers to a question.

    Args:
        texts: The answers.
        starts: The character of the text at which each one begins.
        context: The text.
        optional: Whether there may be none.
        where: What has them, for messages.

    Raises:
        UserError: If there is none and one is needed, or one is not where it says in the text.
    """
    if not texts and not optional:
        raise UserError(
            f"{where} has no answer; give it one, or set task.unanswerable=true if questions may have none, as in "
            "SQuAD 2.0 (task=squad_v2)."
        )
    if len(texts) != len(starts):
        raise UserError(f"{where} has {len(texts)} answers at {len(starts)} places; give one place for each answer.")
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not text:
            raise UserError(f"{where} has the answer {shown(text)}; expected a text.")
        if type(start) is not int or start < 0 or context[start : start + len(text)] != text:
            raise UserError(
                f"{where} has the answer {shown(text)} at character {shown(start)}, where its text has "
                f"{shown(context[start : start + len(text)] if type(start) is int and start >= 0 else '')}; correct "
                "answer_start, counted in characters from 0."
            )
    return Answers(tuple(texts), starts[0] if texts else 0, optional)
