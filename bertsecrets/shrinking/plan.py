"""What a smaller model keeps: heads and neurons by what they tell and what they cost, or whole layers and one width."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.attention.parts import without_parts
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, describe, evaluating
from bertsecrets.pruning.recovery import answer_loss
from bertsecrets.pruning.removal import Kept, keep_only
from bertsecrets.results.components import BLOCK
from bertsecrets.shrinking.components import ComponentScores, most_informative
from bertsecrets.shrinking.latency import LatencyTable

_TRIALS = 6
"""How often a plan is made again whose model is slower than asked, or not as fast as predicted."""

_RESERVE = 0.02
"""How much faster than asked a plan is to be: times scatter, and the finished model is timed again."""

_AGREEMENT = 0.1
"""Largest relative difference of the predicted and the measured speed-up of a plan."""

Array = NDArray[np.float64]

_STEPS = 4000
"""Times are rounded up to this fraction of the budget, so that the plan never exceeds it."""


def allocate(losses: Sequence[Array], costs: Sequence[Array], budget: float) -> list[int] | None:
    """One choice for each part with the smallest sum of losses whose costs fit the budget (multiple-choice knapsack).

    By dynamic programming over the budget, which is exact but for the rounding of costs.

    Args:
        losses: What each choice of each part loses.
        costs: What it costs, at least 0.
        budget: What all may cost together.

    Returns:
        The place of each part's choice; None if even the cheapest ones exceed the budget.
    """
    if not budget > 0:
        return None
    # Without the small term, a cost of a whole number of steps could be rounded up to the next.
    steps = [np.ceil(np.asarray(cost) / budget * _STEPS - 1e-9).astype(np.int64) for cost in costs]
    # Smallest loss of the parts so far by the steps that they may spend.
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
    """What a model of this speed keeps: the heads and neurons whose removal loses least information, by dynamic
    programming.

    Of each layer the most informative heads and neurons stay; how many is divided among the layers.

    Raises:
        UserError: If no plan is so fast.
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
            f"No smaller model is {speedup:g} times as fast here; the fastest is {table.fastest:.1f} times. Ask for "
            "less."
        )
    kept_heads = tuple(most_informative(scores.head_LH[layer], choice[2 * layer]) for layer in range(layers))
    if not any(kept_heads):
        # Without any head no token reads another; the cheapest plan has one all the same.
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
    """What a model keeps that is measured to be as fast as asked and as predicted, and the prediction.

    Where it is not, the table is calibrated by what was measured and the plan made again. If none is as fast, the
    fastest is taken; if none that is fast enough was predicted to be, the slowest of them.

    Args:
        planner: From a table and a speed-up to a plan.
        measure: The measured speed-up of a plan's model.

    Raises:
        UserError: If no plan is so fast.
    """
    trials: list[tuple[Kept, float, float]] = []
    for _ in range(_TRIALS):
        try:
            kept = planner(table, min((1 + _RESERVE) * speedup, 0.999 * table.fastest))
        except UserError:
            # By the times of the whole model it is out of reach: what came nearest says by how much.
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
    """Information that is lost with the least informative ones, by the number that stays."""
    lost_G = np.concatenate([[0.0], np.sort(score_G.numpy()).cumsum()])
    return np.array([lost_G[len(score_G) - count] for count in kept])


JUDGED = 128
"""Examples whose answers choose layers: for L layers the model passes over them L (L + 1) / 2 times."""


class Answered:
    """How far answers of smaller models are from a model's own, on a few examples without labels.

    Args:
        model: Any module that contains the whole model, of a family with an adapter.
        batches: The examples.
        context: Entered around every batch, e.g. the trainer's autocast.
    """

    def __init__(self, model: nn.Module, batches: Iterable[Batch], context: Autocast) -> None:
        self.encoder = describe(model)
        self.context = context
        device = next(self.encoder.model.parameters()).device
        self.batches = [batch.to(device) for batch in batches]
        self.answers = self._answers(self.encoder.model)

    def divergence(self, model: PreTrainedModel) -> float:
        """Mean of :func:`bertsecrets.pruning.recovery.answer_loss` over the batches."""
        losses = [answer_loss(*pair) for pair in zip(self._answers(model), self.answers, strict=True)]
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def _answers(self, model: PreTrainedModel) -> list[Tensor]:
        answers = []
        with evaluating(model):
            for batch in self.batches:
                with self.context():
                    answers.append(model(**batch.inputs()).logits.float())
        return answers


def layers_in_turn(answered: Answered, advance: Callable[[int], object] | None = None) -> list[tuple[int, ...]]:
    """Sets of no layer, one, two and so on up to all but one: each adds the layer without which answers change least.

    Layers are left out one after another and not by one ranking, for of two layers that do the same work either can go,
    but not both.

    Args:
        advance: Called with 1 after each set that was tried.
    """
    encoder = answered.encoder
    sets: list[tuple[int, ...]] = [()]
    while len(sets) < encoder.num_layers:
        changes = {}
        for layer in sorted(set(range(encoder.num_layers)) - set(sets[-1])):
            left_out = tuple(sorted((*sets[-1], layer)))
            with without_parts(encoder, [(gone, BLOCK.name) for gone in left_out]):
                changes[left_out] = answered.divergence(encoder.model)
            if advance is not None:
                advance(1)
        sets.append(min(changes, key=changes.__getitem__))
    return sets


def uniform_plan(
    answered: Answered,
    layer_sets: Sequence[tuple[int, ...]],
    scores: ComponentScores,
    table: LatencyTable,
    speedup: float,
) -> Kept:
    """What a model of this speed keeps where all its layers are alike: of each number of layers the widest, and of
    these the one whose answers are nearest to the whole model's.

    Args:
        layer_sets: The layers to leave out, from :func:`layers_in_turn`.

    Raises:
        UserError: If no plan is so fast.
    """
    plans = []
    for left_out in layer_sets:
        for width in reversed(table.widths[1:]):
            kept = _kept(scores, left_out, width)
            if table.predict(kept) <= table.whole / speedup:
                plans.append(kept)
                break
    if not plans:
        fastest = table.whole / table.predict(_kept(scores, layer_sets[-1], table.widths[1]))
        raise UserError(
            f"No model whose layers are alike is {speedup:g} times as fast here; the fastest is {fastest:.1f} times. "
            "Ask for less, or leave out shrink.shape=uniform."
        )
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda kept: answered.divergence(keep_only(answered.encoder.model, kept)))


def _kept(scores: ComponentScores, left_out: tuple[int, ...], width: int) -> Kept:
    layers, heads = scores.head_LH.shape
    return Kept(
        heads,
        tuple(() if layer in left_out else tuple(range(heads)) for layer in range(layers)),
        tuple(() if layer in left_out else most_informative(scores.neuron_LF[layer], width) for layer in range(layers)),
        left_out,
    )
