"""The settings of every command: their types, bounds and meaning. Their defaults are in ``conf/``."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from bertsecrets.doors import load_named
from bertsecrets.settings import Meaning, Name, Section, Settings, meanings

_SECTION = "a section of keys and values"
_SECTIONS = "a section of keys and values, or null"
_SWITCH = "true or false"
_PATH = Annotated[str, Field(min_length=1)]
_FOLDERS = "a folder, or a list of folders"
_CONDITION = "a condition such as 'accuracy_loss > 1', in points, or null"
_MODEL_OR_NULL = "a run folder, the folder or hub name of a model, or null"

_FOLLOWING = Meaning(numbers=False)
"""How a run is followed or reported."""
_FOLLOWING_AGAIN = Meaning(numbers=False, with_resume=True)
_OUTSIDE = Meaning(numbers=False, outside=True)
"""What a run writes or sends outside of its folder."""
_NO_CONDITION = Meaning(conditions="no")
_TRAINING = Meaning(analyses=False)

_COUNT = "a whole number from 1"
_PRECISIONS = (
    "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true", "32", "16", "bf16", "64",
    "transformer-engine", "transformer-engine-float16",
)  # fmt: skip


Paper = bool | _PATH
_PAPER = "true, false, the name of a page, or the path of its file"


def _check_devices(devices: int | str | list[int]) -> int | str | list[int]:
    if isinstance(devices, int):
        fits = devices >= 1 or devices == -1
    elif isinstance(devices, str):
        numbers = devices.split(",")
        fits = devices in ("auto", "-1") or (all(part.strip().isdigit() for part in numbers) and numbers != ["0"])
    else:
        fits = bool(devices) and min(devices) >= 0 and len(set(devices)) == len(devices)
    if not fits:
        raise ValueError("no devices")
    return devices


_OptionalCount = Annotated[int | None, Field(ge=1, description=f"{_COUNT}, or null")]
_Steps = Annotated[Annotated[int, Field(ge=1)] | Literal[-1], Field(description=f"{_COUNT}, or -1 for no limit")]
_Limit = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] | None,
    Field(description=f"{_COUNT}, a share above 0 and up to 1, or null"),
]
_Switch = Annotated[bool | None, Field(description="true, false or null")]


class StrategySettings(Settings, extra="allow"):
    """The ``trainer.strategy`` section; other arguments are passed on as they are."""

    process_group_backend: Literal["gloo", "nccl", "mpi"] | None = Field(
        default=None, description="gloo, nccl, mpi or null"
    )
    broadcast_buffers: Literal[False] = Field(
        default=False, description="false: the buffers are constants, and processes may differ by a batch"
    )


class TrainerSettings(Settings, extra="allow"):
    """The ``trainer`` section; any other argument of Lightning's ``Trainer`` is passed on as it is."""

    conf = ("trainer/default",)

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"]
    strategy: Annotated[str, Field(min_length=1)] | Section = Field(
        default="auto", description="the name of a strategy of Lightning, or a section with its _target_"
    )
    devices: Annotated[int | str | list[int], AfterValidator(_check_devices)] = Field(
        description=f"{_COUNT}, -1 or auto for all devices, or a list of device numbers"
    )
    num_nodes: int = Field(default=1, ge=1, description=_COUNT)
    precision: Literal[_PRECISIONS] | Literal[16, 32, 64] = Field(  # type: ignore[valid-type]
        description=f"one of {', '.join(_PRECISIONS)}"
    )
    max_epochs: Annotated[_OptionalCount, _TRAINING]
    min_epochs: Annotated[_OptionalCount, _TRAINING] = None
    max_steps: Annotated[_Steps, _TRAINING] = -1
    min_steps: Annotated[_OptionalCount, _TRAINING] = None
    limit_train_batches: Annotated[_Limit, _TRAINING] = None
    limit_val_batches: _Limit = None
    overfit_batches: Annotated[float, _TRAINING] = Field(
        default=0.0, ge=0, le=0, description="0; to overfit a few examples set data.limit_train and data.eval_path"
    )
    val_check_interval: Annotated[_Limit, _TRAINING]
    check_val_every_n_epoch: Annotated[_OptionalCount, _TRAINING] = 1
    num_sanity_val_steps: Annotated[int, _TRAINING] = Field(ge=-1, description="a whole number from 0, or -1 for all")
    log_every_n_steps: Annotated[_OptionalCount, _TRAINING]
    gradient_clip_val: Annotated[float | None, _TRAINING] = Field(ge=0, description="a number from 0, or null")
    gradient_clip_algorithm: Annotated[Literal["norm", "value"] | None, _TRAINING] = Field(
        default=None, description="norm, value or null"
    )
    accumulate_grad_batches: Annotated[int, _TRAINING] = Field(ge=1, description=_COUNT)
    deterministic: bool | Literal["warn"] | None = Field(default=None, description="true, false, warn or null")
    benchmark: _Switch = None
    detect_anomaly: bool = False
    inference_mode: bool = True
    sync_batchnorm: bool = False
    enable_model_summary: _Switch
    reload_dataloaders_every_n_epochs: Annotated[int, _TRAINING] = Field(
        default=0, ge=0, description="a whole number from 0"
    )
    use_distributed_sampler: Literal[False] = Field(
        description="false: the data module distributes the examples itself"
    )
    enable_checkpointing: Literal[True] | None = Field(
        default=None, description="true or null: a run is resumed from its checkpoints"
    )
    fast_dev_run: Literal[False] = Field(
        default=False, description="false; for a quick run set data.limit_train and trainer.max_steps"
    )
    barebones: Literal[False] = Field(default=False, description="false: a run needs its loggers and checkpoints")


