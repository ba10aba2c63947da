"""What a task is: its columns, labels, metrics and splits."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TsvColumns:
    """Where a task's fields stand in the files of the original GLUE layout.

    ``texts`` and ``label`` are column names, or positions in files without a header (CoLA).
    """

    folder: str
    texts: tuple[str, ...]
    label: str
    header: bool = True
    text_positions: tuple[int, ...] = ()
    label_position: int | None = None


@dataclass(frozen=True)
class Task:
    """A sentence or sentence-pair task.

    Args:
        name: Name in configs, tables and figures, e.g. ``"mrpc"``.
        labels: Class names in the order of their indices; empty for a regression task.
        label_range: Smallest and largest score of a regression task, else None.
        metrics: Names from ``bertsecrets.models.metrics.METRICS``; the first one chooses the best checkpoint.
        text_columns: Names of the one or two text columns in the hub's data set.
        evaluation: Name that keys its metrics -> split, e.g. ``{"val": "validation"}`` or
            ``{"mnli_m": "validation_matched", "mnli_mm": "validation_mismatched"}``.
        hub: Path and configuration name of the data set on the hub, e.g. ``("nyu-mll/glue", "mrpc")``.
        tsv: Layout of the original files: split -> file name under ``tsv.folder``.
    """

    name: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    text_columns: tuple[str, ...]
    label_range: tuple[float, float] | None = None
    evaluation: Mapping[str, str] = field(default_factory=lambda: {"val": "validation"})
    hub: tuple[str, str] | None = None
    tsv: TsvColumns | None = None
    tsv_files: Mapping[str, str] = field(default_factory=dict)
    demo: bool = False

    @property
    def is_regression(self) -> bool:
        return self.label_range is not None

    @property
    def num_outputs(self) -> int:
        """Width of the classifier: one output for a score, else one for each class."""
        return 1 if self.is_regression else len(self.labels)

    @property
    def is_pair(self) -> bool:
        return len(self.text_columns) == 2
