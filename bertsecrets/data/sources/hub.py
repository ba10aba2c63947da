"""Read rows from a data set of the Hugging Face hub, or from a local copy."""

from collections.abc import Callable, Mapping
from logging import CRITICAL
from pathlib import Path
from typing import Any

from huggingface_hub import logging as hub_logging

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import TRAIN, check_length, check_own_order, read_score
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
        # The library would take a relative path such as "csv" for the name of its reader of all such files around.
        self.folder = None if path is None else Path(path).expanduser().resolve()
        self.revision = revision
        self.cache_dir = cache_dir
        self.notes: tuple[str, ...] = ()

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
        # Numbers are indices of classes that the column names, else names themselves.
        names = getattr(rows.features[self.layout.label], "names", None)
        return [
            Example(i, self._texts(texts, f"{split} row {i}"), self._label(label, names, f"{split} row {i}"))
            for i, (*texts, label) in enumerate(zip(*(values[name] for name in columns), strict=True))
        ]

    def has(self, split: str) -> bool:
        return True

    def prepare(self) -> None:
        self._load(TRAIN)

    def splits(self) -> Mapping[str, Any]:
        """All splits of the data set by name; raises UserError if it cannot be loaded."""
        splits: Mapping[str, Any] = self._load(None)
        return splits

    def _texts(self, texts: list[Any], where: str) -> tuple[str, ...]:
        for name, text in zip(self.layout.texts, texts, strict=True):
            if not isinstance(text, str):
                raise UserError(
                    f"{where} of data set {self.name}: column '{name}' holds {shown(text)}; expected a text."
                )
            check_length(text, f"{where} of data set {self.name}: column '{name}'")
        return tuple(texts)

    def _label(self, label: Any, names: list[str] | None, where: str) -> int | float | None:
        if label is None or (label == -1 and self._withholds_labels()):
            return None
        if self.task.is_regression:
            return read_score(label, self.task, f"{where} of data set {self.name}")
        places = {name.casefold(): place for place, name in enumerate(self.task.labels)}
        # The task may have the column's classes in another order.
        if names is not None and len(places) == len(names) and {name.casefold() for name in names} == places.keys():
            return places[names[label].casefold()]
        name = str(label) if names is None else label
        if name in self.task.labels:
            return self.task.labels.index(name)
        if not isinstance(label, int) or not 0 <= label < len(self.task.labels):
            raise UserError(
                f"{where} of data set {self.name}: label {shown(label)} of task '{self.task.name}'; expected 0 to "
                f"{len(self.task.labels) - 1} or {', '.join(self.task.labels)}."
            )
        check_own_order(self.task)
        return label

    def _withholds_labels(self) -> bool:
        """Whether -1 stands for no label, as in GLUE's test splits on the hub."""
        if self.task.label_range is not None:
            return self.task.label_range[0] > -1
        return "-1" not in self.task.labels

    def _load(self, split: str | None) -> Any:
        import datasets
        import datasets.packaged_modules
        from datasets.packaged_modules.csv.csv import CsvConfig

        description = f"Data set {self.name}" if split is None else f"Split '{split}' of data set {self.name}"
        if self.folder is None:
            readers = Path(datasets.packaged_modules.__file__).parent
            if any((around / self.layout.path).is_dir() for around in (readers, Path())):
                raise UserError(
                    f"Data set '{self.layout.path}' is also the name of a folder here or of a file format, which the "
                    "datasets library would read instead; give data.path=<folder>, or the full name on the hub."
                )
            return self._attempt(
                lambda: datasets.load_dataset(
                    self.layout.path, self.layout.name, split=split, revision=self.revision, cache_dir=self.cache_dir
                ),
                description,
            )
        folder = str(self.folder)
        if self._is_saved():
            saved = self._attempt(lambda: datasets.load_from_disk(folder), description)
            return saved if split is None else self._attempt(lambda: saved[split], description)
        # A text "NA" or "null" is a text; the reader of other formats does not know these settings.
        builder = self._attempt(lambda: datasets.load_dataset_builder(folder, cache_dir=self.cache_dir), description)
        texts = {}
        if isinstance(builder.config, CsvConfig):
            texts = {"keep_default_na": False, "na_values": [""]}
        return self._attempt(
            lambda: datasets.load_dataset(folder, split=split, cache_dir=self.cache_dir, **texts), description
        )

    def _is_saved(self) -> bool:
        """Whether the folder is a ``DatasetDict`` on disk; raises UserError if it is one of its splits."""
        assert self.folder is not None
        if (self.folder / "dataset_info.json").is_file() and (self.folder / "state.json").is_file():
            raise UserError(f"data.path '{self.folder}' holds a single split; expected a DatasetDict with all splits.")
        return (self.folder / "dataset_dict.json").is_file()

    def _attempt(self, load: Callable[[], Any], description: str) -> Any:
        import datasets

        # Their lines, such as one on each attempt to reach the hub, say less than the sentence below.
        loggings = (datasets.logging, hub_logging)
        levels = [logging.get_verbosity() for logging in loggings]
        for logging in loggings:
            logging.set_verbosity(CRITICAL)
        try:
            return load()
        # The errors of datasets, the hub client and its HTTP client have no common base class.
        except Exception as error:
            generated = isinstance(error, datasets.exceptions.DatasetGenerationError)
            cause = error.__cause__ if generated and error.__cause__ is not None else error
            lines = (str(cause).strip() or type(cause).__name__).splitlines()
            if isinstance(error, datasets.exceptions.DatasetGenerationCastError):
                # Its own first line says nothing, and its cause prints both schemas; the others name the columns and
                # the file.
                lines = [" ".join(" ".join(str(error).splitlines()[1:]).split()).partition(" Please ")[0]]
            reason = lines[0].rstrip(".")
            raise UserError(f"{description} could not be loaded ({reason}); {self._advice()}.") from error
        finally:
            for logging, level in zip(loggings, levels, strict=True):
                logging.set_verbosity(level)

    def _advice(self) -> str:
        if self.folder is not None:
            return "check the folder that data.path names"
        local = "data.path=<folder>" if self.task.tsv is None else "data=tsv data.root=<GLUE folder>"
        return f"if the hub cannot be reached, use a local folder: {local}"