class ReportSettings(Settings):
    """The ``report`` section."""

    conf = ("train:report",)

    heads: int = Field(ge=1, le=1000, description="a whole number from 1 to 1000")
    figures: int | None = Field(ge=0, description="a whole number from 0, or null for all")


class CheckpointSettings(Settings):
    """The ``checkpoint`` section of ``train.py``."""

    every_n_steps: int = Field(ge=1, description="a whole number from 1")
    report: Literal["best", "last"] = Field(description="best or last")
    choosing: float = Field(ge=0.01, le=0.5, description="a number from 0.01 to 0.5")


class SweepSettings(Settings):
    """The ``sweep`` section."""

    conf = ("train:sweep",)

    compare: bool = Field(description=_SWITCH)
    paper: Paper = Field(description=_PAPER)


class CommandKeys(Settings):
    """The settings of every command."""

    resume: Annotated[_PATH | Literal[True] | None, _FOLLOWING_AGAIN] = Field(
        description="a folder, true (of a sweep), or null"
    )
    overwrite: Annotated[bool, _FOLLOWING] = Field(description=_SWITCH)
    debug: Annotated[bool, _FOLLOWING_AGAIN] = Field(description=_SWITCH)
    progress: Annotated[bool, _FOLLOWING_AGAIN] = Field(description=_SWITCH)
    # Last: it holds the values of other keys, whose mistakes are better told by their own names.
    name: Annotated[Name, Meaning(conditions="no", model=False)]


class CommonKeys(CommandKeys):
    """The settings shared by ``train`` and ``analyze``."""

    seed: Annotated[int, _NO_CONDITION] = Field(ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")
    init: Annotated[str, _NO_CONDITION] = Field(description="pretrained or random_normal")
    group: Annotated[Annotated[str, Field(min_length=1, max_length=128)] | None, _FOLLOWING] = Field(
        description="a text of 1 to 128 characters, or null"
    )
    tags: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], _FOLLOWING] = Field(
        description="a list of texts of 1 to 64 characters"
    )
    job_type: Annotated[str, _FOLLOWING] = Field(
        min_length=1, max_length=64, description="a text of 1 to 64 characters"
    )
    objective: Annotated[str | None, _FOLLOWING] = Field(description="<set>/<metric>, or null")
    evaluation: str | None = Field(description="the name of an evaluation set, or null for the first")
    compare_with: Annotated[list[Literal["initial", "random"]], _NO_CONDITION] = Field(
        description="a list of initial, random, or both"
    )
    every_n_validations: Annotated[int | None, _NO_CONDITION] = Field(
        ge=1, description="a whole number from 1, or null for the last validation only"
    )
    task: Section = Field(description=_SECTION)
    data: Section = Field(description=_SECTION)
    annotation: Section = Field(description=_SECTION)
    framenet: Section = Field(description=_SECTION)
    model: Section = Field(description=_SECTION)
    trainer: Section = Field(description=_SECTION)
    logger: Annotated[dict[str, Section | None], _FOLLOWING] = Field(default={}, description=_SECTIONS)
    measure: dict[str, Section | None] = Field(default={}, description=_SECTIONS)
    ablation: Section = Field(description=_SECTION)
    prune: Section = Field(description=_SECTION)
    shrink: Section = Field(description=_SECTION)
    sweep: Annotated[Section, _FOLLOWING] = Field(description=_SECTION)


class TrainKeys(CommonKeys):
    """The settings of ``train``."""

    callbacks: dict[str, Section | None] = Field(default={}, description=_SECTIONS)
    validation_examples: Annotated[_OptionalCount, _NO_CONDITION]
    report: Annotated[Section, _FOLLOWING] = Field(description=_SECTION)
    optimizer: Section = Field(description=_SECTION)
    checkpoint: Annotated[Section, _NO_CONDITION] = Field(description=_SECTION)
    compile: bool = Field(description=_SWITCH)
    save: Annotated[_PATH | None, _OUTSIDE] = Field(description="a new folder, or null")


class AnalyzeKeys(CommonKeys):
    """The settings of ``analyze``."""

    analysis: dict[str, Section | None] = Field(default={}, description=_SECTIONS)
    report: Annotated[Section, _FOLLOWING] = Field(description=_SECTION)
    checkpoint: Annotated[_PATH | None, _NO_CONDITION] = Field(
        description="a run folder, a file, the folder or hub name of a model, initial, or null"
    )
    reference: _PATH | None = Field(description=_MODEL_OR_NULL)
    fail_if: Annotated[_PATH | None, _FOLLOWING_AGAIN] = Field(description=_CONDITION)
    trained: Annotated[Section | None, _FOLLOWING] = Field(default=None, description=_SECTION)


