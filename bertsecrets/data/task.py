"""What a task is: its columns, labels, metrics and splits."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from bertsecrets.errors import UserError, choices


@dataclass(frozen=True)
class HubLayout:
    """Where a task's rows stand on the hub.

    Args:
        path: Data set, e.g. ``"nyu-mll/glue"``.
        texts: Names of the text columns.
        name: Configuration of the data set.
        label: Name of the label column.
    """

    path: str
    texts: tuple[str, ...]
    name: str | None = None
    label: str = "label"


@dataclass(frozen=True)
class TsvLayout:
    """Where a task's rows stand in the files of the original GLUE layout.

    Args:
        folder: Folder under ``data.root``.
        files: Split -> file name.
        texts: Names of the text columns.
        label: Name of the label column.
        positions: For files without a header (CoLA): column name -> position from 0.
        headless: Splits whose file has no header.
    """

    folder: str
    files: Mapping[str, str]
    texts: tuple[str, ...]
    label: str
    positions: Mapping[str, int] = field(default_factory=dict)
    headless: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConlluLayout:
    """Where the sentences of a treebank stand.

    Args:
        folder: Folder under ``data.root``.
        files: Split -> file name.
    """

    folder: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Task:
    """A sentence or sentence-pair task.

    Args:
        name: Name in configs, tables and figures, e.g. ``"mrpc"``.
        metrics: Names from ``bertsecrets.models.metrics.METRICS``; the first one chooses the best checkpoint.
        texts: Number of sentences, 1 or 2.
        labels: Class names in the order of their indices; empty for a regression task. A task that has neither labels
            nor a range nor metrics is one of sentences to look at, not to fine-tune on.
        tsv_labels: Label as written in a TSV file -> class name, where the two differ.
        label_range: Smallest and largest score of a regression task, else None.
        evaluation: Name that keys its metrics -> split, e.g. ``{"val": "validation"}``; sets after the first may be
            missing from a TSV folder.
        test: The same for the test splits.
        hub, tsv, conllu: Where its rows are; None if it is not there.
        demo: Whether the project generates it.
    """

    name: str
    metrics: tuple[str, ...]
    texts: int
    labels: tuple[str, ...] = ()
    tsv_labels: Mapping[str, str] = field(default_factory=dict)
    label_range: tuple[float, float] | None = None
    evaluation: Mapping[str, str] = field(default_factory=lambda: {"val": "validation"})
    test: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})
    hub: HubLayout | None = None
    tsv: TsvLayout | None = None
    conllu: ConlluLayout | None = None
    demo: bool = False

    @property
    def is_regression(self) -> bool:
        return self.label_range is not None

    @property
    def is_labelled(self) -> bool:
        """Whether there is anything to learn."""
        return self.is_regression or bool(self.labels)

    @property
    def num_outputs(self) -> int:
        """Width of the classifier: one output for each class, else one: for a score, or for nobody to read."""
        return len(self.labels) or 1


@dataclass(frozen=True)
class _Training:
    """The keys of ``training``; whoever uses them checks their values."""

    learning_rate: float
    batch_size: int
    max_epochs: int
    max_length: int


def task_from_config(config: Mapping[str, Any]) -> Task:
    """Reads ``conf/task/*.yaml`` (``training`` there is the optimisation's, not the task's).

    Raises:
        UserError: If a key is unknown, missing or of another kind than expected, or the keys contradict each other.
    """
    values = _known(Task, {key: value for key, value in config.items() if key != "training"}, "task")
    _known(_Training, config.get("training"), "task.training")
    name = values["name"]
    for key in ("metrics", "labels"):
        values[key] = _strings(values.get(key, ()), f"task.{key}")
    for key in ("tsv_labels", "evaluation", "test"):
        if key in values:
            values[key] = _string_map(values[key], f"task.{key}")
    if "label_range" in values:
        values["label_range"] = _range(values["label_range"])
    if "hub" in values:
        values["hub"] = _hub(values["hub"])
    if "tsv" in values:
        values["tsv"] = _tsv(values["tsv"])
    if "conllu" in values:
        values["conllu"] = _conllu(values["conllu"])
    task = Task(**values)
    if task.is_labelled and not task.metrics:
        raise UserError(f"Task '{name}' has no metrics; name at least one in task.metrics.")
    if not task.evaluation:
        raise UserError(f"Task '{name}' has no evaluation sets; expected e.g. evaluation: {{val: validation}}.")
    _check_labels(task)
    _check_layouts(task)
    return task


def _check_labels(task: Task) -> None:
    if (task.labels and task.is_regression) or (task.metrics and not task.is_labelled):
        raise UserError(
            f"Task '{task.name}' needs either labels (classes) or label_range (smallest and largest score)."
        )
    if len(set(task.labels)) != len(task.labels) or len(task.labels) == 1:
        raise UserError(f"task.labels is {list(task.labels)}; expected two or more different names.")
    for written, label in task.tsv_labels.items():
        if label not in task.labels:
            raise UserError(f"task.tsv_labels turns '{written}' into '{label}'; {choices(label, task.labels)}.")


def _check_layouts(task: Task) -> None:
    if task.texts not in (1, 2):
        raise UserError(f"task.texts is {task.texts!r}; expected 1 (sentences) or 2 (pairs).")
    for section, layout in (("hub", task.hub), ("tsv", task.tsv)):
        if layout is not None and len(layout.texts) != task.texts:
            raise UserError(
                f"task.{section}.texts names {len(layout.texts)} columns; expected {task.texts}, as task.texts says."
            )
    if task.conllu is not None:
        for split in task.evaluation.values():
            if split not in task.conllu.files:
                raise UserError(
                    f"task.conllu.files has no file for split '{split}'; {choices(split, task.conllu.files)}."
                )
    if task.tsv is not None:
        for split in ("train", *task.evaluation.values()):
            if split not in task.tsv.files:
                raise UserError(f"task.tsv.files has no file for split '{split}'; {choices(split, task.tsv.files)}.")
        for column in (*task.tsv.texts, task.tsv.label):
            if task.tsv.headless and column not in task.tsv.positions:
                raise UserError(
                    f"task.tsv.positions lacks column '{column}'; files without a header need the position of each."
                )


def _hub(config: Any) -> HubLayout:
    values = _known(HubLayout, config, "task.hub")
    values["texts"] = _strings(values["texts"], "task.hub.texts")
    return HubLayout(**values)


def _tsv(config: Any) -> TsvLayout:
    values = _known(TsvLayout, config, "task.tsv")
    for key in ("texts", "headless"):
        values[key] = _strings(values.get(key, ()), f"task.tsv.{key}")
    values["files"] = _string_map(values["files"], "task.tsv.files")
    positions = values.get("positions", {})
    if not isinstance(positions, Mapping) or not all(type(n) is int and n >= 0 for n in positions.values()):
        raise UserError(f"task.tsv.positions is {positions!r}; expected columns and their positions from 0.")
    return TsvLayout(**values)


def _conllu(config: Any) -> ConlluLayout:
    values = _known(ConlluLayout, config, "task.conllu")
    values["files"] = _string_map(values["files"], "task.conllu.files")
    return ConlluLayout(**values)


def _known(kind: type[Any], config: Any, section: str) -> dict[str, Any]:
    """The keys of a section that have a value; raises UserError at one that is unknown or missing."""
    if not isinstance(config, Mapping):
        raise UserError(f"{section} is {config!r}; expected keys and values.")
    known = {item.name: item for item in fields(kind)}
    for key in config:
        if key not in known:
            raise UserError(f"Unknown key '{section}.{key}'; {choices(str(key), known)}.")
    values = {str(key): value for key, value in config.items() if value is not None}
    for name, item in known.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise UserError(f"{section}.{name} is missing; every {section} section needs it.")
    return values


def _strings(value: Any, key: str) -> tuple[str, ...]:
    # YAML turns a bare yes, no, on or off into a truth value and a bare number into a number.
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{key} is {value!r}; expected a list of names, in quotes where YAML reads something else.")
    return tuple(value)


def _string_map(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for pair in value.items() for item in pair):
        raise UserError(f"{key} is {value!r}; expected names and their values, in quotes where YAML reads numbers.")
    return dict(value)


def _range(value: Any) -> tuple[float, float]:
    numbers = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(numbers) != 2 or not all(type(item) in (int, float) for item in numbers) or not numbers[0] < numbers[1]:
        raise UserError(f"task.label_range is {value!r}; expected the smallest and the largest score, e.g. [0, 5].")
    return float(numbers[0]), float(numbers[1])
