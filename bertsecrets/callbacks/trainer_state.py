"""The stage and step of a callback's numbers."""

import pytorch_lightning as pl
from pytorch_lightning.trainer.states import TrainerFn

from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.results.run import CHECKPOINT, TRAINING


def stage_of(trainer: pl.Trainer) -> str:
    """``training`` in and right after ``trainer.fit``, ``checkpoint`` when a finished model is validated."""
    return TRAINING if trainer.state.fn == TrainerFn.FITTING or trainer.global_step > 0 else CHECKPOINT


def current_step(trainer: pl.Trainer, module: SequenceClassifier) -> int:
    """Optimiser steps that the model was trained for; for a finished checkpoint, in its own training."""
    return trainer.global_step if stage_of(trainer) == TRAINING else int(module.record.get("step", 0))


def is_last_validation(trainer: pl.Trainer) -> bool:
    """Whether no training step follows this validation; always true outside ``trainer.fit``."""
    return trainer.state.fn != TrainerFn.FITTING or trainer.global_step >= trainer.estimated_stepping_batches


def shows_progress(trainer: pl.Trainer) -> bool:
    """Whether this process shows progress bars: the first one, unless the trainer has none."""
    return trainer.is_global_zero and trainer.progress_bar_callback is not None