class DescribedKeys(CommandKeys):
    """The settings of commands that make pages or tables of what runs have stored."""

    measure: dict[str, Section | None] = Field(default={}, description=_SECTIONS)
    analysis: dict[str, Section | None] = Field(default={}, description=_SECTIONS)

    def load_classes(self) -> None:
        """Import the classes that these settings name, whose modules then present their results."""
        for section in (*self.measure.values(), *self.analysis.values()):
            if section and "_target_" in section:
                load_named("_target_", str(section["_target_"]))


class CompareKeys(DescribedKeys):
    """The settings of ``compare``."""

    runs: _PATH | Annotated[list[_PATH], Field(min_length=1)] = Field(description=_FOLDERS)
    fail_if: Annotated[_PATH | None, _FOLLOWING_AGAIN] = Field(description=_CONDITION)
    heads: bool = Field(description=_SWITCH)
    paper: Paper = Field(description=_PAPER)
    statements: list[_PATH] = Field(description="a list of statements, or of the paths of their files")


class ReportKeys(DescribedKeys):
    """The settings of ``report``."""

    run: Annotated[_PATH, _OUTSIDE] = Field(description="the folder of a run or a sweep")
    heads: int = Field(ge=1, le=1000, description="a whole number from 1 to 1000")
    figures: int | None = Field(ge=0, description="a whole number from 0, or null for all")
    paper: Paper = Field(description=_PAPER)


class PlanKeys(CommandKeys):
    """The settings of ``plan``."""

    runs: _PATH | Annotated[list[_PATH], Field(min_length=1)] = Field(description=_FOLDERS)
    margin: float | None = Field(
        gt=0, allow_inf_nan=False, description="a positive number of points (hundredths of the score), or null"
    )
    repeats: int = Field(ge=20, le=10_000, description="a whole number from 20 to 10000")


class ModelKeys(CommandKeys):
    """The settings of commands that load a checkpoint and analyse nothing."""

    checkpoint: _PATH | None = Field(
        description="a run folder, a file, the folder or hub name of a model, initial, or null"
    )
    init: str = Field(description="pretrained or random_normal")
    seed: int = Field(ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")
    task: Section = Field(description=_SECTION)
    data: Section = Field(description=_SECTION)
    annotation: Section = Field(description=_SECTION)
    model: Section = Field(description=_SECTION)


class ViewKeys(ModelKeys):
    """The settings of ``view``."""

    text: str | Annotated[list[str], Field(min_length=1, max_length=2)] | None = Field(
        description="a sentence, a list of two, or null"
    )
    head: Annotated[str, Field(pattern=r"^\d{1,4}\.\d{1,4}$")] | None = Field(
        description="a layer and a head in quotes, e.g. '5.1', or null"
    )
    reference: _PATH | None = Field(description=_MODEL_OR_NULL)


class ExportKeys(ModelKeys, DescribedKeys):
    """The settings of ``export``."""

    folder: Annotated[_PATH, _OUTSIDE] = Field(description="a new folder")


class WorkspaceKeys(CommandKeys):
    """The settings of ``workspace``."""

    project: Annotated[str, _OUTSIDE] = Field(pattern="^[^/]+/[^/]+$", description="<entity>/<project>")
    group: Annotated[str | None, _FOLLOWING] = Field(description="a text, or null")


COMMANDS: dict[str, type[CommandKeys]] = {
    "train": TrainKeys,
    "analyze": AnalyzeKeys,
    "compare": CompareKeys,
    "report": ReportKeys,
    "view": ViewKeys,
    "export": ExportKeys,
    "workspace": WorkspaceKeys,
    "plan": PlanKeys,
}
"""The settings of each command."""


def command_of(config: Mapping[str, Any]) -> str:
    """The command that a configuration is for: the one that has most of its keys, of several the one that lacks the
    fewest.

    No single key can tell: a damaged configuration, or one of an older version, may lack it.
    """

    def misfits(command: str) -> tuple[int, int]:
        fields = COMMANDS[command].model_fields
        needed = {name for name, field in fields.items() if field.is_required()}
        return len(config.keys() - fields.keys()), len(needed - config.keys())

    return min(COMMANDS, key=misfits)


class WatchKeys(Settings):
    """The keys that any measure's section may have besides the arguments of its class."""

    every_n_validations: int | None = Field(
        ge=1, description="a whole number from 1, or null for the last validation only"
    )
    tracked: list[str] | None = Field(default=None, description="a list of columns, or null for the measure's own")


def top_level(holds: Callable[[Meaning], bool]) -> frozenset[str]:
    """The top-level settings of the commands whose meaning fits."""
    return frozenset(name for keys in COMMANDS.values() for name, meaning in meanings(keys).items() if holds(meaning))
