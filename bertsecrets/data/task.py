"""What a task is: its columns, labels, metrics and splits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bertsecrets.errors import UserError, choices


@dataclass(frozen=True)
class HubLayout:
    """Where a task's rows stand on the hub: data set, configuration and columns (the task's own where None)."""

    path: str
    name: str | None = None
    texts: tuple[str, ...] | None = None
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
class Task:
    """A sentence or sentence-pair task.

    Args:
        name: Name in configs, tables and figures, e.g. ``"mrpc"``.
        metrics: Names from ``bertsecrets.models.metrics.METRICS``; the first one chooses the best checkpoint.
        texts: Number of sentences, 1 or 2.
        labels: Class names in the order of their indices; empty for a regression task.
        tsv_labels: Label as written in a TSV file -> class name, where the two differ.
        label_range: Smallest and largest score of a regression task, else None.
        evaluation: Name that keys its metrics -> split, e.g. ``{"val": "validation"}``; sets after the first may be
            missing from a TSV folder.
        hub, tsv: Where its rows are; None if it is not there.
        demo: Whether the project generates it.
    """

    name: str
    metrics: tuple[str, ...]
    texts: int
    labels: tuple[str, ...] = ()
    tsv_labels: Mapping[str, str] = field(default_factory=dict)
    label_range: tuple[float, float] | None = None
    evaluation: Mapping[str, str] = field(default_factory=lambda: {"val": "validation"})
    hub: HubLayout | None = None
    tsv: TsvLayout | None = None
    demo: bool = False

    @property
    def is_regression(self) -> bool:
        return self.label_range is not None

    @property
    def num_outputs(self) -> int:
        """Width of the classifier: one output for a score, else one for each class."""
        return 1 if self.is_regression else len(self.labels)


def task_from_config(config: Mapping[str, Any]) -> Task:
    """Reads ``conf/task/*.yaml`` (``training`` there is the optimisation's, not the task's).

    Raises:
        UserError: If a key is unknown or missing, or neither or both of ``labels`` and ``label_range`` are given.
    """
    known = [item.name for item in fields(Task)]
    for key in config:
        if key not in (*known, "training"):
            raise UserError(f"Unknown key 'task.{key}'; {choices(str(key), known)}.")
    for key in ("name", "metrics", "texts"):
        if not config.get(key):
            raise UserError(f"task.{key} is missing; every task in conf/task needs name, metrics and texts.")
    if bool(config.get("labels")) == bool(config.get("label_range")):
        raise UserError(
            f"Task '{config['name']}' needs either labels (classes) or label_range (smallest and largest score)."
        )
    values = {str(key): _frozen(value) for key, value in config.items() if key != "training" and value is not None}
    if "label_range" in values:
        low, high = values["label_range"]
        values["label_range"] = (float(low), float(high))
    if "hub" in values:
        values["hub"] = HubLayout(**values["hub"])
    if "tsv" in values:
        values["tsv"] = TsvLayout(**values["tsv"])
    return Task(**values)


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _frozen(item) for key, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value
