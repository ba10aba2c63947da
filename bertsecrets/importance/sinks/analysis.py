"""Diagnose sink heads and intervene on them."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field

from bertsecrets.ablation.forecast import announce
from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.watch import watch_values
from bertsecrets.data.batch import Batch
from bertsecrets.data.special_tokens import TokenNames, special_token_ids
from bertsecrets.float64 import float64_device
from bertsecrets.grid import HeadGrid
from bertsecrets.importance.sinks.experiment import Sinks, is_sink, sink_rows
from bertsecrets.importance.sinks.interventions import REDIRECT, Sink, SinkEffects
from bertsecrets.importance.sinks.norms import ATTENTION, SinkNorms, output_grams
from bertsecrets.importance.sinks.rows import Limits
from bertsecrets.measures.base import MaxExamples
from bertsecrets.results.progress import progress_over
from bertsecrets.settings import typed

_SETTING = "analysis.sinks.tokens"
_Share = Annotated[float, Field(gt=0, le=1, description="a number above 0 and up to 1")]


class InterveneOnSinks(Analysis):
    """Test the claim that attention to a special token is a no-op.

    One pass over the examples finds the sink heads of [SEP] and [CLS] and the norms of those tokens' contributions; a
    second pass runs the model twice per sink head, with its attention redirected and cut.

    Args:
        tokens: The special tokens, ``sep`` and ``cls``.
        attention: Least mean attention to a token of a sink head.
        value_ratio: Ratio of the value norm at the token to that of words, below which a head's diagnosis is *nop*.
        change: Mean change of the prediction below which an intervention counts as having no effect.
        max_examples: Size of a random sample of examples; None for all.
        evaluation: Evaluation set; None for the task's first.

    Raises:
        UserError: If a token is unknown or missing in the tokenizer, or the task has no labels.
    """

    of_whole_texts = True
    without_labels = "the effect of redirecting attention cannot be measured"

    @typed
    def __init__(
        self,
        tokens: TokenNames = ("sep", "cls"),
        attention: _Share = 0.5,
        value_ratio: Annotated[float, Field(gt=0, description="a number above 0")] = 0.5,
        change: _Share = 0.01,
        max_examples: MaxExamples = None,
        evaluation: str | None = None,
    ) -> None:
        super().__init__(evaluation, max_examples)
        self.tokens = tuple(dict.fromkeys(tokens))
        self.limits = Limits(float(attention), float(value_ratio), float(change))

    def check(self, context: Context) -> None:
        super().check(context)
        special_token_ids(context.data.tokenizer, self.tokens, _SETTING)

    def run(self, context: Context) -> Iterator[Findings]:
        encoder, device, host = context.encoder, context.device, float64_device(context.device)
        ids = special_token_ids(context.data.tokenizer, self.tokens, _SETTING)
        norms = SinkNorms(encoder.num_layers, encoder.num_heads, ids).to(host)
        grams = output_grams(encoder.model)
        batches = context.batches(self.max_examples)
        with progress_over(len(batches), "sinks: norms", visible=context.progress) as advance:
            for on_host in batches:
                batch = on_host.to(device)

                def observe(layer: int, attention: torch.Tensor, value: torch.Tensor, batch: Batch = batch) -> None:
                    # Norms in full precision, independent of the model's precision.
                    with torch.autocast(device.type, enabled=False):
                        norms.take(layer, attention, value, grams[layer], batch)

                with context.autocast(), watch_values(encoder.model, observe):
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
            examples = len(context.positions(self.max_examples))
            work = f"Redirecting attention away from special tokens, {len(sinks)} times on {examples:,} examples"
            # Each head is redirected and cut.
            announce(work, context, 1 + 2 * len(sinks), self.max_examples)
        limits = context.task.label_range
        width = None if limits is None else limits[1] - limits[0]
        effects = SinkEffects(encoder.num_layers, encoder.num_heads, ids, sinks, width).to(host)
        with progress_over(len(batches), "sinks: interventions", visible=context.progress) as advance:
            for on_host in batches:
                with context.autocast():
                    effects.take(encoder.model, on_host.to(device))
                advance()
        tracked = tuple(name + suffix for name in self.tokens for suffix in (ATTENTION, REDIRECT))
        grid = _joined(norm_grid, effects.compute(), self.tokens)
        rows = list(sink_rows(grid, self.tokens, self.limits))
        yield Findings(Sinks(self.tokens), [grid], rows, tracked=[grid.only(tracked)])


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
