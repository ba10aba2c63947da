"""The configuration, read and checked once, before anything is loaded: every section as typed settings."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.cli.targets import (
    accepted_arguments,
    check_arguments,
    is_of_this_package,
    load_target,
    make,
    read_trainer,
)
from bertsecrets.data.annotation import AnnotationConfig, make_annotator
from bertsecrets.data.framenet.source import FrameNetSource
from bertsecrets.data.sources import SourceConfig, check_controls, has_gold_words
from bertsecrets.data.sources.base import CHOOSING
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError, choices
from bertsecrets.keys import (
    COMMANDS,
    AnalyzeKeys,
    CheckpointSettings,
    CommonKeys,
    CompareKeys,
    ExportKeys,
    ModelKeys,
    ReportSettings,
    SweepSettings,
    TrainerSettings,
    TrainKeys,
    ViewKeys,
    WatchKeys,
    command_of,
)
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.models.spec import ModelSpec, check_init
from bertsecrets.papers.names import LEDGER, page_name
from bertsecrets.pruning.settings import PruneSettings, ShrinkSettings, check_class_loss
from bertsecrets.reporting.gate import check_metrics, conditions
from bertsecrets.results.experiment import check_name
from bertsecrets.results.run import Run
from bertsecrets.settings import Section, Settings, check_numbers, configurations, shown

# Importing PyTorch, Lightning, measures and callbacks takes seconds, so plain values are checked before any of them is
# imported.
if TYPE_CHECKING:
    from bertsecrets.measures.analysis import Watched
    from bertsecrets.measures.base import Measure

OFFERED = ("ablation", "prune", "shrink")
"""Sections that are passed to callbacks whose constructors accept them."""

_NOT_A_MEASURE = (
    "measure.{}._target_ is {}, which is not a Measure; name a subclass of bertsecrets.measures.base.Measure."
)


_Keys = TypeVar("_Keys", bound=ModelKeys)


@dataclass(frozen=True)
class ModelSettings(Generic[_Keys]):
    """Settings of a command that loads a checkpoint and analyses nothing.

    Args:
        keys: The top-level keys.
        task, model: The parsed sections.
    """

    keys: _Keys
    task: Task
    model: ModelSpec


@dataclass(frozen=True)
class RunSettings:
    """Settings shared by training and analysis.

    Args:
        keys: The top-level keys.
        task, source, model, trainer, ablation, prune, shrink, measures: The parsed sections.
        loggers: Sections of loggers by name.
        report: Settings of the report.
        callbacks: Sections of callbacks by name.
        config: The whole configuration as plain values, to be recorded.
    """

    keys: CommonKeys
    task: Task
    source: SourceConfig
    model: ModelSpec
    trainer: TrainerSettings
    loggers: dict[str, Section]
    ablation: AblationSettings
    prune: PruneSettings
    shrink: ShrinkSettings
    measures: Mapping[str, "Watched"]
    report: ReportSettings
    callbacks: dict[str, Section]
    config: Section

    @property
    def offered(self) -> dict[str, Settings]:
        """The sections that callbacks take if their constructors do, by name."""
        return {name: getattr(self, name) for name in OFFERED}

    @property
    def training(self) -> Section:
        """The task's ``training`` section."""
        section: Section = self.keys.task["training"]
        return section


@dataclass(frozen=True)
class TrainSettings(RunSettings):
    """Settings of ``train.py``."""

    keys: TrainKeys
    optimizer: OptimizerConfig
    checkpoint: CheckpointSettings


@dataclass(frozen=True)
class AnalyzeSettings(RunSettings):
    """Settings of ``analyze.py``."""

    keys: AnalyzeKeys


