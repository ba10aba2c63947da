"""What every analysis of heads at validation time has in common: when it runs, what it needs, and where its numbers
go.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.subject import Batches, Subject
from bertsecrets.attention.modes import ModeNeed, find_mode
from bertsecrets.callbacks.trainer_state import (
    current_step,
    data_of,
    is_last_validation,
    log_grids,
    shows_progress,
    stage_of,
)
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import evaluating
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import Run

DISABLING = "the effect of disabling a head cannot be scored"
"""What analyses that disable heads cannot do without labels."""


class Results(Protocol):
    """What an analysis gives: numbers that can be written to a run."""

    @property
    def experiment(self) -> Experiment:
        """What the numbers are."""

    def write(self, run: Run, stage: str, step: int) -> Iterable[HeadGrid]:
        """Write everything to the run's folder; return the grids to log to W&B."""


@dataclass(frozen=True)
class Result:
    """The numbers of an analysis.

    Args:
        experiment: What they are.
        grid: One number for each head and column, reduced over all processes; None if no number belongs to one head.
        tracked: Columns logged to W&B; None for all.
        finish: Called once everything is written.
        rows: What it found that does not fit the grid, as rows (:mod:`bertsecrets.results.rows`).
    """

    experiment: Experiment
    grid: HeadGrid | None
    tracked: tuple[str, ...] | None = None
    finish: Callable[[], object] | None = None
    rows: Sequence[Any] = ()

    def write(self, run: Run, stage: str, step: int) -> list[HeadGrid]:
        """Write everything to the run's folder; return the grids to log to W&B."""
        run.declare(self.experiment.declaration())
        if self.grid is not None:
            run.add(run.rows(self.grid, stage, step))
        run.write_rows(self.experiment.name, stage, step, self.rows)
        if self.finish is not None and run.writes:
            self.finish()
        if self.grid is None:
            return []
        return [self.grid if self.tracked is None else self.grid.only(self.tracked)]


class HeadAnalysis(pl.Callback, ABC):
    """Take an analysis at the last validation and write it to the run; training is not affected.

    The settings build it: they pass ``run``, and the sections ``ablation`` and ``prune`` if the constructor takes them;
    its other parameters are keys of its own section.

    Args:
        run: The run to write results to.
        evaluation: Evaluation set; None for the task's first.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If the set does not exist, or the task has no labels and the analysis needs them.
    """

    without_labels: ClassVar[str] = ""
    """What cannot be done without labels, as a part of a sentence; empty if labels are not needed."""

    learns: ClassVar[str] = ""
    """What is chosen or taught on training rows, as the subject of a sentence; empty if nothing is."""

    def __init__(self, run: Run, evaluation: str | None = None, max_examples: int | None = None) -> None:
        self.run = run
        self.evaluation = evaluation
        self.max_examples = max_examples

    @abstractmethod
    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Results | None:
        """The results, called on all processes; the first one's are written. The model is in evaluation mode, without
        gradients.
        """

    def check_run(self) -> None:
        """Raise UserError if it has no run to write to."""
        if not isinstance(getattr(self, "run", None), Run):
            raise UserError(
                f"{type(self).__name__} has no run; take the parameter run in its constructor and call "
                "super().__init__(run) there."
            )

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # What does not fit the task is reported now, not after hours of training.
        data = getattr(trainer, "datamodule", None)
        if isinstance(data, TaskData):
            data.check_evaluation(self.evaluation)
            if self.learns:
                data.check_apart(self.learns)
            if self.without_labels and not data.task.is_labelled:
                raise UserError(
                    f"Task '{data.task.name}' has no labels, so {self.without_labels}; choose a labelled task."
                )

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Whether to take the analysis at this validation; asked once at each."""
        return is_last_validation(trainer)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not self.is_due(trainer):
            return
        assert isinstance(pl_module, SequenceClassifier)
        with evaluating(pl_module.model):
            results = self.take(trainer, pl_module)
        if results is None or not trainer.is_global_zero:
            return
        self.run.folder.mkdir(parents=True, exist_ok=True)
        step = current_step(trainer, pl_module)
        log_grids(trainer, results.write(self.run, stage_of(trainer), step), step, results.experiment)

    def loader(self, trainer: pl.Trainer) -> Batches:
        """This process's batches of the examples."""
        data = data_of(trainer)
        return data.evaluation_loader(data.check_evaluation(self.evaluation), max_examples=self.max_examples)

    def subject(self, trainer: pl.Trainer, model: nn.Module) -> Subject:
        """The model on the examples."""
        context, progress = trainer.precision_plugin.forward_context, shows_progress(trainer)
        return Subject.of_data(model, data_of(trainer), self.evaluation, context, progress)


def check_references(trainer: pl.Trainer, settings: AblationSettings) -> None:
    """Raise UserError if replacements cannot be fitted for lack of labels."""
    data = getattr(trainer, "datamodule", None)
    if ModeNeed.FITTED_OUTPUTS in find_mode(settings.mode).needs and isinstance(data, TaskData):
        data.labels(TRAIN)


def without_errors(experiment: Experiment, value_LHC: Tensor, count: int = 1) -> HeadGrid:
    """Numbers that have no standard error, each from so many observations."""
    stderr_LHC = torch.full_like(value_LHC, torch.nan)
    count_LHC = torch.full_like(value_LHC, count, dtype=torch.int64)
    return HeadGrid(experiment.name, experiment.columns, value_LHC, stderr_LHC, count_LHC)
