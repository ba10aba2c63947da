"""The ``data`` section of the configuration, and its source."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from bertsecrets.data.sources.base import ALL, CHOOSING, HELD_OUT, TEXT, TRAIN, VALIDATION, Source
from bertsecrets.data.sources.held_out import DividedSource, Division
from bertsecrets.data.task import Task
from bertsecrets.doors import error_text, load_named, load_offer, offers
from bertsecrets.errors import UserError, choices
from bertsecrets.results.files import describe_os_error, displayed
from bertsecrets.settings import Meaning, Section, Settings, shown
from bertsecrets.task_heads.labels import ANSWERS, CHOICE

_COUNT = "a whole number from 1"
_OPTIONAL_COUNT = f"{_COUNT}, or null"
_OPTIONAL_FOLDER = "the path of a folder, or null"
# Columns of files without names are numbered.
_Column = Annotated[
    str, Field(min_length=1), BeforeValidator(lambda value: str(value) if type(value) is int else value)
]


FILES = ("csv", "jsonl", "parquet", "columns", TEXT)
"""The sources that read a user's own file."""

SOURCES = ("auto", *FILES, "hub", "tsv", "squad", "conllu", "coreference", "demo")
"""The sources of this package, and ``auto``, which chooses by task."""

_TABLES = (*FILES, "hub", "tsv", "squad")
"""The sources with columns."""


