"""Diagnose sink heads and intervene on them at the last validation."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

import pytorch_lightning as pl
import torch
from pydantic import Field
from pytorch_lightning.loggers import WandbLogger
from torch import nn
from torch.utils.data import DataLoader

from bertsecrets.attention.values import watch_values
from bertsecrets.callbacks.trainer_state import current_step, is_last_validation, shows_progress, stage_of
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.special_tokens import check_special_tokens, special_token_ids
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.importance.sinks.experiment import Sinks
from bertsecrets.importance.sinks.interventions import REDIRECT, Sink, SinkEffects
from bertsecrets.importance.sinks.kinds import Limits, is_sink, sinks_of
from bertsecrets.importance.sinks.norms import ATTENTION, SinkNorms, output_grams
from bertsecrets.measures.base import MaxExamples
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe, evaluating
from bertsecrets.results import wandb as tracking
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.results.views import OWN, MeasureView

_SETTING = "analysis.sinks.tokens"
_Share = Annotated[float, Field(gt=0, le=1, description="a number above 0 and up to 1")]


class InterveneOnSinks(pl.Callback):
    """Test the claim that attention to a special token is a no-op, at the last validation.

    A pass over the examples finds the sink heads of [SEP] and [CLS] and the norms of what those tokens add; a further
    pass takes two runs of the model for each such head, with its attention redirected and cut. Training is not affected.
    Any number of processes gives the results of one.

    Args:
        run: The run to write results to.
        tokens: The special tokens, of ``sep`` and ``cls``.
        attention: Least mean attention to a token of a sink head.
        value_ratio: Value norm at the token, over that of words, below which a head's diagnosis is *nop*.
        change: Mean change of the answer below which an intervention has no effect to speak of.
        max_examples: A random sample of this many examples; None for all.
        evaluation: Evaluation set; None for the task's first.

    Raises:
        UserError: If a token is unknown or missing in the tokenizer, or the task has no labels.
    """

    def __init__(
        self,
        run: Run,
        tokens: Annotated[Sequence[Literal["sep", "cls"]], Field(min_length=1, description="a list of sep and cls")] = (
            "sep",
            "cls",
        ),
        attention: _Share = 0.5,
        value_ratio: Annotated[float, Field(gt=0, description="a number above 0")] = 0.5,
        change: _Share = 0.01,
        max_examples: MaxExamples = None,
        evaluation: str | None = None,
    ) -> None:
        self.run = run
        self.tokens = check_special_tokens(tokens, "the sinks analysis")
        self.limits = Limits(float(attention), float(value_ratio), float(change))
        self.max_examples = max_examples
        self.evaluation = evaluation

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        data.check_evaluation(self.evaluation)
        if not data.task.is_labelled:
            raise UserError(
                f"Task '{data.task.name}' has no labels, so what turning attention away does to its answers cannot be "
                "judged; choose a labelled task."
            )
        special_token_ids(data.tokenizer, self.tokens, _SETTING)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not is_last_validation(trainer):
            return
        assert isinstance(pl_module, SequenceClassifier)
        with evaluating(pl_module.model):
            grid = self.take(trainer, pl_module.model)
        declaration = Sinks(self.tokens).declaration()
        self.run.declare(declaration)
        self.run.add(self.run.rows(grid, stage_of(trainer), current_step(trainer, pl_module)))
        if self.run.writes:
            summary = sinks_of(MeasureView(self.run, declaration), self.limits)
            content = {
                "limits": asdict(self.limits),
                "tokens": {name: token.plain() for name, token in summary.items()},
            }
            self.run.write_json(self.run.extras_path(declaration.name), {OWN: content})
        tracked = grid.only(tuple(name + suffix for name in self.tokens for suffix in (ATTENTION, REDIRECT)))
        for logger in trainer.loggers:
            if trainer.is_global_zero and isinstance(logger, WandbLogger):
                tracking.define_axis(logger.experiment, grid.measure)
                tracking.log_grid(logger.experiment, tracked, current_step(trainer, pl_module), title=Sinks.title)

    @torch.no_grad()
    def take(self, trainer: pl.Trainer, model: nn.Module) -> HeadGrid:
        """The grid of all columns, reduced over all processes; the model is in evaluation mode."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        encoder, ids = describe(model), special_token_ids(data.tokenizer, self.tokens, _SETTING)
        device = next(encoder.model.parameters()).device
        host = torch.device("cpu") if device.type == "mps" else device
        norms = SinkNorms(encoder.num_layers, encoder.num_heads, ids).to(host)
        grams = output_grams(encoder.model)
        loader = self._loader(data)
        context = trainer.precision_plugin.forward_context
        with progress_over(len(loader), "sinks: norms", visible=shows_progress(trainer)) as advance:
            for on_host in loader:
                batch = on_host.to(device)

                def observe(layer: int, attention: torch.Tensor, value: torch.Tensor, batch: Batch = batch) -> None:
                    with torch.autocast(device.type, enabled=False):
                        norms.update(layer, attention, value, grams[layer], batch)

                with context(), watch_values(encoder.model, observe):
                    encoder.model(**batch.inputs())
                advance()
        found = norms.compute()
        sinks = [
            Sink(int(layer), int(head), name)
            for name in ids
            for layer, head in torch.from_numpy(is_sink(found.column(name + ATTENTION).numpy(), self.limits)).nonzero()
        ]
        limits = data.task.label_range
        width = None if limits is None else limits[1] - limits[0]
        effects = SinkEffects(encoder.num_layers, encoder.num_heads, ids, sinks, width).to(host)
        with progress_over(len(loader), "sinks: interventions", visible=shows_progress(trainer)) as advance:
            for on_host in loader:
                with context():
                    effects.update(encoder.model, on_host.to(device))
                advance()
        return _joined(found, effects.compute(), self.tokens)

    def _loader(self, data: TaskData) -> DataLoader[Batch]:
        return data.evaluation_loader(data.check_evaluation(self.evaluation), max_examples=self.max_examples)


def _joined(norms: HeadGrid, effects: HeadGrid, tokens: Sequence[str]) -> HeadGrid:
    columns = Sinks(tokens).columns

    def together(norms_LHC: torch.Tensor, effects_LHC: torch.Tensor) -> torch.Tensor:
        names = (*norms.columns, *effects.columns)
        return torch.cat((norms_LHC, effects_LHC), -1)[..., [names.index(column.name) for column in columns]]

    return HeadGrid(
        Sinks.name,
        columns,
        together(norms.value_LHC, effects.value_LHC),
        together(norms.stderr_LHC, effects.stderr_LHC),
        together(norms.count_LHC, effects.count_LHC),
    )