def read_train(config: Mapping[str, Any]) -> TrainSettings:
    """Read the settings of ``train.py``.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    check_numbers(config)
    keys = TrainKeys.read("", config)
    common = _read_common(keys, config)
    if not common["task"].is_labelled:
        raise UserError(f"Task '{common['task'].name}' has no labels to fine-tune on; use analyze.py.")
    common |= {
        "report": ReportSettings.read("report", keys.report),
        "optimizer": OptimizerConfig.read("optimizer", keys.optimizer),
        "checkpoint": CheckpointSettings.read("checkpoint", keys.checkpoint),
    }
    return TrainSettings(**common, keys=keys, **_read_classes(keys, common, "callbacks"))


def read_analyze(config: Mapping[str, Any]) -> AnalyzeSettings:
    """Read the settings of ``analyze.py``.

    Raises:
        UserError: If a key is unknown or a value does not fit, or no checkpoint is given.
    """
    check_numbers(config)
    keys = AnalyzeKeys.read("", config)
    if keys.checkpoint is None and keys.resume is None:
        raise UserError("Config key 'checkpoint' has no value; give it on the command line as checkpoint=<run folder>.")
    common = _read_common(keys, config)
    common["report"] = ReportSettings.read("report", keys.report)
    classes = _read_classes(keys, common, "analysis", reference=None, origin=None)
    if keys.fail_if is not None:
        check_metrics(keys.fail_if, common["task"].metrics)
        kinds = [load_target(f"analysis.{name}", section) for name, section in classes["callbacks"].items()]
        if not any(getattr(kind, "tests_loss", False) for kind in kinds):
            raise UserError(
                f"fail_if is '{keys.fail_if}', but no chosen analysis tests a loss of score; choose analysis=disable, "
                "analysis=prune or analysis=shrink."
            )
    return AnalyzeSettings(**common, keys=keys, **classes)


def read_compare(config: Mapping[str, Any]) -> CompareKeys:
    """Read the settings of ``compare``.

    Raises:
        UserError: If a key is unknown, a value does not fit, or statements are chosen without their page.
    """
    keys = CompareKeys.read("", config)
    if keys.fail_if is not None:
        conditions(keys.fail_if)
    paper = page_name(keys.paper)
    if keys.statements and paper != LEDGER:
        raise UserError(
            f"statements is {shown(keys.statements)}, which only affects the page of statements; add paper=statements."
        )
    if paper:
        # Slow imports.
        from bertsecrets.papers.page import find_page
        from bertsecrets.papers.statements.statement import read_statements

        if keys.statements:
            read_statements(keys.statements)
        find_page(paper)
    return keys


def read_model(kind: type[_Keys], config: Mapping[str, Any]) -> ModelSettings[_Keys]:
    """Read the settings of ``view`` or ``export``, whose top-level keys have this type.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    keys = kind.read("", config)
    check_init(keys.init)
    model = ModelSpec.read("model", keys.model)
    if model.family is not None:
        from bertsecrets.models.families import load_family

        load_family(model.family)
    return ModelSettings(keys, task_from_config(keys.task), model)


def read_settings(config: Mapping[str, Any]) -> RunSettings:
    """Read the settings of ``train`` or ``analyze``.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    return read_train(config) if command_of(config) == "train" else read_analyze(config)


def check_settings(config: Mapping[str, Any]) -> None:
    """Check the settings of any command.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    check_numbers(config)
    command = command_of(config)
    readers: dict[str, Callable[[Mapping[str, Any]], object]] = {
        "train": read_train,
        "analyze": read_analyze,
        "compare": read_compare,
        "view": functools.partial(read_model, ViewKeys),
        "export": functools.partial(read_model, ExportKeys),
    }
    if command in readers:
        readers[command](config)
    else:
        COMMANDS[command].read("", config)


