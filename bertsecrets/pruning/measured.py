"""Scores from other experiments, computed on the selection examples: every column that ranks heads."""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

from bertsecrets.ablation.direct import DirectEffects, take_effects
from bertsecrets.ablation.shapley import PERMUTATIONS, Shapley, orders, plan_of, take_worths, value_grid
from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.importance.relevance import Relevance, take_relevance
from bertsecrets.measures.base import Measure, Need
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.measures.shipped import shipped_measures
from bertsecrets.models.encoder import describe, scale_heads
from bertsecrets.pruning.sets import HeadSet, Situation
from bertsecrets.results.formatting import lower_first

MODE = "zero"
"""How heads are disabled: a removed head's output is zero."""


@dataclass(frozen=True)
class MeasuredScore:
    """A pruning score from a column of a measure or another analysis that ranks heads.

    Args:
        experiment: Name of the measure or analysis.
        label: Description of the score.
        column: The column; its ``keep`` tells whether high or low numbers are kept.
        take: Computes the grid of a model in a situation.
        passes: Maps the number of heads to the passes over each example that are needed.
    """

    experiment: str
    label: str
    column: Column
    take: Callable[[Situation, nn.Module], HeadGrid]
    passes: Callable[[int], int]

    def __call__(self, situation: Situation) -> Tensor:
        key = (self.experiment, situation.removed)
        if key not in situation.computed:
            grid = self.take(situation, without_heads(situation.model, situation.removed, self.experiment))
            situation.computed[key] = {column: grid.column(column) for column in grid.columns}
        value_LH = situation.computed[key][self.column.name]
        return -value_LH if self.column.keep == "low" else value_LH


@cache
def measured_scores() -> dict[str, MeasuredScore]:
    """The scores by ``measure/column``: from measures, with the settings in ``conf/measure`` or their package, and from
    analyses.

    Measures that need a reference, annotated words or a masked-language-model head are excluded.
    """
    scores: list[MeasuredScore] = []
    for make in ranking_measures().values():
        measure = make(1, 1)
        if not measure.needs & {Need.REFERENCE, Need.ANNOTATION, Need.MASKED_LM}:
            title = f"{lower_first(measure.title)}, "
            scores += _of(measure.name, measure.columns, partial(_measure, make), sum(measure.passes), title)
    scores += _of(Relevance.name, Relevance.columns, _relevance, 2)
    scores += _of(DirectEffects.name, DirectEffects.columns, _direct_effects, lambda heads: 2 * heads)
    # On few examples, the metric has too many ties to rank heads.
    scores += _of(Shapley.name, Shapley("").columns[:1], _shapley, lambda heads: PERMUTATIONS * heads)
    return {f"{score.experiment}/{score.column.name}": score for score in scores}


def ranking_measures() -> dict[str, Callable[[int, int], Measure]]:
    """The measures with a column that ranks heads (``Column.keep``), by name, with their default settings."""
    makers: dict[str, Callable[[int, int], Measure]] = {}
    for name, maker in shipped_measures().items():
        columns = inspect.getattr_static(maker.func, "columns", ())
        if isinstance(columns, tuple) and any(column.keep is not None for column in columns):
            makers[name] = maker
    return makers


def _of(
    experiment: str,
    columns: tuple[Column, ...],
    take: Callable[[Situation, nn.Module], HeadGrid],
    passes: int | Callable[[int], int],
    title: str = "",
) -> list[MeasuredScore]:
    counted = passes if callable(passes) else lambda heads: passes
    ranking = [column for column in columns if column.keep is not None]
    return [MeasuredScore(experiment, f"{title}{column.label}", column, take, counted) for column in ranking]


@torch.inference_mode(False)
def without_heads(model: nn.Module, removed: HeadSet, score: str) -> nn.Module:
    """A copy of a model whose removed heads output nothing; the model itself if none is removed.

    Raises:
        UserError: If layers share their weights; the message names the score.
    """
    if not removed:
        return model
    encoder = describe(model)
    if encoder.shares_layers:
        raise UserError(
            f"The pruning score '{score}' cannot be recomputed after each step, because the layers of model type "
            f"'{encoder.base.config.model_type}' share one set of weights; set iterative=false, or choose exact."
        )
    gate_LH = torch.ones(encoder.num_layers, encoder.num_heads)
    for layer, head in removed:
        gate_LH[layer, head] = 0
    smaller = copy.deepcopy(encoder.model)
    scale_heads(describe(smaller), gate_LH)
    return smaller


def _counted(situation: Situation, passes: int) -> Iterator[Batch]:
    """This process's batches; after use, each is reported as this many finished passes of its examples."""
    for batch in situation.share_batches():
        yield batch
        if situation.progress is not None:
            situation.progress(batch.size * passes)


def _measure(make: Callable[[int, int], Measure], situation: Situation, model: nn.Module) -> HeadGrid:
    encoder = describe(model)
    measure = make(encoder.num_layers, encoder.num_heads)
    if situation.split is None:
        raise ValueError("a measure is prepared with its examples: give the situation a split")
    measure.prepare(situation.split())
    means_LHd = None
    if measure.reference_examples:
        device = next(encoder.model.parameters()).device
        with situation.context():
            means_LHd = mean_head_outputs(model, (batch.to(device).inputs() for batch in situation.batches()))
    batches = _counted(situation, sum(measure.passes))
    [grid] = measure_pass(model, [measure], batches, context=situation.context, means_LHd=means_LHd)
    return grid


def _relevance(situation: Situation, model: nn.Module) -> HeadGrid:
    return take_relevance(model, _counted(situation, 2))


def _direct_effects(situation: Situation, model: nn.Module) -> HeadGrid:
    encoder = describe(model)
    device = next(encoder.model.parameters()).device
    measure = DirectEffects(encoder.num_layers, encoder.num_heads, MODE)
    measure = measure.to(float64_device(device))
    batches = _counted(situation, 2 * encoder.num_layers * encoder.num_heads)
    take_effects(model, batches, measure, context=situation.context)
    return measure.compute()


def _shapley(situation: Situation, model: nn.Module) -> HeadGrid:
    encoder, task = describe(model), situation.task
    layers, heads = encoder.num_layers, encoder.num_heads
    drawn = orders(layers, heads, PERMUTATIONS, situation.seed)
    plans = [plan_of(order, MODE, layers, heads) for order in drawn]
    worth_PKC = take_worths(
        model,
        plans,
        situation.share_batches,
        task,
        context=situation.context,
        store=situation.store,
        progress=situation.progress,
    )
    return value_grid(task.metrics[0], drawn, worth_PKC)
