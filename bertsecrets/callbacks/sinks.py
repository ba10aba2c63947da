"""Diagnose sink heads and intervene on them at the last validation."""

from collections.abc import Sequence
from typing import Annotated, Literal

import pytorch_lightning as pl
import torch
from pydantic import Field

from bertsecrets.ablation.forecast import announce
from bertsecrets.attention.values import watch_values
from bertsecrets.callbacks.head_analysis import HeadAnalysis, Result
from bertsecrets.callbacks.trainer_state import data_of, shows_progress
from bertsecrets.data.batch import Batch
from bertsecrets.data.special_tokens import special_token_ids
from bertsecrets.float64 import float64_device
from bertsecrets.grid import HeadGrid
from bertsecrets.importance.sinks.experiment import Sinks, is_sink, sink_rows
from bertsecrets.importance.sinks.interventions import REDIRECT, Sink, SinkEffects
from bertsecrets.importance.sinks.norms import ATTENTION, SinkNorms, output_grams
from bertsecrets.importance.sinks.rows import Limits
from bertsecrets.measures.base import MaxExamples
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.settings import typed

_SETTING = "analysis.sinks.tokens"
_Share = Annotated[float, Field(gt=0, le=1, description="a number above 0 and up to 1")]


class InterveneOnSinks(HeadAnalysis):
    """Test the claim that attention to a special token is a no-op, at the last validation.

    A pass over the examples finds the sink heads of [SEP] and [CLS] and the norms of what those tokens add; a further
    pass takes two runs of the model for each such head, with its attention redirected and cut. Training is not
    affected. Any number of processes gives the results of one.

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

    without_labels = "what turning attention away does to its answers cannot be judged"

    @typed
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
        super().__init__(run, evaluation, max_examples)
        self.tokens = tuple(dict.fromkeys(tokens))
        self.limits = Limits(float(attention), float(value_ratio), float(change))

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        special_token_ids(data_of(trainer).tokenizer, self.tokens, _SETTING)

    @torch.no_grad()
    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Result:
        data, device = data_of(trainer), module.device
        encoder, ids = describe(module.model), special_token_ids(data.tokenizer, self.tokens, _SETTING)
        host = float64_device(device)
        norms = SinkNorms(encoder.num_layers, encoder.num_heads, ids).to(host)
        grams = output_grams(encoder.model)
        loader = self.loader(trainer)
        context = trainer.precision_plugin.forward_context
        with progress_over(len(loader), "sinks: norms", visible=shows_progress(trainer)) as advance:
            for on_host in loader:
                batch = on_host.to(device)

                def observe(layer: int, attention: torch.Tensor, value: torch.Tensor, batch: Batch = batch) -> None:
                    # Norms in full precision, whatever the model computes in.
                    with torch.autocast(device.type, enabled=False):
                        norms.take(layer, attention, value, grams[layer], batch)

                with context(), watch_values(encoder.model, observe):
                    encoder.model(**batch.inputs())
                advance()
        norm_grid = norms.compute()
        sinks = [
            Sink(int(layer), int(head), name)
            for name in ids
            for layer, head in torch.from_numpy(
                is_sink(norm_grid.column(name + ATTENTION).numpy(), self.limits)
            ).nonzero()
        ]
        if sinks:
            subject = self.subject(trainer, module.model)
            examples = len(subject.positions(self.max_examples))
            work = f"Turning attention away from special tokens, {len(sinks)} times on {examples:,} examples"
            # Each is redirected and cut.
            announce(work, subject, 1 + 2 * len(sinks), self.max_examples)
        limits = data.task.label_range
        width = None if limits is None else limits[1] - limits[0]
        effects = SinkEffects(encoder.num_layers, encoder.num_heads, ids, sinks, width).to(host)
        with progress_over(len(loader), "sinks: interventions", visible=shows_progress(trainer)) as advance:
            for on_host in loader:
                with context():
                    effects.take(encoder.model, on_host.to(device))
                advance()
        experiment = Sinks(self.tokens)
        tracked = tuple(name + suffix for name in self.tokens for suffix in (ATTENTION, REDIRECT))
        grid = _joined(norm_grid, effects.compute(), self.tokens)
        return Result(experiment, grid, tracked=tracked, rows=list(sink_rows(grid, self.tokens, self.limits)))


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