def _read_common(keys: CommonKeys, config: Mapping[str, Any]) -> dict[str, Any]:
    task = task_from_config(keys.task)
    check_init(keys.init)
    if (paper := SweepSettings.read("sweep", keys.sweep).paper) and paper is not True:
        page_name(paper, "sweep.paper")
    FrameNetSource.read("framenet", keys.framenet)
    scores = [f"{name}/{metric}" for name in task.evaluation for metric in (*task.metrics, "loss")]
    if keys.objective is not None and keys.objective not in scores:
        raise UserError(f"objective is '{keys.objective}'; {choices(keys.objective, scores)}.")
    ablation = AblationSettings.read("ablation", keys.ablation)
    _check_evaluation("evaluation", keys.evaluation, task)
    _check_evaluation("ablation.evaluation", ablation.evaluation, task)
    source = SourceConfig.read("data", keys.data)
    check_controls(source, task)
    prune = PruneSettings.read("prune", keys.prune)
    _check_evaluation("prune.evaluation", prune.evaluation, task)
    shrink = ShrinkSettings.read("shrink", keys.shrink)
    _check_evaluation("shrink.evaluation", shrink.evaluation, task)
    for key, smaller in (("prune", prune), ("shrink", shrink)):
        if smaller.max_class_loss is not None:
            check_class_loss(key, smaller.max_class_loss, task)
    for name, section in _without_null(keys.measure).items():
        _watch_keys(keys, name, section)
    return {
        "task": task,
        "source": source,
        "model": ModelSpec.read("model", keys.model),
        "trainer": read_trainer(keys.trainer),
        "ablation": ablation,
        "prune": prune,
        "shrink": shrink,
        "config": dict(config),
    }


def _read_classes(keys: CommonKeys, common: Mapping[str, Any], group: str, **offered: Any) -> dict[str, Any]:
    """The sections that name a class, which is imported to check its arguments.

    Args:
        keys: The top-level keys.
        common: The sections read so far.
        group: The section of callbacks.
        offered: Further arguments that callbacks may accept.
    """
    from bertsecrets.measures.base import Need
    from bertsecrets.models.families import load_family
    from bertsecrets.models.loading import load_masked_lm
    from bertsecrets.models.metrics import check_metrics

    task, source = common["task"], common["source"]
    check_metrics(task)
    if common["model"].family is not None:
        load_family(common["model"].family)
    loggers = _without_null(keys.logger)
    for name, section in loggers.items():
        check_arguments(f"logger.{name}", section, ("run", "config"))
    annotated = AnnotationConfig.read("annotation", keys.annotation).pipeline is not None
    if annotated:
        make_annotator(keys.annotation)
    measures = {}
    if keys.measure:
        measures = _read_measures(keys, annotated or has_gold_words(source, task), task.is_labelled)
    if any(Need.MASKED_LM in watched.make(1, 1).needs for watched in measures.values()):
        # Checked before the data are read; the callback loads it again.
        load_masked_lm(common["model"], keys.init)
    offered |= {name: common[name] for name in OFFERED}
    scored = [*task.evaluation] if task.is_labelled else []
    if "checkpoint" in common and common["checkpoint"].report == "best":
        scored.append(CHOOSING)
    return {
        "loggers": loggers,
        "measures": measures,
        "callbacks": _read_callbacks(group, getattr(keys, group), task, scored, **offered),
    }


def _without_null(sections: Mapping[str, Section | None]) -> dict[str, Section]:
    """The sections that are not set to ``null``."""
    return {name: section for name, section in sections.items() if section is not None}


def _check_evaluation(key: str, name: Any, task: Task) -> None:
    if isinstance(name, str) and name not in task.evaluation:
        raise UserError(
            f"{key} is {shown(name)}, which task '{task.name}' does not have; {choices(name, task.evaluation)}."
        )


def _build_measure(name: str, target: Section, num_layers: int, num_heads: int) -> "Measure":
    """The measure of a section for a model of this size."""
    from bertsecrets.measures.base import Measure

    measure = make(target, num_layers=num_layers, num_heads=num_heads)
    if not isinstance(measure, Measure):
        raise UserError(_NOT_A_MEASURE.format(name, target["_target_"]))
    return measure


