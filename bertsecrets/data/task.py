"""The definition of a task: its columns, labels, metrics and splits."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from bertsecrets.errors import UserError, choices
from bertsecrets.settings import LONGEST, SHORTEST, Name, Settings
from bertsecrets.task_heads import TASK_HEADS
from bertsecrets.task_heads.labels import CHOICE
from bertsecrets.task_heads.metric import Metric

if TYPE_CHECKING:
    from bertsecrets.task_heads.base import TaskHead

# YAML reads a bare yes, no, on or off as a boolean and a bare number as a number.
_Names = Annotated[
    tuple[str, ...],
    Field(strict=False, description="a list of names, quoted where YAML would read something else"),
]
_NameMap = Annotated[dict[str, str], Field(description="names and their values, quoted where YAML would read numbers")]


def _ascending(limits: tuple[float, float]) -> tuple[float, float]:
    if not limits[0] < limits[1]:
        raise ValueError("not ascending")
    return limits


def _check_number(value: Any) -> Any:
    # Python treats true as 1.
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


class _TaskSection(Settings):
    """A section of ``conf/task``, in which a null key means its default."""

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in cls.model_fields}


class TableLayout(_TaskSection):
    """The columns of the user's own file at ``data.path``.

    Attributes:
        texts: Names of the text columns.
        label: Name of the label column.
        choices: Of multiple choice: names of the columns of the choices, or of one with a list of them.
    """

    texts: _Names
    label: str = Field(description="the name of the label column")
    choices: _Names = ()


class HubLayout(TableLayout):
    """Location and columns of a task's rows on the hub.

    Attributes:
        path: Data set, e.g. ``"nyu-mll/glue"``.
        name: Configuration of the data set.
    """

    path: str = Field(description="the name of a data set on the hub, e.g. nyu-mll/glue")
    name: str | None = Field(default=None, description="the name of a configuration of the data set")
    label: str = Field(default="label", description="the name of the label column")


class TsvLayout(_TaskSection):
    """Location of a task's rows in a folder with the original GLUE layout.

    Attributes:
        folder: Folder under ``data.root``.
        files: Split -> file name.
        texts: Names of the text columns.
        label: Name of the label column.
        positions: For files without a header (CoLA): column name -> position from 0.
        headless: Splits without a header in their file.
    """

    folder: str = Field(description="the name of a folder under data.root")
    files: _NameMap
    texts: _Names
    label: str = Field(description="the name of the label column")
    positions: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict, description="columns and their positions from 0"
    )
    headless: _Names = ()


class ConlluLayout(_TaskSection):
    """Location of a task's sentences in a folder of treebanks.

    Attributes:
        folder: Folder under ``data.root``.
        files: Split -> file name; empty to use every CoNLL file in the folder, with splits inferred from the file
            names.
        tags: Column of the words' tags, for a task that tags words.
    """

    folder: str = Field(description="the name of a folder under data.root")
    files: _NameMap = Field(default_factory=dict)
    tags: Literal["upos", "xpos", "deprel"] = Field(default="upos", description="upos, xpos or deprel")


class CoreferenceLayout(_TaskSection):
    """Location of documents with annotated coreference.

    Attributes:
        folder: Folder under ``data.root``; every file below it is used, with splits inferred from the file names. The
            demo's folder is part of the package.
    """

    folder: str = Field(description="the name of a folder under data.root")


class SquadLayout(_TaskSection):
    """The files of a folder in the format of SQuAD.

    Attributes:
        files: Split -> file name under ``data.root``.
    """

    files: _NameMap


class Training(_TaskSection):
    """The task's own training settings: its ``training`` section.

    Attributes:
        learning_rate: Peak learning rate.
        batch_size: Training examples per step, of all processes together.
        max_epochs: Epochs.
        max_length: Longest sequence in tokens, special tokens included.
        limit_train: Size of a random sample of the training examples, used by ``data.limit_train``'s default.
    """

    learning_rate: float = Field(gt=0, le=1, description="a number above 0 and up to 1")
    batch_size: int = Field(ge=1, description="a whole number from 1")
    max_epochs: int = Field(ge=1, description="a whole number from 1")
    max_length: int = Field(ge=SHORTEST, le=LONGEST, description=f"a whole number from {SHORTEST} to {LONGEST}")
    limit_train: int | None = Field(default=None, ge=1, description="a whole number from 1, or null")


class Task(_TaskSection):
    """A sentence or sentence-pair task.

    Attributes:
        name: Name in configs, tables and figures, e.g. ``"mrpc"``.
        metrics: Names of metrics of its kind of task head, or ``auc``; the first is used for tests and for choosing the
            best checkpoint.
        kind: Kind of task head, a name in ``bertsecrets.task_heads.TASK_HEADS``; None for one class per text, or for a
            score if there is a ``label_range``.
        texts: Sentences per example, 1 or 2; of multiple choice the texts before the choices, which begin with the
            second one.
        labels: Class names in the order of their indices; empty for a regression task. A task with neither labels nor
            ``label_range`` nor metrics provides sentences to analyse, not to fine-tune on.
        tsv_labels: Label as written in a TSV file -> class name, if they differ.
        label_range: Smallest and largest score of a regression task, else None.
        evaluation: Prefix of its metrics -> split, e.g. ``{"val": "validation"}``; sets after the first may be missing
            from a TSV folder. The split ``held_out`` is a part of the training rows.
        test: The same for the test splits.
        unanswerable: Whether questions may have no answer, as in SQuAD 2.0.
        hub, tsv, table, conllu, coreference, squad: Location of the rows in each source; None if the source lacks the
            task.
        demo: Whether the rows are generated by the project.
        source: The source that ``data=auto`` uses: the name of one from an installed package, or ``module:Class``; None
            to infer it from the layouts.
        layout: Location of the rows in that source, in its own keys.
    """

    name: Name
    metrics: _Names
    kind: str | None = Field(default=None, description="a kind of task head, such as tokens, or null")
    texts: Annotated[Literal[1, 2], BeforeValidator(_check_number)] = Field(description="1 (sentences) or 2 (pairs)")
    labels: _Names = ()
    tsv_labels: _NameMap = Field(default_factory=dict)
    label_range: Annotated[tuple[float, float], Field(strict=False), AfterValidator(_ascending)] | None = Field(
        default=None, description="the smallest and the largest score, e.g. [0, 5]"
    )
    evaluation: _NameMap = Field(default_factory=lambda: {"val": "validation"})
    test: _NameMap = Field(default_factory=lambda: {"test": "test"})
    unanswerable: bool = Field(default=False, description="true or false")
    hub: HubLayout | None = Field(default=None, description="a section of keys and values")
    tsv: TsvLayout | None = Field(default=None, description="a section of keys and values")
    table: TableLayout | None = Field(default=None, description="a section of keys and values")
    conllu: ConlluLayout | None = Field(default=None, description="a section of keys and values")
    coreference: CoreferenceLayout | None = Field(default=None, description="a section of keys and values")
    squad: SquadLayout | None = Field(default=None, description="a section of keys and values")
    demo: bool = Field(default=False, description="true or false")
    source: str | None = Field(default=None, min_length=1, description="the name of a source, or null")
    layout: dict[str, Any] = Field(default_factory=dict, description="a section of keys and values")
    _own_head: Any = PrivateAttr(default=None)

    @property
    def is_regression(self) -> bool:
        return self.label_range is not None

    @property
    def is_labelled(self) -> bool:
        """Whether the task has labels to learn."""
        kind = TASK_HEADS.get(self.kind or "")
        return self.is_regression or bool(self.labels) or (kind is not None and not kind.has_classes)

    @property
    def needs_labels(self) -> bool:
        """Whether its rows must have labels, which are not made of their texts."""
        return self.is_labelled and not self.head.makes_labels

    @property
    def without_labels(self) -> "Task":
        """The same task with nothing to learn or to judge by."""
        return self.model_copy(update={"kind": None, "labels": (), "label_range": None, "metrics": ()})

    @property
    def num_outputs(self) -> int:
        """Width of the classifier: one output per class; 1 for a score and for a task without labels."""
        return self.head.num_outputs

    @property
    def metric(self) -> Metric:
        """The metric that is tested: the first one."""
        metric: Metric = self.head.metrics[self.metrics[0]]
        return metric

    @classmethod
    def scored_by(cls, head: "TaskHead", **fields: Any) -> "Task":
        """A task with a head that its fields do not describe."""
        task = cls(kind=head.kind, **fields)
        task._own_head = head
        return task

    @property
    def head(self) -> "TaskHead":
        """What a model's head predicts."""
        if self._own_head is not None:
            own: TaskHead = self._own_head
            return own
        return _head(self.kind or ("regression" if self.is_regression else "sequence"), self.labels)


