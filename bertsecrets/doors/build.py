"""Turns a validated configuration into objects."""

import functools
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydra
import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import MisconfigurationException  # type: ignore[attr-defined]
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertsecrets.data.module import TaskData
from bertsecrets.data.task import Task
from bertsecrets.doors.checkpoint_files import AtomicCheckpointIO
from bertsecrets.doors.plain import plain
from bertsecrets.doors.unit import read_config
from bertsecrets.errors import UserError
from bertsecrets.models.loading import max_positions
from bertsecrets.results.run import Run
from bertsecrets.sweeps.identity import code_version
from bertsecrets.sweeps.unit import read_begun

_log = logging.getLogger(__name__)


def make(section: DictConfig, /, **given: Any) -> Any:
    """Instantiates a ``_target_`` section; what it leaves open (``_partial_``) is called with ``given``.

    Raises:
        UserError: If the section's keys do not fit its target, or the target cannot be imported.
    """
    try:
        made = hydra.utils.instantiate(section)
        if isinstance(made, functools.partial):
            made = made(**given)
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from error
        cause = str(error.__cause__ or error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"{section.get('_target_')} could not be made ({cause}); check its section.") from error
    except TypeError as error:
        raise UserError(f"{section.get('_target_')} could not be made ({error}); check its section.") from error
    return made


def run_folder() -> Path:
    """Hydra's output folder of this job."""
    return Path(HydraConfig.get().runtime.output_dir)


def resumed(config: DictConfig, folder: Path) -> DictConfig:
    """The interrupted run's own configuration; only what cannot change its numbers is taken from the new one."""
    own = read_config(folder)
    begun = read_begun(folder)
    if begun is not None and begun.code != code_version():
        _log.warning(f"The run in {folder} was begun by code {begun.code} and goes on with {code_version()}.")
    own.resume = config.resume
    own.debug, own.progress = config.debug, config.progress
    _log.info(f"Going on with the run in {folder}.")
    return own


def make_loggers(config: DictConfig, run: Run) -> list[Logger]:
    """The loggers of ``conf/logger``."""
    return [make(section, run=run, config=config) for section in config.logger.values()]


def make_data(config: DictConfig, task: Task, tokenizer: PreTrainedTokenizerFast) -> TaskData:
    """The task's data, read and ready for training and evaluation.

    Raises:
        UserError: If a section's value is wrong, or the data are not there.
    """
    data = TaskData.from_config(
        plain(config.data),
        task,
        tokenizer,
        plain(config.task.training),
        seed=config.seed,
        annotation=plain(config.annotation),
        progress=config.progress,
    )
    data.prepare_data()
    data.setup("fit")
    return data


def make_callbacks(sections: Mapping[str, DictConfig], **given: Any) -> list[pl.Callback]:
    """The callbacks of ``conf/callbacks`` or ``conf/analysis``; a user's own Lightning callbacks pass as they are."""
    callbacks = []
    for section in sections.values():
        target = hydra.utils.get_class(section["_target_"])
        accepted = inspect.signature(target).parameters if section.get("_partial_") else ()
        callbacks.append(make(section, **{name: value for name, value in given.items() if name in accepted}))
    return callbacks


def make_trainer(config: DictConfig, callbacks: list[pl.Callback], loggers: list[Logger], folder: Path) -> pl.Trainer:
    """The trainer of ``conf/trainer``.

    Raises:
        UserError: If a setting does not exist or does not fit the machine.
    """
    try:
        trainer: pl.Trainer = hydra.utils.instantiate(
            config.trainer,
            callbacks=callbacks,
            logger=loggers or False,
            default_root_dir=str(folder),
            enable_progress_bar=config.progress,
            plugins=AtomicCheckpointIO(),
        )
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, (MisconfigurationException, TypeError, ValueError, RuntimeError)):
            reason = " ".join(str(cause).split()).rstrip(".")
            raise UserError(f"The trainer could not be made ({reason}); check the trainer.* settings.") from error
        raise
    return trainer


def check_length(model: PreTrainedModel, max_length: int) -> None:
    """Raises UserError if sequences may be longer than the model has positions for."""
    limit = max_positions(model)
    if limit is not None and max_length > limit:
        raise UserError(
            f"task.training.max_length is {max_length}, but the model has positions for {limit} tokens; set "
            f"task.training.max_length={limit} or less."
        )
