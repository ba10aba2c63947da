"""Takes measures of every head at validation time."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import WandbLogger
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from bertsecrets.callbacks.stage import current_step, is_last_validation, shows_progress, stage_of
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Feed, Measure, Need
from bertsecrets.measures.columns import is_p_value
from bertsecrets.measures.paired import Paired
from bertsecrets.measures.runner import check_needs, measure_pass
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.results import wandb as tracking
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import INITIAL, RANDOM, Run, difference_stage

MakeMeasure = Callable[[int, int], Measure]

_OTHERS = (INITIAL, RANDOM)


class MeasureHeads(pl.Callback):
    """Feeds any number of measures in one pass over the development set, at every validation.

    Nothing of the training is touched: the model goes back to its mode, and a training step's random numbers do not
    depend on what happens between steps. Under any number of processes the grids are those of one.

    Args:
        measures: Name -> factory taking the numbers of layers and heads.
        run: Where the grids go.
        reference: Model to compare with. None: the model as it was before its first training step.
        evaluation: Evaluation set to measure on; None for the task's first.
        every_n_validations: Measure at each n-th validation (and at the last); None for the last alone.
        beside: Models to compare with at the last validation, every measure head by head and example by example:
            ``initial``, the model before its fine-tuning, and ``random``, one with random weights. A model that began
            with random weights is compared with ``initial`` alone.
        random: Makes the model with random weights; needed for ``beside=[random]``.
        wandb_columns: Columns whose every head is logged to W&B as a scalar and a heatmap (``drift/cosine/l11h03``).

    Raises:
        UserError: If ``evaluation`` or a model of ``beside`` does not exist, or a measure needs what there is not.
    """

    def __init__(
        self,
        measures: Mapping[str, MakeMeasure],
        run: Run,
        reference: PreTrainedModel | None = None,
        evaluation: str | None = None,
        every_n_validations: int | None = 1,
        wandb_columns: Sequence[str] = ("cosine", "jensen_shannon"),
        beside: Sequence[str] = (),
        random: Callable[[], PreTrainedModel] | None = None,
    ) -> None:
        if every_n_validations is not None and every_n_validations < 1:
            raise UserError(f"every_n_validations is {every_n_validations}; expected a number from 1, or null.")
        for name in beside:
            if name not in _OTHERS:
                raise UserError(f"Unknown model '{name}' in beside; {choices(str(name), _OTHERS)}.")
        if RANDOM in beside and random is None:
            raise UserError("beside names the model 'random', and there is no way to make one; leave it out.")
        self.makers = dict(measures)
        self.run = run
        self.reference: nn.Module | None = reference
        self.evaluation = evaluation
        self.every_n_validations = every_n_validations
        self.wandb_columns = tuple(wandb_columns)
        self.beside = tuple(name for name in beside if not (name == RANDOM and run.init == RANDOM_INIT))
        self.random = random
        self.measures: list[Measure] = []
        self.grids: list[HeadGrid] = []
        self._validations = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        encoder = describe(pl_module.model)
        self.measures = [make(encoder.num_layers, encoder.num_heads) for make in self.makers.values()]
        compares = INITIAL in self.beside or any(Need.REFERENCE in measure.needs for measure in self.measures)
        if self.reference is None and compares:
            # Before a checkpoint is restored, so that a resumed run has the same reference.
            self.reference = deepcopy(pl_module.model).requires_grad_(False)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        examples = self.dataset(data).examples
        check_needs(self.measures, self.reference, annotated=bool(examples[0].annotations))
        for measure in self.measures:
            measure.prepare(examples, data.tokenizer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.reference is not None:
            self.reference = trainer.precision_plugin.convert_module(self.reference).to(pl_module.device)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._validations += 1
        regular = self.every_n_validations is not None and self._validations % self.every_n_validations == 0
        if not regular and not is_last_validation(trainer):
            return
        assert isinstance(pl_module, SequenceClassifier)
        step, stage = current_step(trainer, pl_module), stage_of(trainer)
        self.grids = self.take(trainer, pl_module.model)
        self.run.add(*(self.run.rows(grid, stage, step) for grid in self.grids))
        if is_last_validation(trainer):
            for other in self.beside:
                self._compare(trainer, pl_module.model, other, stage, step)
        means = {
            f"{grid.measure}/{column}/mean": grid.column(column).nanmean().item()
            for grid in self.grids
            for column in grid.columns
            if not is_p_value(column)
        }
        for logger in trainer.loggers:
            logger.log_metrics(means, step=step)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    for grid in self.grids:
                        self._log(logger, grid, step)

    def _log(self, logger: WandbLogger, grid: HeadGrid, step: int) -> None:
        chosen = grid.only(tuple(column for column in grid.columns if column in self.wandb_columns))
        tracking.define_axis(logger.experiment, grid.measure)
        pictures = {
            column: heatmap(
                chosen.column(column).numpy(),
                title=f"{grid.measure} {column.replace('_', ' ')} at step {step}",
                unit=column.replace("_", " "),
                count=chosen.count_LHC[:, :, i].numpy(),
            )
            for i, column in enumerate(chosen.columns)
        }
        tracking.log_grid(logger.experiment, chosen, step=step, heatmaps=pictures)

    def _chosen(self, data: TaskData) -> str:
        name = self.evaluation or data.evaluation_names[0]
        if name not in data.evaluation_names:
            raise UserError(
                f"Evaluation set '{name}' does not exist; task '{data.task.name}' has {', '.join(data.evaluation_names)}."
            )
        return name

    def dataset(self, data: TaskData) -> EncodedSplit:
        """The examples that are measured on."""
        return data.evaluation_dataset(self._chosen(data))

    def loader(self, data: TaskData, feed: Feed) -> DataLoader[Batch]:
        """Their batches as a measure wants them, this process's share."""
        return data.evaluation_loader(
            self._chosen(data),
            max_examples=feed.max_examples,
            max_length=feed.max_length,
            pad_to=feed.pad_to,
            seed=feed.seed,
        )

    def take(self, trainer: pl.Trainer, model: nn.Module) -> list[HeadGrid]:
        """The grids of all measures."""
        return self._pass(trainer, model, self.measures, self.reference, "heads")

    def _compare(self, trainer: pl.Trainer, model: nn.Module, other: str, stage: str, step: int) -> list[HeadGrid]:
        """Adds the numbers of another model, and those of the differences, to the head table; returns the former."""
        measures = [Paired(measure) for measure in self.measures if Need.REFERENCE not in measure.needs]
        reference = self.reference if other == INITIAL else self._random(trainer, model)
        found = []
        grids = self._pass(trainer, model, measures, reference, f"heads beside the {other} model's")
        for measure, grid in zip(measures, grids, strict=True):
            theirs, difference = measure.apart(grid)
            self.run.add(
                self.run.rows(theirs, other, 0), self.run.rows(difference, difference_stage(stage, other), step)
            )
            found.append(theirs)
        return found

    def _random(self, trainer: pl.Trainer, model: nn.Module) -> nn.Module:
        assert self.random is not None
        made = trainer.precision_plugin.convert_module(self.random().requires_grad_(False))
        return made.to(next(model.parameters()).device)

    def _pass(
        self,
        trainer: pl.Trainer,
        model: nn.Module,
        measures: Sequence[Measure],
        reference: nn.Module | None,
        label: str,
    ) -> list[HeadGrid]:
        """The grids of some measures, in one pass over the examples for each way of feeding them."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        grids: dict[int, HeadGrid] = {}
        for feed in dict.fromkeys(measure.feed for measure in measures):
            chosen = [i for i, measure in enumerate(measures) if measure.feed == feed]
            loader = self.loader(data, feed)
            with progress_over(len(loader), label, visible=shows_progress(trainer)) as advance:
                taken = measure_pass(
                    model,
                    [measures[i] for i in chosen],
                    loader,
                    reference=reference,
                    context=trainer.precision_plugin.forward_context,
                    progress=advance,
                )
            grids.update(zip(chosen, taken, strict=True))
        return [grids[i] for i in range(len(measures))]

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]

    @property
    def state_key(self) -> str:
        return self._generate_state_key(measures=sorted(self.makers), evaluation=self.evaluation)
