"""Read rows from a data set of the Hugging Face hub, or from a local copy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import TRAIN, check_length, read_score
from bertsecrets.data.task import HubLayout, Task
from bertsecrets.errors import UserError, choices
from bertsecrets.settings import shown


class HubSource:
    """A data set loaded by the ``datasets`` library.

    Args:
        task: Names data set, configuration and columns.
        path: A local folder instead of the hub's name: one that ``load_dataset`` reads, or a ``DatasetDict`` written
            by ``save_to_disk``.
        revision, cache_dir: Passed to the library.

    Raises:
        UserError: If the task is not on the hub, or ``path`` is not a directory.
    """

    def __init__(self, task: Task, path: str | None, revision: str | None, cache_dir: str | None) -> None:
        if task.hub is None:
            raise UserError(f"Task '{task.name}' has no hub layout; add a hub section to conf/task/{task.name}.yaml.")
        if path is not None and not Path(path).expanduser().is_dir():
            raise UserError(f"data.path '{path}' is not a directory; give a local copy of data set '{task.hub.path}'.")
        self.task = task
        self.layout: HubLayout = task.hub
        self.folder = None if path is None else Path(path).expanduser()
        self.revision = revision
        self.cache_dir = cache_dir

    @property
    def name(self) -> str:
        """The data set as messages name it."""
        return f"'{self.folder or self.layout.path}'"

    def examples(self, split: str) -> list[Example]:
        rows = self._load(split)
        columns = [*self.layout.texts, self.layout.label]
        for name in columns:
            if name not in rows.column_names:
                raise UserError(f"Data set {self.name} has no column '{name}'; {choices(name, rows.column_names)}.")
        if len(rows) == 0:
            raise UserError(f"Split '{split}' of data set {self.name} is empty; expected at least one row.")
        values = rows.select_columns(columns).with_format(None)[:]
        return [
            Example(i, self._texts(texts, f"{split} row {i}"), self._label(label, f"{split} row {i}"))
            for i, (*texts, label) in enumerate(zip(*(values[name] for name in columns), strict=True))
        ]

    def has(self, split: str) -> bool:
        return True

    def prepare(self) -> None:
        self._load(TRAIN)

    def _texts(self, texts: list[Any], where: str) -> tuple[str, ...]:
        for name, text in zip(self.layout.texts, texts, strict=True):
            if not isinstance(text, str):
                raise UserError(
                    f"{where} of data set {self.name}: column '{name}' holds {shown(text)}; expected a text."
                )
            check_length(text, f"{where} of data set {self.name}: column '{name}'")
        return tuple(texts)

    def _label(self, label: Any, where: str) -> int | float | None:
        # The hub writes -1 where GLUE withholds the label.
        if label is None or label == -1:
            return None
        if self.task.is_regression:
            return read_score(label, self.task, f"{where} of data set {self.name}")
        if isinstance(label, str) and label in self.task.labels:
            return self.task.labels.index(label)
        if not isinstance(label, int) or not 0 <= label < len(self.task.labels):
            raise UserError(
                f"{where} of data set {self.name}: label {shown(label)} of task '{self.task.name}'; expected 0 to "
                f"{len(self.task.labels) - 1} or {', '.join(self.task.labels)}."
            )
        return label

    def _load(self, split: str) -> Any:
        import datasets

        if self.folder is None:
            advice = "if the hub cannot be reached, use a local folder: data=tsv data.root=<GLUE folder>"
            return self._attempt(
                lambda: datasets.load_dataset(
                    self.layout.path, self.layout.name, split=split, revision=self.revision, cache_dir=self.cache_dir
                ),
                split,
                advice,
            )
        folder = str(self.folder)
        advice = "check the folder that data.path names"
        if (self.folder / "dataset_dict.json").is_file():
            return self._attempt(lambda: datasets.load_from_disk(folder)[split], split, advice)
        if (self.folder / "dataset_info.json").is_file() and (self.folder / "state.json").is_file():
            raise UserError(f"data.path '{folder}' holds a single split; expected a DatasetDict with all splits.")
        return self._attempt(
            lambda: datasets.load_dataset(folder, split=split, cache_dir=self.cache_dir), split, advice
        )

    def _attempt(self, load: Callable[[], Any], split: str, advice: str) -> Any:
        try:
            return load()
        # The errors of datasets, the hub client and its HTTP client have no common base class.
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise UserError(
                f"Split '{split}' of data set {self.name} could not be loaded ({reason}); {advice}."
            ) from error