def _read_measures(keys: CommonKeys, annotated: bool, labelled: bool) -> dict[str, "Watched"]:
    """The chosen measures by the keys of their sections, each built once for a tiny model as a check."""
    from bertsecrets.measures.analysis import Watched
    from bertsecrets.measures.base import Measure
    from bertsecrets.measures.one_pass import check_examples

    measures = {}
    names: dict[str, str] = {}
    for key, section in _without_null(keys.measure).items():
        if "_target_" not in section and key in configurations("measure"):
            # The section only sets keys of a measure that was not chosen.
            continue
        section_key = f"measure.{key}"
        target = {name: value for name, value in section.items() if name not in WatchKeys.model_fields}
        kind = load_target(section_key, target)
        if inspect.isclass(kind) and not issubclass(kind, Measure):
            raise UserError(_NOT_A_MEASURE.format(key, target["_target_"]))
        check_arguments(section_key, target, ("num_layers", "num_heads"))
        watch = _watch_keys(keys, key, section)
        tracked = None if watch.tracked is None else tuple(watch.tracked)
        measures[key] = Watched(functools.partial(_build_measure, key, target), watch.every_n_validations, tracked)
        measure = _tried(section_key, functools.partial(measures[key].make, 1, 1))
        _tried(section_key, functools.partial(check_name, measure.name))
        if not measure.own_examples:
            check_examples(measure, annotated, labelled)
        if measure.name in names:
            raise UserError(
                f"Two measures are called '{measure.name}' ({names[measure.name]} and {section_key}); rename or "
                "remove one of them."
            )
        names[measure.name] = section_key
        columns = [column.name for column in measure.columns]
        for name in tracked or ():
            if name not in columns:
                raise UserError(f"{section_key}.tracked names the column '{name}'; {choices(name, columns)}.")
    return measures


def _watch_keys(keys: CommonKeys, name: str, section: Section) -> WatchKeys:
    values = {key: value for key, value in section.items() if key in WatchKeys.model_fields}
    return WatchKeys.read(f"measure.{name}", {"every_n_validations": keys.every_n_validations, **values})


def _read_callbacks(
    group: str, sections: Mapping[str, Section | None], task: Task, scored: Sequence[str], **offered: Any
) -> dict[str, Section]:
    """The analyses and callbacks by name. As a check, analyses and this package's callbacks are built once for a dummy
    run.

    ``scored`` names the sets whose metrics the run logs.
    """
    from pytorch_lightning import Callback

    from bertsecrets.analysis import Analysis
    from bertsecrets.results.experiment import Experiment

    offered["run"] = Run(Path(), "", "", task.name, "", writes=False)
    chosen, monitors, logs_more = _without_null(sections), {}, False
    for name, section in chosen.items():
        section_key = f"{group}.{name}"
        target = check_arguments(section_key, section, offered)
        if not (inspect.isclass(target) and issubclass(target, (Analysis, Callback))):
            raise UserError(
                f"{section_key}._target_ is {section['_target_']}, which is neither an analysis nor a callback; name "
                "a subclass of bertsecrets.Analysis or of pytorch_lightning.Callback."
            )
        ours = is_of_this_package(target)
        if ours or issubclass(target, Analysis):
            _check_evaluation(f"{section_key}.evaluation", section.get("evaluation"), task)
            made = _tried(section_key, functools.partial(make, section, **accepted_arguments(target, section, offered)))
            if isinstance(made, Experiment):
                _tried(section_key, made.check_declaration)
        if target.__module__.startswith("pytorch_lightning."):
            if section.get("monitor") is not None:
                monitors[name] = section["monitor"]
        else:
            # A user's own callback may log anything.
            logs_more |= not ours
    logged = ["train/loss", "train/learning_rate", "epoch", "step"]
    logged += [f"{name}/{metric}" for name in scored for metric in (*task.metrics, "loss")]
    for name, monitor in sorted(monitors.items()):
        if not logs_more and monitor not in logged:
            raise UserError(f"{group}.{name}.monitor is {shown(monitor)}; {choices(str(monitor), logged)}.")
    return chosen


def _tried(section_key: str, build: Callable[[], Any]) -> Any:
    """Build an object to check its settings; a message names the section."""
    try:
        return build()
    except UserError as error:
        text = str(error)
        raise UserError(text if section_key in text else f"{text} (In {section_key}.)") from error
