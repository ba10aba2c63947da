"""The progress of training: one line for all epochs."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar

from bertsecrets.results.progress import progress_bar


class TrainingProgress(ProgressBar):
    """A bar over all optimiser steps; work during validation shows separate bars."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self._bar: Any = None
        self._shown = 0

    def disable(self) -> None:
        """Show nothing, as on all processes but the first."""
        self.enabled = False

    def enable(self) -> None:
        """Show the bar."""
        self.enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        steps = trainer.estimated_stepping_batches
        # The number of steps is unknown if only a time limit ends the training.
        if self.enabled and isinstance(steps, int):
            self._shown = trainer.global_step
            self._bar = progress_bar(steps - self._shown, "training", "step")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epochs = trainer.max_epochs
        if self._bar is not None and epochs is not None and epochs > 1:
            self._bar.set_description(f"training, epoch {trainer.current_epoch + 1}/{epochs}")

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._bar is not None:
            self._bar.update(trainer.global_step - self._shown)
            self._shown = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
