"""Plan a smaller model: the information of heads and neurons, and what to keep of them by information and cost."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsecrets.ablation.partial_passes import return_freed_memory
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.float64 import to_float64
from bertsecrets.models.encoder import Autocast, describe, evaluating
from bertsecrets.pruning.removal import Kept
from bertsecrets.shrinking.latency import LatencyTable
from bertsecrets.task_heads.base import output_of, wide


@dataclass(frozen=True)
class ComponentScores:
    """Fisher information of the gates of heads ``[L, H]`` and of neurons ``[L, F]``, float64, at least 0."""

    head_LH: Tensor
    neuron_LF: Tensor


def most_informative(score_G: Tensor, count: int) -> tuple[int, ...]:
    """Numbers of the heads or neurons of one layer with the highest scores, ascending."""
    return tuple(sorted(score_G.argsort(descending=True, stable=True)[:count].tolist()))


def fisher_information(
    model: nn.Module, batches: Iterable[Batch], *, context: Autocast, seed: int = 0
) -> ComponentScores:
    """Mean over examples of the Fisher information of each gate (Kwon et al. 2022, section 4.1, with the true instead
    of the empirical information).

    A gate multiplies the output of a head or a neuron and is 1 in the intact model. Its information is E_y[(d log p(y |
    x) / d gate)²] over the model's own predictive distribution, so that no labels are needed and memorised training
    examples still count; a score has unit variance. The expectation is estimated, without bias, by one random
    combination of classes per example.

    Args:
        seed: Seed of the random combinations.
    """
    encoder = describe(model)
    family = encoder.family
    assert family is not None
    device = next(encoder.model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    outputs = [family.feed_forward(layer).output for layer in encoder.layers]
    head_LH = torch.zeros(encoder.num_layers, encoder.num_heads, dtype=torch.float64)
    neuron_LF = torch.zeros(encoder.num_layers, outputs[0].in_features, dtype=torch.float64)
    count = 0
    with evaluating(encoder.model), torch.enable_grad():
        for batch in batches:
            # Filled in the order of calls: for each layer, the heads' outputs, then the neurons'.
            values: list[Tensor] = []
            with ExitStack() as stack:
                for site, output in zip(encoder.sites, outputs, strict=True):
                    assert site.projection is not None
                    for linear in (site.projection, output):
                        stack.callback(linear.register_forward_pre_hook(partial(_record, values)).remove)
                with context():
                    on_device = batch.to(device)
                    logits_BC = wide(on_device.predictions(output_of(encoder.model, on_device.inputs())))
            gradients = torch.autograd.grad(_random_log_likelihood(logits_BC, generator), values)
            for call, (value_BSG, gradient_BSG) in enumerate(zip(values, gradients, strict=True)):
                information_LG = (head_LH, neuron_LF)[call % 2]
                slope_BS = (
                    to_float64((value_BSG * gradient_BSG).detach()).unflatten(-1, (information_LG.shape[1], -1)).sum(-1)
                )
                information_LG[call // 2] += (slope_BS.sum(1) ** 2).sum(0).cpu()
            count += batch.size
            return_freed_memory(device)
    return ComponentScores(head_LH / count, neuron_LF / count)


def _record(values: list[Tensor], _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    # Without trainable weights below it, the first input would have no gradient.
    value_BSG = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
    values.append(value_BSG)
    return (value_BSG, *args[1:])


def _random_log_likelihood(logits_BC: Tensor, generator: torch.Generator) -> Tensor:
    """A sum over examples whose squared derivatives have the Fisher information as their expectation.

    For classes, sum_c e_c sqrt(p_c) log p_c with random signs e: the squares sum_c p_c (d log p_c)² remain, and
    products of different classes vanish in expectation. A score has a single output and needs no sign.
    """
    if logits_BC.shape[1] == 1:
        return logits_BC.sum()
    sign_BC = torch.randint(0, 2, logits_BC.shape, generator=generator).to(logits_BC) * 2 - 1
    log_BC = torch.log_softmax(logits_BC, -1)
    return (sign_BC * (0.5 * log_BC).exp().detach() * log_BC).sum()


_TRIALS = 6
"""How often to replan if the model is slower than requested or predicted."""

_RESERVE = 0.02
"""Speed reserve of a plan, because timing is noisy and the final model is timed again."""

_AGREEMENT = 0.1
"""Largest relative difference of the predicted and the measured speed-up of a plan."""

Array = NDArray[np.float64]

_STEPS = 4000
"""Times are rounded up to multiples of this fraction of the budget, so that the plan never exceeds it."""


def allocate(losses: Sequence[Array], costs: Sequence[Array], budget: float) -> list[int] | None:
    """One choice per part that minimises the total loss within the budget (multiple-choice knapsack).

    By dynamic programming over the budget, exact up to rounding of costs.

    Args:
        losses: Loss of each choice of each part.
        costs: Its cost, at least 0.
        budget: Limit on the total cost.

    Returns:
        The index of each part's choice; None if even the cheapest choices exceed the budget.
    """
    if not budget > 0:
        return None
    # Without the small term, a cost of a whole number of steps could be rounded up to the next.
    steps = [np.ceil(np.asarray(cost) / budget * _STEPS - 1e-9).astype(np.int64) for cost in costs]
    # Smallest loss of the parts so far by the steps spent.
    best_T = np.zeros(_STEPS + 1)
    choices = []
    for loss_C, step_C in zip(losses, steps, strict=True):
        value_CT = np.full((len(loss_C), _STEPS + 1), np.inf)
        for index, (loss, step) in enumerate(zip(loss_C, step_C, strict=True)):
            if step <= _STEPS:
                value_CT[index, step:] = best_T[: _STEPS + 1 - step] + loss
        choices.append(value_CT.argmin(axis=0))
        best_T = value_CT.min(axis=0)
    if not np.isfinite(best_T[-1]):
        return None
    left, plan = _STEPS, []
    for choice_T, step_C in zip(reversed(choices), reversed(steps), strict=True):
        plan.append(int(choice_T[left]))
        left -= int(step_C[plan[-1]])
    return plan[::-1]


def plan(scores: ComponentScores, table: LatencyTable, speedup: float) -> Kept:
    """The kept parts of a model with this speed-up: heads and neurons whose removal loses the least information, by
    dynamic programming.

    Each layer keeps its most informative heads and neurons; their numbers are optimised over the layers.

    Raises:
        UserError: If no plan is that fast.
    """
    layers, heads = scores.head_LH.shape
    losses: list[Array] = []
    costs: list[Array] = []
    for layer in range(layers):
        losses += [
            _lost(scores.head_LH[layer], range(heads + 1)),
            _lost(scores.neuron_LF[layer], table.widths),
        ]
        costs += [table.heads_H, table.neurons_W]
    choice = allocate(losses, costs, table.whole / speedup - table.fixed)
    if choice is None:
        raise UserError(
            f"No smaller model is {speedup:g} times as fast here; the largest speed-up is {table.fastest:.1f}. "
            "Request less."
        )
    kept_heads = tuple(most_informative(scores.head_LH[layer], choice[2 * layer]) for layer in range(layers))
    if not any(kept_heads):
        # Without any head, no token reads another, so even the cheapest plan has one.
        layer = int(scores.head_LH.max(dim=1).values.argmax())
        kept_heads = tuple(most_informative(scores.head_LH[at], int(at == layer)) for at in range(layers))
    widths = [table.widths[step] for step in choice[1::2]]
    kept_neurons = tuple(most_informative(scores.neuron_LF[layer], width) for layer, width in enumerate(widths))
    return Kept(heads, kept_heads, kept_neurons)


def as_fast_as_asked(
    planner: Callable[[LatencyTable, float], Kept],
    table: LatencyTable,
    speedup: float,
    measure: Callable[[Kept], float],
) -> tuple[Kept, float]:
    """The kept parts of a model measured to be as fast as requested and predicted, and the prediction.

    Otherwise the table is calibrated by the measurement and a new plan is made. If no plan is fast enough, the fastest
    is used; if none of the fast enough plans was predicted correctly, the slowest of them.

    Args:
        planner: Maps a table and a speed-up to a plan.
        measure: Measures the speed-up of a plan's model.

    Raises:
        UserError: If no plan is that fast.
    """
    trials: list[tuple[Kept, float, float]] = []
    for _ in range(_TRIALS):
        try:
            kept = planner(table, min((1 + _RESERVE) * speedup, 0.999 * table.fastest))
        except UserError:
            # It is out of reach by the original model's times; the nearest plan shows by how much.
            if trials:
                break
            raise
        measured, predicted = measure(kept), table.whole / table.predict(kept)
        if measured >= speedup and abs(predicted / measured - 1) <= _AGREEMENT:
            return kept, predicted
        trials.append((kept, predicted, measured))
        table = table.calibrated(kept, measured)
    fast = [trial for trial in trials if trial[2] >= speedup]
    kept, predicted, _ = min(fast, key=lambda trial: trial[2]) if fast else max(trials, key=lambda trial: trial[2])
    return kept, predicted


def _lost(score_G: Tensor, kept: Iterable[int]) -> Array:
    """Information lost with the least informative parts, by the number kept."""
    lost_G = np.concatenate([[0.0], np.sort(score_G.numpy()).cumsum()])
    return np.array([lost_G[len(score_G) - count] for count in kept])
