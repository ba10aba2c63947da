"""Shapley head values (Held and Yang 2023): each head's fair share of what all heads together are worth."""

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.outcomes import Outcomes, Parts
from bertsecrets.ablation.plan import Head, Plan, cumulative
from bertsecrets.ablation.scoring import Array, scores
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.grid import highest
from bertsecrets.present.ranking import picked
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.files import atomic_write
from bertsecrets.results.formatting import head_label, metric_label, number, p_value, with_error
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero

LOSS = "loss"
PERMUTATIONS = 20
"""Random orders, unless another number is asked for."""
_LISTED = 12


class Shapley(Experiment):
    """Shapley values of the heads of one model, from random orders of disabling them.

    The worth of a set of heads is the score of the model in which all others are disabled; for column ``loss``, minus its
    mean loss. A head's contribution in an order of disabling is the fall of the worth when it is disabled, and its value
    the mean over all orders (Shapley 1953), of which a random sample is taken. Standard errors are over orders.

    Columns:
        ``loss``: value for the mean loss; positive if the head lowers it.
        ``<metric>``: value for the task's first metric; a correlation that is undefined counts as 0.

    Args:
        metric: The task's first metric.
    """

    name = "shapley"
    title = "Shapley values of heads"
    shown = Shown(compared=False, reads_task=True)

    def __init__(self, metric: str) -> None:
        self.columns: tuple[Column, ...] = (
            Column(LOSS, "Shapley value, loss", "fall of the mean loss", keep="high"),
            Column(metric, f"Shapley value, {metric_label(metric)}", metric_label(metric), keep="high"),
        )

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Values of all heads, which of them differ from 0, and what they add up to."""
        if view.step is None or not view.extras:
            return None
        extras, names = view.extras, [column.name for column in view.columns]
        p_CLH = corrected(np.stack([mean_differs_from_zero(*view.grid(name)) for name in names]))
        differs = dict(zip(names, p_CLH <= LEVEL, strict=True))
        note = f"{view.count(names[0]):,} random orders; {extras['examples']:,} examples"
        figures = []
        for name in names:
            column = view.column(name)
            figure = head_panels(
                [HeadPanel(column.label, view.value(name), differs[name])],
                title=f"Shapley values of heads: {name}",
                unit=column.unit,
                note=f"pale: may be 0 (t test over orders, false discovery rate {LEVEL:.0%}); {note}",
                signed=True,
            )
            figures.append(FigureBlock(f"{cls.name}_{name}", figure, f"{column.label}.", "Heatmap of Shapley values."))
        return Section(
            view.title,
            [_finding(view, name, differs[name]) for name in names],
            [
                f"Heads are disabled (mode {extras['mode']}) one after another in random orders; a head's value is the mean "
                "fall of the model's worth when its turn comes, minus the mean loss or the score. The values of all heads add "
                "up to the worth of the whole model minus that of the model without heads, in every single order. Errors "
                "are those of sampling orders on these examples (Held and Yang 2023, who truncate; here no order is)."
            ],
            [_table(view, names, p_CLH)],
            figures,
            head=highest(view.value(names[0])),
        )


def orders(num_layers: int, num_heads: int, count: int, seed: int) -> list[tuple[Head, ...]]:
    """Random orders of all heads; each depends on the seed and its number alone, so that more orders extend fewer."""
    heads = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    drawn = []
    for index in range(count):
        # From seed and number: order 7 is the same whether ten or a hundred are taken.
        generator = random.Random(f"{seed}/{index}")
        drawn.append(tuple(generator.sample(heads, len(heads))))
    return drawn


def plan_of(order: Sequence[Head], mode: str, num_layers: int, num_heads: int) -> Plan:
    """The variants that disable the first one, two, ... heads of an order."""
    return Plan(mode, num_layers, num_heads, tuple(cumulative(order)))


def worths(outcomes: Outcomes, task: Task) -> Array:
    """Worth with the first 0, 1, ... N heads of the order disabled, ``[N + 1, 2]``: minus the mean loss, and the metric."""
    clean_N, loss_NV = outcomes.losses(task)
    paired = outcomes.predictions(task)
    score_V = scores(task.metrics[0], paired.label_N, paired.both_VN)
    loss_V = torch.cat((clean_N[:, None], loss_NV), 1).double().mean(0).numpy()
    # Minus: worth is what one wants more of.
    return np.stack([-loss_V, np.nan_to_num(score_V)], -1)


@dataclass(frozen=True)
class KeptOrders:
    """What an interrupted estimate has finished: the worths of whole orders, and batches of the one that was under way.

    Args:
        folder: Folder of the files.
        identity: From :func:`bertsecrets.ablation.outcomes.fingerprint`: of all that worths depend on, examples and labels too.
        writes: Whether this process writes worths and removes files; each writes its own batches.
    """

    folder: Path
    identity: str
    writes: bool = True

    def parts(self, index: int) -> Parts:
        """The finished batches of an order."""
        return Parts(self._path(index).with_suffix(""), f"{self.identity} {index}")

    def worths(self, index: int) -> Array | None:
        """The worths of a finished order, see :func:`worths`; None if it is not finished or its file is unreadable."""
        try:
            return cast(Array, np.load(self._path(index)))
        except (OSError, EOFError, ValueError):
            return None

    def finish(self, index: int, worth_KC: Array) -> None:
        """Keep the worths of an order, in place of its batches."""
        if self.writes:
            with atomic_write(self._path(index)) as temporary:
                np.save(temporary, worth_KC)
            self.parts(index).clear()

    def clear(self) -> None:
        """Remove all files, once the results are written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, index: int) -> Path:
        return self.folder / f"{self.identity[:24]}-{index}.npy"


