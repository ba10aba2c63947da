"""What every source of rows offers, and what the sources share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pytorch_lightning.utilities import rank_zero_warn

from bertsecrets.data.example import Example
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices

TRAIN = "train"
"""Name of the training split."""


class Source(Protocol):
    """The rows of a task's splits."""

    def examples(self, split: str) -> list[Example]:
        """All examples of a split, in file order; raises UserError if there are none or one is not valid."""

    def has(self, split: str) -> bool:
        """Whether the source has a split that some copies of the data lack."""

    def prepare(self) -> None:
        """Work for one process per machine, such as downloading; raises UserError if it fails."""


class SplitFiles:
    """One file per split; the base of sources that read such files.

    Args:
        task: Named in messages.
        folder: The folder of the files.
        files: Split -> file name.
    """

    def __init__(self, task: Task, folder: Path, files: Mapping[str, str]) -> None:
        self.task = task
        self.folder = folder
        self.files = files

    def path(self, split: str) -> Path:
        """The file of a split; raises UserError if the layout names none."""
        if split not in self.files:
            raise UserError(f"Unknown split '{split}' of task '{self.task.name}'; {choices(split, self.files)}.")
        return self.folder / self.files[split]

    def has(self, split: str) -> bool:
        path = self.path(split)
        if not path.is_file():
            rank_zero_warn(f"File '{path}' is missing; split '{split}' of task '{self.task.name}' is left out.")
        return path.is_file()

    def prepare(self) -> None:
        pass


def read_score(text: str | float, task: Task, where: str) -> float:
    """A score within the task's range; raises UserError, naming the place, for anything else."""
    assert task.label_range is not None
    low, high = task.label_range
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UserError(f"{where}: score '{text}' of task '{task.name}'; expected a number from {low:g} to {high:g}.")
    return value
