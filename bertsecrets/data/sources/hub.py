"""Rows from a data set of the Hugging Face hub, or a local copy of one."""

from pathlib import Path
from typing import Any

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import read_score
from bertsecrets.data.task import HubLayout, Task
from bertsecrets.errors import UserError, choices


class HubSource:
    """A data set loaded by the ``datasets`` library.

    Args:
        task: Names data set, configuration and columns.
        path: A local folder instead of the hub's name: one that ``load_dataset`` reads, or one made by
            ``save_to_disk``.
        revision, cache_dir: Passed on to the library.

    Raises:
        UserError: If the task is not on the hub.
    """

    def __init__(self, task: Task, path: str | None, revision: str | None, cache_dir: str | None) -> None:
        if task.hub is None:
            raise UserError(f"Task '{task.name}' has no hub layout; add a hub section to conf/task/{task.name}.yaml.")
        self.task = task
        self.layout: HubLayout = task.hub
        self.local = path
        self.revision = revision
        self.cache_dir = cache_dir

    def examples(self, split: str) -> list[Example]:
        rows = self._load(split)
        columns = self.layout.texts or ()
        for name in (*columns, self.layout.label):
            if name not in rows.column_names:
                raise UserError(
                    f"Data set '{self.local or self.layout.path}' has no column '{name}'; "
                    f"{choices(name, rows.column_names)}."
                )
        if len(rows) == 0:
            raise UserError(f"Split '{split}' of data set '{self.local or self.layout.path}' is empty.")
        texts = [rows[name] for name in columns]
        labels = rows[self.layout.label]
        return [
            Example(i, tuple(str(text) for text in row), self._label(label, f"{split} row {i}"))
            for i, (*row, label) in enumerate(zip(*texts, labels, strict=True))
        ]

    def _label(self, label: Any, where: str) -> int | float | None:
        if label is None or label == -1:
            return None
        if self.task.is_regression:
            return read_score(label, self.task, where)
        if isinstance(label, str) and label in self.task.labels:
            return self.task.labels.index(label)
        if not isinstance(label, int) or not 0 <= label < len(self.task.labels):
            raise UserError(
                f"{where}: label '{label}' of task '{self.task.name}'; expected 0 to {len(self.task.labels) - 1} "
                f"({', '.join(self.task.labels)})."
            )
        return label

    def _load(self, split: str) -> Any:
        import datasets

        try:
            if self.local is not None:
                folder = Path(self.local).expanduser()
                if not folder.is_dir():
                    raise UserError(f"data.path '{folder}' is no folder; give a local copy of the data set.")
                if (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file():
                    loaded = datasets.load_from_disk(str(folder))
                    return loaded[split] if isinstance(loaded, datasets.DatasetDict) else loaded
                return datasets.load_dataset(str(folder), split=split, cache_dir=self.cache_dir)
            return datasets.load_dataset(
                self.layout.path, self.layout.name, split=split, revision=self.revision, cache_dir=self.cache_dir
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise UserError(
                f"Split '{split}' of data set '{self.local or self.layout.path}' could not be loaded ({reason}); where "
                "the hub cannot be reached, use a folder in the GLUE layout: data=tsv data.root=<folder>."
            ) from error
