"""The configuration, read and checked once, before anything is loaded: every section as typed settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.data.annotation import make_annotator
from bertsecrets.data.framenet.source import FrameNetSource
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError, choices
from bertsecrets.models.metrics import check_metrics
from bertsecrets.models.optimisation import OptimizerConfig
from bertsecrets.models.spec import ModelSpec, check_init
from bertsecrets.settings import CONF, Settings

WANDB_MODES = ("offline", "online", "disabled")

Section = dict[str, Any]

_SECTION = "a section of keys and values"
_TEXT_OR_NULL = "a text, or null"
_SWITCH = "true or false"


class ReportSettings(Settings):
    """The ``report`` section."""

    heads: int = Field(default=6, ge=1, le=1000, description="a whole number from 1 to 1000")


class CheckpointSettings(Settings):
    """The ``checkpoint`` section of ``train.py``."""

    every_n_steps: int = Field(default=200, ge=1, description="a whole number from 1")
    report: Literal["best", "last"] = Field(default="best", description="best or last")


class SweepSettings(Settings):
    """The ``sweep`` section of ``train.py``."""

    compare: bool = Field(default=True, description=_SWITCH)
    paper: bool = Field(default=False, description=_SWITCH)


class CommonKeys(Settings):
    """The keys shared by both commands."""

    name: str = Field(min_length=1, description="a name")
    seed: int = Field(ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")
    init: str = Field(description="pretrained or random_normal")
    group: str | None = Field(default=None, description=_TEXT_OR_NULL)
    tags: list[str] = Field(default=[], description="a list of texts")
    job_type: str = Field(description="a text")
    resume: str | bool | None = Field(default=None, description="a folder, true (of a sweep), or null")
    objective: str | None = Field(default=None, description="<set>/<metric>, or null")
    debug: bool = Field(default=False, description=_SWITCH)
    progress: bool = Field(default=True, description=_SWITCH)
    evaluation: str | None = Field(default=None, description="the name of an evaluation set, or null for the first")
    compare_with: list[str] = Field(default=[], description="a list of initial, random, or both")
    every_n_validations: int | None = Field(
        default=1, ge=1, description="a whole number from 1, or null for the last validation only"
    )
    task: Section = Field(description=_SECTION)
    data: Section = Field(description=_SECTION)
    annotation: Section = Field(description=_SECTION)
    framenet: Section = Field(description=_SECTION)
    model: Section = Field(description=_SECTION)
    trainer: Section = Field(description=_SECTION)
    logger: Section = Field(default={}, description="a section of loggers")
    measure: dict[str, Section | None] = Field(default={}, description="a section of measures")
    ablation: Section = Field(description=_SECTION)


class TrainKeys(CommonKeys):
    """The keys of ``train.py``."""

    callbacks: dict[str, Section | None] = Field(default={}, description="a section of callbacks")
    report: Section = Field(default={}, description=_SECTION)
    optimizer: Section = Field(description=_SECTION)
    checkpoint: Section = Field(default={}, description=_SECTION)
    sweep: Section = Field(default={}, description=_SECTION)
    compile: bool = Field(default=False, description=_SWITCH)


class AnalyzeKeys(CommonKeys):
    """The keys of ``analyze.py``."""

    analysis: dict[str, Section | None] = Field(default={}, description="a section of callbacks")
    report: Section | str = Field(
        default={}, description="the folder of a run or a sweep, or a section of keys and values"
    )
    checkpoint: str | None = Field(default=None, description="a run folder, a file, a model folder, initial, or null")
    merge: str | list[str] | None = Field(default=None, description="a folder, a list of folders, or null")
    compare: str | list[str] | None = Field(default=None, description="a folder, a list of folders, or null")
    compare_heads: bool = Field(default=True, description=_SWITCH)
    paper: bool = Field(default=False, description=_SWITCH)
    train_patterns: str | bool | None = Field(default=None, description="a folder, true, or null")
    workspace: str | None = Field(default=None, description="<entity>/<project>, or null")
    reference: str | None = Field(default=None, description="the folder or hub name of a model, or null")
    labelling: Section = Field(default={}, description=_SECTION)
    patterns: Section = Field(default={}, description=_SECTION)
    trained: Section | None = Field(default=None, description=_SECTION)


class WatchKeys(Settings):
    """The keys that any measure's section may have besides the arguments of its class."""

    every_n_validations: int | None = Field(
        default=None, ge=1, description="a whole number from 1, or null for the last validation only"
    )
    tracked: list[str] | None = Field(default=None, description="a list of columns, or null for the measure's own")