class SourceConfig(Settings):
    """The ``data`` section: where the rows come from, how many of them, and how they are batched.

    Attributes:
        source: A name in :data:`SOURCES`, the name of a source from an installed package, or ``module:Class`` or
            ``file.py:Class``. ``auto`` uses the task's own source if it has one, the package for demo tasks, folders
            for treebanks and coreference, TSV files for tasks without a hub layout, and otherwise the hub.
        root: For ``tsv``, ``conllu`` and ``coreference``: the parent of the tasks' folders. For ``squad``: the folder
            of the files.
        path: For ``hub``: a local folder instead of the hub. For ``csv``, ``jsonl``, ``parquet``, ``columns``, ``text``
            and ``squad``: the file.
        eval_path: For the same formats: a file with evaluation rows.
        text, label: Names of the columns of a task inferred from a file or a data set, or their numbers in a file with
            a word in each line.
        choices: Of multiple choice: names of the columns of the choices, or of one with a list of them; None for other
            tasks.
        group: Name of a column that groups rows, such as the review of a sentence: a group is held out, resampled and
            tested together. None if rows are independent.
        target: Whether the labels are ``classes`` or ``scores``; ``auto`` treats decimals, and more than 20 distinct
            whole numbers, as scores.
        eval_fraction: Share of the training rows to hold out for evaluation if there are no evaluation rows.
        split_by: Whether rows are held out by a hash of their ``text``, or by their ``order``, the default of older
            runs.
        dataset, dataset_config: For ``hub`` without a task: the data set, and its configuration.
        revision: For ``hub``: revision of the data set.
        cache_dir: For ``hub``: folder for downloads; None means the library's default.
        skip_bad_rows: Skip rows with an empty cell or too many fields, and invalid ``conllu`` sentences and
            ``coreference`` documents, with a warning that counts them.
        limit_train: A random sample of this many training examples.
        limit_eval: A random sample of this many examples of each evaluation set.
        eval_batch_size: Largest evaluation batch.
        pad_to_multiple_of: Pad batches to a multiple of this many tokens.
        num_workers: Worker processes per data loader.
        only: Control: keep only the ``first`` or the ``second`` sentence of each pair, in every split.
        permute_labels: Control: shuffle the training labels with the seed, but not the evaluation labels.
    """

    conf = ("data/auto", "data/csv", "data/hub")

    source: str = Field(min_length=1, description="the name of a source")
    root: str | None = Field(min_length=1, description=_OPTIONAL_FOLDER)
    path: str | None = Field(min_length=1, description="the path of a folder or a file, or null")
    eval_path: str | None = Field(min_length=1, description="the path of a file, or null")
    text: _Column | Annotated[list[_Column], Field(min_length=1, max_length=2)] = Field(
        description="the name of a column, or a list of two"
    )
    label: _Column = Field(description="the name of one column, as each row has one label")
    choices: _Column | Annotated[list[_Column], Field(min_length=1)] | None = Field(
        description="the name of a column of lists, a list of columns, or null"
    )
    group: str | None = Field(min_length=1, description="the name of a column, or null")
    target: Literal["auto", "classes", "scores"] = Field(description="auto, classes or scores")
    eval_fraction: float = Field(ge=0.01, le=0.9, description="a number from 0.01 to 0.9")
    split_by: Literal["text", "order"] = Field(description="text or order")
    dataset: str | None = Field(min_length=1, description="the name of a data set on the hub, or null")
    dataset_config: str | None = Field(min_length=1, description="a configuration's name, or null")
    revision: str | None = Field(min_length=1, description="a revision of the hub, or null")
    cache_dir: Annotated[str | None, Meaning(outside=True)] = Field(min_length=1, description=_OPTIONAL_FOLDER)
    skip_bad_rows: bool = Field(description="true or false")
    limit_train: int | None = Field(ge=1, description=_OPTIONAL_COUNT)
    limit_eval: int | None = Field(ge=1, description=_OPTIONAL_COUNT)
    eval_batch_size: int = Field(ge=1, description=_COUNT)
    pad_to_multiple_of: int | None = Field(ge=1, description=_OPTIONAL_COUNT)
    num_workers: int = Field(ge=0, le=1024, description="a whole number from 0 to 1024")
    only: Literal["first", "second"] | None = Field(description="first, second, or null for both")
    permute_labels: bool = Field(description="true or false")

    @property
    def sentences(self) -> slice:
        """The sentences of a pair that ``only`` keeps."""
        return {"first": slice(0, 1), "second": slice(1, 2)}.get(self.only or "", slice(None))

    @field_validator("root", "path", "eval_path")
    @classmethod
    def _can_be_looked_for(cls, value: str | None, info: ValidationInfo) -> str | None:
        try:
            os.stat(Path(value or "").expanduser())
        except (FileNotFoundError, NotADirectoryError):
            # The source that reads it reports a missing file.
            pass
        except (OSError, RuntimeError, ValueError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
            raise UserError(
                f"data.{info.field_name} is {shown(value)}, which cannot be read ({reason}); give a readable path."
            ) from error
        return value

    @classmethod
    def defaults(cls) -> Section:
        return {**super().defaults(), "split_by": "order"}

    @property
    def controls(self) -> tuple[str, ...]:
        """Sentences on the chosen controls; empty without a control."""
        return (
            *(
                (f"Control: the model reads only the {self.only} sentence of each pair.",)
                if self.only is not None
                else ()
            ),
            *(("Control: the training labels are shuffled.",) if self.permute_labels else ()),
        )


def check_controls(config: SourceConfig, task: Task) -> None:
    """Raise UserError if a control does not fit the task, or a setting does not apply to its source."""
    if config.only is not None and task.texts != 2:
        raise UserError(
            f"data.only={config.only} keeps one sentence of a pair, but examples of task '{task.name}' have a single "
            "sentence; remove it, or choose a task of pairs."
        )
    if config.only is not None and task.kind == CHOICE:
        raise UserError(
            f"data.only={config.only} keeps one sentence of a pair, but examples of task '{task.name}' have choices; "
            "remove it."
        )
    if config.permute_labels and not task.needs_labels:
        raise UserError(
            f"data.permute_labels=true shuffles training labels, but task '{task.name}' has none; remove it, or "
            "choose a labelled task."
        )
    kind = _kind_of(config, task)
    if kind not in SOURCES:
        # A source of another package decides for itself what it reads.
        _check_offered(kind)
        return
    for name, value, kinds, advice in (
        ("path", config.path, (*FILES, "hub", "squad"), "for a CSV file write data=csv data.path=<file>"),
        ("group", config.group, _TABLES, "groups need a table with a column of group names"),
        (
            "root",
            config.root,
            ("tsv", "squad", "conllu", "coreference"),
            "for a folder of GLUE tasks write task=mrpc data=tsv data.root=<folder>",
        ),
    ):
        if value is not None and kind not in kinds:
            origin = "is generated by the project" if kind == "demo" else f"is read by data={kind}"
            raise UserError(
                f"data.{name} is {value}, but task '{task.name}' {origin}, which does not read it; {advice}, or "
                "remove it."
            )


def make_source(config: SourceConfig, task: Task, choosing: float | None = None) -> DividedSource:
    """The configured source; if the task asks for it, evaluation rows are split off from its training rows, or are all
    of them.

    Args:
        config: The ``data`` section.
        task: Names splits, columns and labels.
        choosing: Share of the training rows for choosing a checkpoint; None for none.

    Raises:
        UserError: If the source lacks the task or cannot be read.
    """
    evaluated = next((split for split in (HELD_OUT, ALL) if split in task.evaluation.values()), None)
    divisions = [] if evaluated is None else [Division(evaluated, config.eval_fraction, config.split_by == "text")]
    if choosing is not None:
        divisions.append(Division(CHOOSING, choosing))
    return DividedSource(task, _make_source(config, task), divisions, partial(_place_of, config, task))


def _place_of(config: SourceConfig, task: Task, split: str) -> str:
    """Where the rows of a split come from: a path, or the name of a data set."""
    kind = _kind_of(config, task)
    path = config.eval_path if kind in FILES and split == VALIDATION and config.eval_path is not None else config.path
    local = path or config.root
    if local is not None:
        return os.path.abspath(os.path.expanduser(local))
    return task.hub.path if kind == "hub" and task.hub is not None else kind


def _make_source(config: SourceConfig, task: Task) -> Source:
    kind = _kind_of(config, task)
    if kind not in SOURCES:
        try:
            source = _outside_class(kind)(task, config)
        except UserError:
            raise
        except Exception as error:
            # The constructor of a user's class can raise anything.
            raise UserError(
                f"The source '{kind}' could not be built ({error_text(error)}); correct its class."
            ) from error
        missing = [name for name in ("notes", "examples", "has", "prepare") if not hasattr(source, name)]
        if missing:
            raise UserError(f"The source '{kind}' lacks {' and '.join(missing)}; see bertsecrets.data.sources.Source.")
        checked: Source = source
        return checked
    if config.eval_path is not None and kind not in (*FILES, "squad"):
        raise UserError(
            f"data.eval_path is {config.eval_path}, but data={kind} reads no file of evaluation rows; to analyse a run "
            "on your own file, export its model (python -m bertsecrets export checkpoint=<run> folder=<folder>), "
            f"then run python -m bertsecrets analyze <folder> {config.eval_path}."
        )
    if (kind == "demo") != task.demo:
        expected = "generated by the project: use data=demo" if task.demo else "not generated: use data=hub or data=tsv"
        raise UserError(f"data={kind} does not fit task '{task.name}', which is {expected}.")
    # Each reader is imported where it is used: settings are checked without it, and a run needs only one.
    if kind == "demo" and task.kind == ANSWERS:
        from bertsecrets.data.sources.questions import DemoQuestions

        return DemoQuestions()
    if kind == "demo" and task.kind == CHOICE:
        from bertsecrets.data.sources.choice_rows import DemoChoices

        return DemoChoices()
    if kind == "demo" and task.coreference is None:
        from bertsecrets.data.sources.demo import DemoSource

        return DemoSource(task)
    if kind in FILES:
        if config.path is None:
            raise UserError(
                "data=text needs data.path=<file with a text in each line, or folder of .txt files>."
                if kind == TEXT
                else f"data={kind} needs data.path=<file>; name its columns with data.text and data.label."
            )
        evaluated = None if config.eval_path is None else displayed(Path(config.eval_path).expanduser())
        path = displayed(Path(config.path).expanduser())
        from bertsecrets.data.sources.table import FileSource

        return FileSource(task, kind, path, evaluated, config.skip_bad_rows, config.group)
    if kind == "squad":
        from bertsecrets.data.sources.questions import SquadSource

        if task.squad is None:
            raise UserError(f"Task '{task.name}' has no SQuAD layout; choose task=squad or task=squad_v2.")
        if (config.path is None) == (config.root is None):
            raise UserError(
                f"data=squad needs either data.root=<folder with {' and '.join(task.squad.files.values())}> or "
                "data.path=<SQuAD file>."
            )
        if config.path is None:
            return SquadSource(task, Path(str(config.root)).expanduser(), task.squad.files, config.group)
        if config.eval_path is None:
            raise UserError(
                f"data.path={config.path} has the questions to train on; give data.eval_path=<SQuAD file to evaluate> "
                "too, for an analysis without training the same file."
            )
        paths = {TRAIN: config.path, VALIDATION: config.eval_path}
        files = {split: str(Path(path).expanduser().absolute()) for split, path in paths.items()}
        return SquadSource(task, Path(), files, config.group)
    if kind in ("demo", "coreference"):
        from bertsecrets.data.sources.coreference.source import CoreferenceSource

        if kind == "demo":
            return CoreferenceSource(task, None)
        if config.root is None:
            raise UserError(
                f"Task '{task.name}' reads documents with coreference: give data.root=<folder of CoNLL-2012 or GAP "
                "files>."
            )
        return CoreferenceSource(task, Path(config.root).expanduser(), config.skip_bad_rows)
    if kind == "conllu":
        if config.root is None:
            folder = task.conllu.folder if task.conllu else "the treebank's folder"
            wanted = (
                f"folder that contains {folder}"
                if task.conllu is None or task.conllu.files
                else "folder of *.conllu files"
            )
            raise UserError(f"Task '{task.name}' reads a treebank: give data.root=<{wanted}>.")
        from bertsecrets.data.sources.conllu import ConlluSource

        return ConlluSource(task, Path(config.root).expanduser(), config.skip_bad_rows)
    from bertsecrets.data.sources.table import HubSource, TsvSource

    if kind == "tsv":
        if config.root is None:
            raise UserError("data=tsv needs data.root=<folder that contains MRPC, CoLA, ...>.")
        return TsvSource(task, Path(config.root).expanduser(), config.skip_bad_rows, config.group)
    return HubSource(task, config.path, config.revision, config.cache_dir, config.group)


def text_columns(config: SourceConfig, task: Task) -> tuple[str, ...]:
    """The names of the columns of an example's texts, as ``only`` leaves them; empty for sources without columns."""
    kind = _kind_of(config, task)
    layout = {"hub": task.hub, "tsv": task.tsv, **dict.fromkeys(FILES, task.table)}.get(kind)
    return () if layout is None else layout.texts[config.sentences]


def has_gold_words(config: SourceConfig, task: Task) -> bool:
    """Whether the configured source provides gold annotation of words."""
    kind = _kind_of(config, task)
    if kind not in SOURCES:
        return bool(getattr(_outside_class(kind), "annotated", False))
    return kind in ("demo", "conllu", "coreference") and task.kind not in (ANSWERS, CHOICE)


def _check_offered(kind: str) -> None:
    """Raise UserError if no package provides a source of this name; nothing is imported."""
    if kind not in offers("sources") and ":" not in kind:
        raise UserError(f"Unknown data.source '{kind}'; {choices(kind, {*SOURCES, *offers('sources')})}.")


def _outside_class(kind: str) -> Any:
    """The class of another package's source, by its registered name or as ``module:Class``."""
    _check_offered(kind)
    if kind in offers("sources"):
        offered = load_offer("sources", kind)
        if offered is None:
            raise UserError(
                f"The source '{kind}' cannot be imported from '{offers('sources')[kind].value}'; correct its package."
            )
        return offered
    return load_named("data.source", kind)


def _kind_of(config: SourceConfig, task: Task) -> str:
    """The name of the configured source; for ``auto``, the task's source."""
    if config.source != "auto":
        return config.source
    if task.source is not None:
        return task.source
    if task.demo:
        return "demo"
    if task.conllu is not None:
        return "conllu"
    if task.table is not None:
        return "csv"
    if task.coreference is not None:
        return "coreference"
    return "tsv" if task.hub is None and task.tsv is not None else "hub"