# Not a cached property, which copies of a task would take along.
@cache
def _head(kind: str, labels: tuple[str, ...]) -> "TaskHead":
    return TASK_HEADS[kind](labels)


def task_from_config(config: Mapping[str, Any]) -> Task:
    """The task of a ``conf/task/*.yaml``; its ``training`` section is checked as well.

    Raises:
        UserError: If a key is unknown or missing, a value does not fit, or keys contradict each other.
    """
    task = Task.read("task", {key: value for key, value in config.items() if key != "training"})
    Training.read("task.training", config.get("training"))
    if task.kind in TASK_HEADS and task.head.makes_labels:
        # Its labels are made of the texts.
        metrics = tuple(name for name in task.metrics if name in task.head.metrics) or tuple(task.head.metrics)
        task = task.model_copy(update={"labels": (), "tsv_labels": {}, "label_range": None, "metrics": metrics})
    if task.is_labelled and not task.metrics:
        raise UserError(f"Task '{task.name}' has no metrics; set at least one in task.metrics.")
    if not task.evaluation:
        raise UserError(f"Task '{task.name}' has no evaluation sets; expected e.g. evaluation: {{val: validation}}.")
    if task.kind is not None and task.kind not in TASK_HEADS:
        raise UserError(f"task.kind is '{task.kind}'; {choices(task.kind, TASK_HEADS)}.")
    if (task.labels and task.is_regression) or (task.metrics and not task.is_labelled):
        raise UserError(
            f"Task '{task.name}' needs either labels (classes) or label_range (smallest and largest score)."
        )
    if task.kind is not None:
        # Without a named kind, settings are checked before PyTorch is loaded.
        kind = type(task.head)
        if task.labels and not kind.has_classes:
            raise UserError(
                f"task.labels is {list(task.labels)}, but tasks of kind {kind.kind} have no classes; leave it out."
            )
        if kind.reads_windows and task.texts != 2:
            raise UserError(
                f"task.texts is {task.texts}; tasks of kind {kind.kind} have a question and its text: set 2."
            )
    if len(set(task.labels)) != len(task.labels) or len(task.labels) == 1:
        raise UserError(f"task.labels is {list(task.labels)}; expected two or more different names.")
    for written, label in task.tsv_labels.items():
        if label not in task.labels:
            raise UserError(f"task.tsv_labels turns '{written}' into '{label}'; {choices(label, task.labels)}.")
    _check_layouts(task)
    return task


