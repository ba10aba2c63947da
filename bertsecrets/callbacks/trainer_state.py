"""The stage and step of a callback's numbers."""

import pytorch_lightning as pl
from pytorch_lightning.trainer.states import TrainerFn

from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.results.run import CHECKPOINT, TRAINING


def stage_of(trainer: pl.Trainer) -> str:
    """``training`` in ``trainer.fit``, ``checkpoint`` when a finished model is validated."""
    return TRAINING if trainer.state.fn == TrainerFn.FITTING else CHECKPOINT


def current_step(trainer: pl.Trainer, module: SequenceClassifier) -> int:
    """Optimiser steps that the model was trained for; for a finished checkpoint, in its own training."""
    return trainer.global_step if stage_of(trainer) == TRAINING else int(module.record.get("step", trainer.global_step))


def is_last_validation(trainer: pl.Trainer) -> bool:
    """Whether this validation is the last one of the run: outside ``trainer.fit``, or after its last step.

    In a run that validates its chosen checkpoint after ``trainer.fit``, no validation within it is the last one.
    """
    if trainer.state.fn != TrainerFn.FITTING:
        return True
    module = trainer.lightning_module
    followed = isinstance(module, SequenceClassifier) and module.validated_after_training
    return not followed and trainer.global_step >= trainer.estimated_stepping_batches


def shows_progress(trainer: pl.Trainer) -> bool:
    """Whether this process shows progress bars: the first one, unless the trainer has none."""
    return trainer.is_global_zero and trainer.progress_bar_callback is not None
