"""What analyses that give one grid of the finished model, by disabling heads, have in common."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import WandbLogger
from torch import nn
from torch.utils.data import DataLoader

from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.replacements import Replacements, prepare, training_reference
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.callbacks.trainer_state import current_step, is_last_validation, shows_progress, stage_of
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import MaxExamples
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import evaluating
from bertsecrets.results import wandb as tracking
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import Run
from bertsecrets.results.views import OWN


@dataclass(frozen=True)
class Result:
    """The numbers of an analysis.

    Args:
        experiment: What they are.
        grid: One number for each head and column, reduced over all processes.
        extras: What does not fit the grid, as plain values.
    """

    experiment: Experiment
    grid: HeadGrid
    extras: dict[str, Any]


class HeadAnalysis(pl.Callback):
    """Take an analysis at the last validation and write it to the run; training is not affected.

    Args:
        run: The run to write results to.
        ablation: How heads are disabled: ``mode``, what its replacements need, ``evaluation`` and ``seed``.
        max_examples: A random sample of this many examples; None for all.
    """

    def __init__(self, run: Run, ablation: AblationSettings | None = None, max_examples: MaxExamples = None) -> None:
        self.run = run
        self.settings = ablation or AblationSettings()
        self.max_examples = max_examples

    @abstractmethod
    def take(self, trainer: pl.Trainer, model: nn.Module) -> Result:
        """The numbers, on all processes; the model is in evaluation mode."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        data.check_evaluation(self.settings.evaluation)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not is_last_validation(trainer):
            return
        assert isinstance(pl_module, SequenceClassifier)
        with evaluating(pl_module.model):
            result = self.take(trainer, pl_module.model)
        step = current_step(trainer, pl_module)
        if self.run.writes:
            self.run.declare(result.experiment.declaration())
            self.run.add(self.run.rows(result.grid, stage_of(trainer), step))
            self.run.write_json(self.run.extras_path(result.experiment.name), {OWN: result.extras})
        for logger in trainer.loggers:
            if trainer.is_global_zero and isinstance(logger, WandbLogger):
                tracking.define_axis(logger.experiment, result.grid.measure)
                tracking.log_grid(logger.experiment, result.grid, step, title=result.experiment.title)

    def loader(self, trainer: pl.Trainer) -> DataLoader[Batch]:
        """This process's batches of the examples."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        loader: DataLoader[Batch] = data.evaluation_loader(
            data.check_evaluation(self.settings.evaluation), max_examples=self.max_examples
        )
        return loader

    def count(self, data: TaskData) -> int:
        """Number of examples, over all processes."""
        whole = len(data.evaluation_dataset(data.check_evaluation(self.settings.evaluation)))
        return whole if self.max_examples is None else min(whole, self.max_examples)


def check_scorable(data: TaskData, settings: AblationSettings) -> None:
    """Raise UserError if the effect of disabling heads cannot be scored, or replacements not be fitted, for lack of labels."""
    if not data.task.is_labelled:
        raise UserError(
            f"Task '{data.task.name}' has no labels, so the effect of disabling a head cannot be scored; "
            "choose a labelled task."
        )
    if settings.mode == "optimal":
        data.labels(TRAIN)


def replacements_of(
    trainer: pl.Trainer,
    model: nn.Module,
    plan: Plan,
    settings: AblationSettings,
    *,
    saved: Path | None = None,
    fingerprint: str = "",
) -> Replacements:
    """What the mode of disabling takes its replacements from, on the trainer's data; see :func:`prepare`."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return prepare(
        model,
        plan,
        settings,
        data.evaluation_dataset(data.check_evaluation(settings.evaluation)),
        lambda: training_reference(data, settings.reference_examples),
        batch_size=data.config.eval_batch_size,
        context=trainer.precision_plugin.forward_context,
        progress=shows_progress(trainer),
        saved=saved,
        fingerprint=fingerprint,
    )