def _check_layouts(task: Task) -> None:
    for section, layout in (("hub", task.hub), ("tsv", task.tsv), ("table", task.table)):
        if layout is not None and len(layout.texts) != task.texts:
            raise UserError(
                f"task.{section}.texts has {len(layout.texts)} columns; expected {task.texts} (task.texts)."
            )
        columns = () if layout is None else getattr(layout, "choices", ())
        if layout is not None and task.kind == CHOICE and len(columns) not in (1, len(task.labels)):
            raise UserError(
                f"task.{section}.choices has {len(columns)} columns; expected one for each of the {len(task.labels)} "
                "places in task.labels, or one with a list of choices."
            )
    if task.conllu is not None and task.conllu.files:
        for split in task.evaluation.values():
            if split not in task.conllu.files:
                raise UserError(
                    f"task.evaluation lists split '{split}', which has no file in task.conllu.files; "
                    f"{choices(split, task.conllu.files)}."
                )
    if task.tsv is not None:
        for split in ("train", *task.evaluation.values()):
            if split not in task.tsv.files:
                key = "Training needs" if split == "train" else "task.evaluation names"
                raise UserError(
                    f"{key} split '{split}', which has no file in task.tsv.files; {choices(split, task.tsv.files)}."
                )
        for column in (*task.tsv.texts, task.tsv.label):
            if task.tsv.headless and column not in task.tsv.positions:
                raise UserError(
                    f"task.tsv.positions lacks column '{column}'; files without a header need the position of each."
                )
