"""Shapley head values (Held and Yang 2023): each head's fair share of the worth of all heads together."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import nn

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Head, Plan, Variant
from bertsecrets.ablation.predictions import scores
from bertsecrets.ablation.replacements import DISABLING, check_references, prepare
from bertsecrets.ablation.rows import Worth
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import MaxExamples
from bertsecrets.results.components import CUMULATIVE
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import metric_label
from bertsecrets.results.progress import progress_over
from bertsecrets.settings import typed
from bertsecrets.task_heads.metric import Array

LOSS = "loss"
PERMUTATIONS = 20
"""Default number of random orders."""


class Shapley(Experiment):
    """Shapley values of a model's heads, from random orders of disabling them.

    The worth of a set of heads is the score of the model with all other heads disabled; for column ``loss``, minus its
    mean loss. A head's contribution in an order of disabling is the decrease of the worth when it is disabled, and its
    value is the mean over all orders (Shapley 1953), estimated from a random sample. Standard errors are over orders.

    Columns:
        ``loss``: value for the mean loss; positive if the head lowers it.
        ``<metric>``: value for the task's first metric; an undefined correlation counts as 0.

    Args:
        metric: The task's first metric.
    """

    name = "shapley"
    title = "Shapley values of heads"
    shown = Shown(compared=False, reads_task=True)
    presenter = "bertsecrets.present.importance:SHAPLEY"

    def __init__(self, metric: str) -> None:
        self.columns: tuple[Column, ...] = (
            Column(LOSS, "Shapley value, loss", "fall of the mean loss", keep="high"),
            Column(metric, f"Shapley value, {metric_label(metric)}", metric_label(metric), keep="high"),
        )


def orders(num_layers: int, num_heads: int, count: int, seed: int) -> list[tuple[Head, ...]]:
    """Random orders of all heads; each depends only on the seed and its number, so that more orders extend fewer."""
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    drawn = []
    for index in range(count):
        # From seed and number: order 7 is the same whether ten or a hundred are used.
        generator = random.Random(f"{seed}/{index}")
        drawn.append(tuple(generator.sample(heads, len(heads))))
    return drawn


def plan_of(order: Sequence[Head], mode: str, num_layers: int, num_heads: int) -> Plan:
    """The variants that disable the first one, two, ... heads in an order."""
    sizes = range(1, len(order) + 1)
    variants = (Variant(f"top-{size:03d}", CUMULATIVE.name, tuple(sorted(order[:size]))) for size in sizes)
    return Plan(mode, num_layers, num_heads, tuple(variants))


def worths(outcomes: Outcomes, task: Task) -> Array:
    """Worth with the first 0, 1, ..., N heads in the order disabled, ``[N + 1, 2]``: minus the mean loss, and the
    metric.
    """
    clean_N, loss_NV = outcomes.losses(task)
    paired = outcomes.predictions(task)
    score_V = scores(task.metric, paired.label_N, paired.both_VN)
    loss_V = torch.cat((clean_N[:, None], loss_NV), 1).double().mean(0).numpy()
    # Minus, because a larger worth is better.
    return np.stack([-loss_V, np.nan_to_num(score_V)], -1)


def take_worths(
    model: nn.Module,
    plans: Sequence[Plan],
    batches: Callable[[], Iterable[Batch]],
    task: Task,
    **options: Any,
) -> Array:
    """:func:`worths` of P orders of N heads, ``[P, N + 1, 2]``, each from an exact sweep.

    Args:
        model: See :func:`bertsecrets.ablation.exact.exact_sweep`.
        plans: The plan of each order, from :func:`plan_of`.
        batches: Creates this process's share of the examples, once for each order.
        task: Defines losses and scores.
        options: Further arguments of :func:`bertsecrets.ablation.exact.exact_sweep`.
    """
    return np.stack([worths(exact_sweep(model, plan, batches(), **options), task) for plan in plans])


def value_grid(metric: str, order_P: Sequence[Sequence[Head]], worth_PKC: Array) -> HeadGrid:
    """Means over orders with their standard errors; counts are numbers of orders.

    A head's value in an order is the decrease of the worth when it is disabled; the values add up to the first worth
    minus the last.

    Args:
        metric: The task's first metric.
        order_P, worth_PKC: The orders of all heads and their worths, see :func:`take_worths`.
    """
    layers, heads = (1 + max(numbers) for numbers in zip(*order_P[0], strict=True))
    fall_PLHC = torch.empty(len(order_P), layers, heads, worth_PKC.shape[-1], dtype=torch.float64)
    for fall_LHC, order, worth_KC in zip(fall_PLHC, order_P, torch.from_numpy(worth_PKC), strict=True):
        layer_N, head_N = torch.tensor(order).unbind(1)
        fall_LHC[layer_N, head_N] = worth_KC[:-1] - worth_KC[1:]
    count_LHC = torch.full((layers, heads, worth_PKC.shape[-1]), len(order_P))
    columns = Shapley(metric).columns
    return HeadGrid.from_sums(Shapley.name, columns, fall_PLHC.sum(0), fall_PLHC.square().sum(0), count_LHC)


class ShapleyHeads(Analysis):
    """Estimate the Shapley value of every head from random orders of disabling all heads.

    Each order costs one engine sweep with as many variants as heads. An interrupted analysis can be resumed, even with
    more orders.

    Args:
        ablation: How heads are disabled; its ``mode``, ``seed`` and ``evaluation`` are used.
        permutations: Number of random orders.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If there are fewer than two permutations, or the task has no labels.
    """

    without_labels = DISABLING

    @typed
    def __init__(
        self,
        ablation: AblationSettings | None = None,
        permutations: Annotated[
            int, Field(ge=2, description="a whole number from 2, so that errors can be estimated")
        ] = PERMUTATIONS,
        max_examples: MaxExamples = 128,
    ) -> None:
        self.settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(self.settings.evaluation, max_examples)
        self.permutations = permutations

    def check(self, context: Context) -> None:
        super().check(context)
        check_references(context, self.settings)

    def run(self, context: Context) -> Iterator[Findings]:
        mode, task = self.settings.mode, context.task
        layers, heads = context.encoder.num_layers, context.encoder.num_heads
        drawn = orders(layers, heads, self.permutations, self.settings.seed)
        plans = [plan_of(order, mode, layers, heads) for order in drawn]
        batches = context.batches(self.max_examples)
        store = context.store.of(context.model, self.settings.model_dump())
        total = sum(len(spec.positions) for spec in batches.sampler) * len(plans) * layers * heads
        with progress_over(total, "Shapley values", visible=context.progress, unit="variant·example") as advance:
            worth_PKC = take_worths(
                context.model,
                plans,
                lambda: batches,
                task,
                replacements=prepare(context, plans[0], self.settings, store),
                max_tokens=self.settings.max_tokens,
                context=context.autocast,
                store=store,
                progress=advance,
            )
        experiment, count = Shapley(task.metrics[0]), len(context.positions(self.max_examples))
        rows = [
            Worth(column.name, float(whole), float(none), mode, count)
            for column, whole, none in zip(experiment.columns, worth_PKC[0, 0], worth_PKC[0, -1], strict=True)
        ]
        grid = value_grid(task.metrics[0], drawn, worth_PKC)
        yield Findings(experiment, [grid], rows)
