"""Files that hold a task's splits, one each."""

from collections.abc import Mapping
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_warn

from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices


class SplitFiles:
    """Finds the files of a task's splits; the base of sources that read one file a split.

    Args:
        task: Its name stands in messages.
        folder: Holds the files.
        files: Split -> name of its file.
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
