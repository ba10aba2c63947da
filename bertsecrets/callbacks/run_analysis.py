"""Run an analysis at validations: the callback between Lightning and all analyses."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn

from bertsecrets.analysis import Analysis, Context, Findings, find, record
from bertsecrets.data.module import TaskData
from bertsecrets.grid import HeadGrid
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.sharding import whole_weights
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import CHECKPOINT, INITIAL, TRAINING, Run


def keep(trainer: pl.Trainer, run: Run, found: Sequence[Findings]) -> None:
    """Write findings to a run and log their grids; only the first process does so."""
    if not trainer.is_global_zero:
        return
    stage, step = stage_of(trainer), current_step(trainer)
    record(run, found, stage, step)
    for findings in found:
        if findings.scalars:
            for logger in trainer.loggers:
                logger.log_metrics(dict(findings.scalars), step=step)
        if findings.moment is None:
            log_grids(trainer, findings.logged, step, findings.experiment)


def analyses_of(trainer: pl.Trainer) -> list[Analysis]:
    """The analyses of a trainer's callbacks."""
    callbacks: Sequence[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback.analysis for callback in callbacks if isinstance(callback, RunAnalysis)]


class RunAnalysis(pl.Callback):
    """Run an analysis at the validations when it is due, write its findings to the run, and log its grids.

    Training is not affected: the model's mode is restored, and the final weights equal those of a run without this
    callback. Results do not depend on the number of processes.

    Args:
        analysis: The analysis.
        run: The run to write results to.
        name: Tells apart what several callbacks keep: counted validations in checkpoints, unfinished steps in the run;
            None for the name of the analysis's class.
        reference: The model before fine-tuning, for analyses that compare with it; None for the model as it is before
            the first training step.
        sample: Examples that measures take at validations before the end of training; None for all.

    Raises:
        UserError: If the analysis does not fit the task or the model; raised before training.
    """

    def __init__(
        self,
        analysis: Analysis,
        run: Run,
        name: str | None = None,
        reference: nn.Module | None = None,
        sample: int | None = None,
    ) -> None:
        self.analysis = analysis
        self.run = run
        self.name = name or type(analysis).__name__
        self.reference = reference
        self.sample = sample
        self._validations = 0
        self._step: int | None = None

    def context(self, trainer: pl.Trainer, module: pl.LightningModule) -> Context:
        """The context of the analysis."""
        assert isinstance(module, SequenceClassifier)
        step = current_step(trainer)
        return Context.of_data(
            module.model,
            data_of(trainer),
            self.analysis.evaluation,
            autocast=trainer.precision_plugin.forward_context,
            progress=shows_progress(trainer),
            stage=stage_of(trainer),
            step=step,
            validation=self._validations,
            last=is_last_validation(trainer),
            unchanged=module.is_scored and step == self._step,
            output=self.run,
            name=self.name,
            key=(trainer.precision,),
            references={} if self.reference is None else {INITIAL: self.reference},
            promised=tuple(
                f"{experiment.name}/{column.name}"
                for analysis in analyses_of(trainer)
                for experiment in analysis.experiments
                for column in experiment.columns
            ),
        )

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.reference is None and self.analysis.needs_reference(self.context(trainer, pl_module)):
            # Copied before a checkpoint is restored, because a resumed run needs the same reference.
            assert isinstance(pl_module, SequenceClassifier)
            self.reference = deepcopy(pl_module.model).requires_grad_(False)
        if self.reference is not None:
            self.reference.eval()
        self.analysis.check(self.context(trainer, pl_module))
        self.run.declare(*(experiment.declaration() for experiment in self.analysis.experiments))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        context = self.context(trainer, pl_module)
        self.analysis.check_on_device(context)
        # Lightning sets the step of a resumed run only after this hook.
        if self.analysis.at_start and trainer.ckpt_path is None:
            # One process may run the model on its own, which requires unsharded weights.
            with whole_weights(pl_module):
                self._analyse(trainer, context)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.reference is not None:
            self.reference = trainer.precision_plugin.convert_module(self.reference).to(pl_module.device)
        self.analysis.check_on_device(self.context(trainer, pl_module))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._validations += 1
        # Only now: asked before training, the number of steps would set up the training data too early.
        sample = None if is_trained(trainer) else self.sample
        context = replace(self.context(trainer, pl_module), sample=sample)
        if self.analysis.is_due(context):
            self._analyse(trainer, context)
            self._step = context.step

    def _analyse(self, trainer: pl.Trainer, context: Context) -> None:
        keep(trainer, self.run, find(self.analysis, context))
        if context.is_first:
            context.store.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]

    @property
    def state_key(self) -> str:
        # Several analyses of one run count their validations separately.
        return self._generate_state_key(name=self.name)


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
