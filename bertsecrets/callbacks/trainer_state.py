"""Trainer state for callbacks: its data, the stage and step of their numbers, and its loggers."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import pytorch_lightning as pl
from pytorch_lightning.trainer.states import TrainerFn

from bertsecrets.data.module import TaskData
from bertsecrets.grid import HeadGrid
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import CHECKPOINT, TRAINING


def data_of(trainer: pl.Trainer) -> TaskData:
    """The trainer's data."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    assert isinstance(data, TaskData)
    return data


def stage_of(trainer: pl.Trainer) -> str:
    """``training`` in ``trainer.fit``, ``checkpoint`` when a finished model is validated."""
    return TRAINING if trainer.state.fn == TrainerFn.FITTING else CHECKPOINT


def current_step(trainer: pl.Trainer) -> int:
    """Number of optimiser steps that the model was trained for; for a finished checkpoint, in its own training run."""
    module = trainer.lightning_module
    if stage_of(trainer) == TRAINING or not isinstance(module, SequenceClassifier):
        return trainer.global_step
    return int(module.record.get("step", trainer.global_step))


def is_last_validation(trainer: pl.Trainer) -> bool:
    """Whether this is the run's last validation: outside ``trainer.fit``, or after its last step.

    In a run that validates its chosen checkpoint after ``trainer.fit``, no validation within it is the last one.
    """
    if trainer.state.fn != TrainerFn.FITTING:
        return True
    module = trainer.lightning_module
    followed = isinstance(module, SequenceClassifier) and module.validated_after_training
    return not followed and is_trained(trainer)


def is_trained(trainer: pl.Trainer) -> bool:
    """Whether the weights are those after the last step: their numbers may be those of the run."""
    return trainer.state.fn != TrainerFn.FITTING or trainer.global_step >= trainer.estimated_stepping_batches


def shows_progress(trainer: pl.Trainer) -> bool:
    """Whether this process shows progress bars: the first process, unless the trainer has no bars."""
    return trainer.is_global_zero and trainer.progress_bar_callback is not None


@runtime_checkable
class LogsGrids(Protocol):
    """A logger that accepts grids of heads."""

    def log_grid(self, grid: HeadGrid, step: int, experiment: Experiment) -> None: ...


def log_grids(trainer: pl.Trainer, grids: Iterable[HeadGrid], step: int, experiment: Experiment) -> None:
    """Pass grids to the trainer's loggers that accept them, from the first process."""
    for logger in trainer.loggers:
        if trainer.is_global_zero and isinstance(logger, LogsGrids):
            for grid in grids:
                logger.log_grid(grid, step, experiment)
