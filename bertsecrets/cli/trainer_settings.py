"""The ``trainer`` section: Lightning's own arguments, with types and ranges for those that a run depends on."""

import ast
import functools
import importlib.util
import inspect
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from bertsecrets.cli.targets import Section, check_arguments, check_names, load_target
from bertsecrets.errors import UserError
from bertsecrets.settings import Settings

_TRAINER = "pytorch_lightning.Trainer"
_COUNT = "a whole number from 1"
_PRECISIONS = (
    "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true", "32", "16", "bf16", "64", "transformer-engine",
    "transformer-engine-float16",
)  # fmt: skip

SET_BY_THE_PROGRAM = {
    "callbacks": "choose callbacks=<name> or analysis=<name>",
    "logger": "choose logger=<name>",
    "default_root_dir": "give hydra.run.dir=<folder>",
    "enable_progress_bar": "give progress=true or false",
    "plugins": "leave it out",
}
"""Arguments of the trainer that the program gives -> what to do instead."""


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


class _StrategySettings(Settings, extra="allow"):
    """The ``trainer.strategy`` section; other arguments are passed on as they are."""

    process_group_backend: Literal["gloo", "nccl", "mpi"] | None = Field(
        default=None, description="gloo, nccl, mpi or null"
    )
    broadcast_buffers: Literal[False] = Field(
        default=False, description="false: the buffers are constants, and processes may differ by a batch"
    )


class TrainerSettings(Settings, extra="allow"):
    """The ``trainer`` section; any other argument of Lightning's ``Trainer`` is passed on as it is."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"] = "auto"
    strategy: Annotated[str, Field(min_length=1)] | Section = Field(
        default="auto", description="the name of a strategy of Lightning, or a section with its _target_"
    )
    devices: Annotated[int | str | list[int], AfterValidator(_check_devices)] = Field(
        default=1, description=f"{_COUNT}, -1 or auto for all devices, or a list of device numbers"
    )
    num_nodes: int = Field(default=1, ge=1, description=_COUNT)
    precision: Literal[_PRECISIONS] | Literal[16, 32, 64] = Field(  # type: ignore[valid-type]
        default="32-true", description=f"one of {', '.join(_PRECISIONS)}"
    )
    max_epochs: _OptionalCount = None
    min_epochs: _OptionalCount = None
    max_steps: _Steps = -1
    min_steps: _OptionalCount = None
    limit_train_batches: _Limit = None
    limit_val_batches: _Limit = None
    overfit_batches: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="a whole number from 0, or a share from 0 to 1"
    )
    val_check_interval: _Limit = None
    check_val_every_n_epoch: _OptionalCount = 1
    num_sanity_val_steps: int = Field(default=0, ge=-1, description="a whole number from 0, or -1 for all")
    log_every_n_steps: _OptionalCount = None
    gradient_clip_val: float | None = Field(default=None, ge=0, description="a number from 0, or null")
    gradient_clip_algorithm: Literal["norm", "value"] | None = Field(default=None, description="norm, value or null")
    accumulate_grad_batches: int = Field(default=1, ge=1, description=_COUNT)
    deterministic: bool | Literal["warn"] | None = Field(default=None, description="true, false, warn or null")
    benchmark: _Switch = None
    detect_anomaly: bool = False
    inference_mode: bool = True
    sync_batchnorm: bool = False
    enable_model_summary: _Switch = None
    reload_dataloaders_every_n_epochs: int = Field(default=0, ge=0, description="a whole number from 0")
    use_distributed_sampler: Literal[False] = Field(
        default=False, description="false: the data module distributes the examples itself"
    )
    enable_checkpointing: Literal[True] | None = Field(
        default=None, description="true or null: a run is resumed from its checkpoints"
    )
    fast_dev_run: Literal[False] = Field(
        default=False, description="false; for a quick run set data.limit_train and trainer.max_steps"
    )
    barebones: Literal[False] = Field(default=False, description="false: a run needs its loggers and checkpoints")


@functools.cache
def trainer_arguments() -> tuple[str, ...]:
    """The names of the arguments of Lightning's ``Trainer``, all of which ``trainer.<name>=`` sets.

    Read from its source, because importing Lightning takes seconds and help and errors should not wait for it.
    """
    package = importlib.util.find_spec("pytorch_lightning")
    assert package is not None
    assert package.origin is not None
    source = (Path(package.origin).parent / "trainer" / "trainer.py").read_text("utf-8")
    trainer = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Trainer")
    constructor = next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = (*constructor.args.args, *constructor.args.kwonlyargs)
    return tuple(argument.arg for argument in arguments if argument.arg != "self")


def read_trainer(section: Section) -> TrainerSettings:
    """Read the ``trainer`` section.

    Raises:
        UserError: If an argument does not exist, does not fit, or is given by the program, or training would never end.
    """
    for name, advice in SET_BY_THE_PROGRAM.items():
        if name in section:
            raise UserError(f"trainer.{name} is given by the program; {advice}.")
    if section.get("_target_") == _TRAINER:
        # What the program sets was refused above.
        valid = [argument for argument in trainer_arguments() if argument not in SET_BY_THE_PROGRAM]
        check_names("trainer", _without_target(section), valid)
    else:
        _check_subclass(section)
    settings = TrainerSettings.read("trainer", _without_target(section))
    if isinstance(settings.strategy, dict):
        check_arguments("trainer.strategy", settings.strategy)
        _StrategySettings.read("trainer.strategy", _without_target(settings.strategy))
    if settings.max_epochs is None and settings.max_steps == -1 and section.get("max_time") is None:
        raise UserError(
            "trainer.max_epochs is null, and training would not end; give a whole number from 1, or also trainer.max_steps."
        )
    return settings


def _check_subclass(section: Section) -> None:
    from pytorch_lightning import Trainer

    target = load_target("trainer", section)
    if not (inspect.isclass(target) and issubclass(target, Trainer)):
        raise UserError(f"trainer._target_ is {section['_target_']}, which is not a Trainer; name {_TRAINER}.")
    check_arguments("trainer", section)


def _without_target(section: Section) -> Section:
    return {key: value for key, value in section.items() if key != "_target_"}