def take_worths(
    model: nn.Module,
    plans: Sequence[Plan],
    parts: Sequence[Parts | None],
    batches: Callable[[], Iterable[Batch]],
    task: Task,
    kept: KeptOrders | None = None,
    **options: Any,
) -> Array:
    """:func:`worths` of P orders of N heads, ``[P, N + 1, 2]``, each from an exact sweep.

    Args:
        model: See :func:`bertsecrets.ablation.exact.exact_sweep`.
        plans: Of each order, from :func:`plan_of`.
        parts: Where finished batches of each are saved; None to keep nothing.
        batches: Makes this process's share of the examples, for each order anew.
        task: Decides losses and scores.
        kept: Where worths of finished orders are kept, in place of their batches; None to keep none.
        options: Further arguments of :func:`bertsecrets.ablation.exact.exact_sweep`.
    """
    worth_PKC = []
    for index, (plan, parts_of_plan) in enumerate(zip(plans, parts, strict=True)):
        worth_KC = None if kept is None else kept.worths(index)
        if worth_KC is None:
            worth_KC = worths(exact_sweep(model, plan, batches(), parts=parts_of_plan, **options), task)
            if kept is not None:
                kept.finish(index, worth_KC)
        worth_PKC.append(worth_KC)
    return np.stack(worth_PKC)


def value_grid(metric: str, order_P: Sequence[Sequence[Head]], worth_PKC: Array) -> HeadGrid:
    """Means over orders with their standard errors; counts are numbers of orders.

    A head's value in an order is the fall of the worth when it is disabled; they add up to the first worth minus the last.

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


def _finding(view: MeasureView, name: str, differs_LH: NDArray[np.bool_]) -> str:
    value_LH, stderr_LH, count_LH = view.grid(name)
    ends = view.extras["worth"][name]
    up, down = (int((differs_LH & (sign * value_LH > 0)).sum()) for sign in (1, -1))
    head = highest(value_LH)
    score = "mean loss" if name == LOSS else metric_label(name)
    sign = -1 if name == LOSS else 1
    return (
        f"The {score} is {number(sign * ends['whole'], 3)} with all heads and {number(sign * ends['none'], 3)} without any; the "
        f"values of the {value_LH.size} heads add up to this difference. {up} have a value significantly above 0 and {down} "
        f"below; the highest is {picked(head, value_LH, stderr_LH, count_LH, digits=4)}, of {head_label(*head)}."
    )


def _table(view: MeasureView, names: Sequence[str], p_CLH: Array) -> Table:
    grids = [view.grid(name) for name in names]
    value_LH = grids[0][0]
    order = np.argsort(-value_LH, axis=None, kind="stable")
    listed = order if order.size <= 2 * _LISTED else np.concatenate([order[:_LISTED], order[-_LISTED:]])
    rows = []
    for flat_index in listed:
        layer, head = divmod(int(flat_index), value_LH.shape[1])
        cells = [head_label(layer, head)]
        for (grid_LH, stderr_LH, _), p_LH in zip(grids, p_CLH, strict=True):
            cells += [
                with_error(float(grid_LH[layer, head]), float(stderr_LH[layer, head]), 4),
                p_value(float(p_LH[layer, head])),
            ]
        rows.append(cells)
    header = ["head", *(cell for name in names for cell in (name, f"{name}: p"))]
    which = "All heads" if order.size <= 2 * _LISTED else f"The {_LISTED} heads of highest and of lowest value"
    return Table(header, rows, f"{which}, by value for the loss (p: t test over orders, corrected)", folded=True)