@dataclass(frozen=True)
class MeasureSection:
    """A chosen measure.

    Args:
        name: Key of its section.
        target: ``_target_`` and the arguments of its class.
        watch: How often it is taken, and which columns are tracked.
    """

    name: str
    target: Section
    watch: WatchKeys


@dataclass(frozen=True)
class RunSettings:
    """Settings shared by training and analysis.

    Args:
        keys: The top-level keys.
        task, source, model, ablation, measures: The parsed sections.
        report: Settings of the report.
        callbacks: Sections of callbacks by name.
        config: The whole configuration as plain values, to be recorded.
    """

    keys: CommonKeys
    task: Task
    source: SourceConfig
    model: ModelSpec
    ablation: AblationSettings
    measures: tuple[MeasureSection, ...]
    report: ReportSettings
    callbacks: dict[str, Section]
    config: Section

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
    sweep: SweepSettings


@dataclass(frozen=True)
class AnalyzeSettings(RunSettings):
    """Settings of ``analyze.py``."""

    keys: AnalyzeKeys


def read_train(config: Mapping[str, Any]) -> TrainSettings:
    """Read the settings of ``train.py``.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    keys = TrainKeys.read("", config)
    common = _read_common(keys, config)
    if not common["task"].is_labelled:
        raise UserError(f"Task '{common['task'].name}' has no labels to fine-tune on; use analyze.py.")
    return TrainSettings(
        **common,
        keys=keys,
        report=ReportSettings.read("report", keys.report),
        callbacks=_chosen(keys.callbacks),
        optimizer=OptimizerConfig.read("optimizer", keys.optimizer),
        checkpoint=CheckpointSettings.read("checkpoint", keys.checkpoint),
        sweep=SweepSettings.read("sweep", keys.sweep),
    )


def read_analyze(config: Mapping[str, Any]) -> AnalyzeSettings:
    """Read the settings of ``analyze.py``.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    keys = AnalyzeKeys.read("", config)
    section = keys.report if isinstance(keys.report, dict) else {}
    return AnalyzeSettings(
        **_read_common(keys, config),
        keys=keys,
        report=ReportSettings.read("report", section),
        callbacks=_chosen(keys.analysis),
    )


def _read_common(keys: CommonKeys, config: Mapping[str, Any]) -> dict[str, Any]:
    task = task_from_config(keys.task)
    check_metrics(task)
    check_init(keys.init)
    make_annotator(keys.annotation)
    FrameNetSource.read("framenet", keys.framenet)
    mode = keys.logger.get("wandb", {}).get("mode", WANDB_MODES[0])
    if mode not in WANDB_MODES:
        raise UserError(f"Unknown W&B mode '{mode}'; {choices(str(mode), WANDB_MODES)}.")
    scores = [f"{name}/{metric}" for name in task.evaluation for metric in (*task.metrics, "loss")]
    if keys.objective is not None and keys.objective not in scores:
        raise UserError(f"objective is '{keys.objective}'; {choices(keys.objective, scores)}.")
    for name in keys.compare_with:
        if name not in ("initial", "random"):
            raise UserError(f"compare_with names the model '{name}'; {choices(name, ('initial', 'random'))}.")
    return {
        "task": task,
        "source": SourceConfig.read("data", keys.data),
        "model": ModelSpec.read("model", keys.model),
        "ablation": AblationSettings.read("ablation", keys.ablation),
        "measures": tuple(
            _measure(name, section, keys.every_n_validations)
            for name, section in _chosen(keys.measure).items()
            if not _only_tunes(name, section)
        ),
        "config": dict(config),
    }


def _chosen(sections: Mapping[str, Section | None]) -> dict[str, Section]:
    """The sections that are not set to ``null``."""
    return {name: section for name, section in sections.items() if section is not None}


def _only_tunes(name: str, section: Section) -> bool:
    """Whether a section only sets keys of a measure that the command line did not choose."""
    return "_target_" not in section and (CONF / "measure" / f"{name}.yaml").is_file()


def _measure(name: str, section: Section, every_n_validations: int | None) -> MeasureSection:
    if "_target_" not in section:
        raise UserError(f"measure.{name} has no _target_; name its class, e.g. _target_: my_package.MyMeasure.")
    own = {"every_n_validations": every_n_validations}
    own |= {key: value for key, value in section.items() if key in WatchKeys.model_fields}
    target = {key: value for key, value in section.items() if key not in WatchKeys.model_fields}
    return MeasureSection(name, target, WatchKeys.read(f"measure.{name}", own))


def read_settings(config: Mapping[str, Any]) -> RunSettings:
    """Read the settings of either command; only a configuration of ``train.py`` has an optimizer.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    return read_train(config) if "optimizer" in config else read_analyze(config)
