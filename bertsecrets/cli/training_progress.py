"""The progress of training: a bar over all steps or, where no line can be redrawn, a line for each epoch."""

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from torch import Tensor

from bertsecrets.ablation.forecast import duration
from bertsecrets.callbacks.run_analysis import analyses_of
from bertsecrets.grid import HeadGrid, Shown
from bertsecrets.measures.analysis import MeasureAnalysis
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.results.formatting import head_label, metric_label, number
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


class EpochLines(TrainingProgress):
    """Print the loss, the score, the head that changed most and the time left after each epoch."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begun, self._first_step = time.monotonic(), trainer.global_step
        # A training that is resumed at the end of an epoch does not start it.
        self._losses: list[Tensor] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._losses = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # On its device: reading a number at every step would wait for a GPU.
        self._losses.append(trainer.callback_metrics["train/loss"].detach().clone())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.enabled:
            return
        assert isinstance(pl_module, SequenceClassifier)
        losses = [float(loss) for loss in self._losses]
        parts = [f"loss {number(sum(losses) / len(losses))}"] if losses else []
        name, metric = pl_module.evaluation_names[0], pl_module.task.metrics[0]
        score = pl_module.scores.get(name, {}).get(metric)
        if score is not None:
            parts.append(f"{name} {metric_label(metric)} {number(score)}")
        measures = (analysis for analysis in analyses_of(trainer) if isinstance(analysis, MeasureAnalysis))
        taken = ((one.grids.get(measure.name), measure.shown) for one in measures for _, measure in one.taken)
        parts += [_foremost_head(grid, shown) for grid, shown in taken if grid is not None][:1]
        steps = trainer.estimated_stepping_batches
        left = steps - trainer.global_step if isinstance(steps, int) else 0
        if left > 0 and trainer.global_step > self._first_step:
            rate = (time.monotonic() - self._begun) / (trainer.global_step - self._first_step)
            parts.append(f"about {duration(rate * left)} of training left")
        epochs = "" if trainer.max_epochs in (None, -1) else f"/{trainer.max_epochs}"
        print(f"epoch {trainer.current_epoch + 1}{epochs}: {', '.join(parts)}", flush=True)  # noqa: T201


def _foremost_head(grid: HeadGrid, shown: Shown) -> str:
    """The head with the highest or lowest number of a measure's first column."""
    value_LH = grid.column(grid.columns[0])
    ranked_LH = (-value_LH if shown.lowest else value_LH).nan_to_num(nan=-float("inf"))
    layer, head = divmod(int(ranked_LH.argmax()), grid.num_heads)
    end = shown.verb or f"has the {'lowest' if shown.lowest else 'highest'} {grid.described[0].label}"
    return f"{head_label(layer, head)} {end} ({number(value_LH[layer, head].item())})"
