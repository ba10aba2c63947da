"""Uniform cuts: whole layers left out and feed-forward parts of one width, which a configuration of the library can describe."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.attention.parts import without_parts
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe, evaluating
from bertsecrets.pruning.component_scores import ComponentScores, most_informative
from bertsecrets.pruning.latency_table import LatencyTable
from bertsecrets.pruning.recovery import answer_loss
from bertsecrets.pruning.removal import Kept, keep_only
from bertsecrets.pruning.sets import Context
from bertsecrets.results.components import BLOCK

JUDGED = 128
"""Examples whose answers choose layers: for L layers the model passes over them L (L + 1) / 2 times."""


class Answered:
    """How far answers of smaller models are from a model's own, on a few examples without labels.

    Args:
        model: Any module that contains the whole model, of a family with an adapter.
        batches: The examples.
        context: Entered around every batch, e.g. the trainer's autocast.
    """

    def __init__(self, model: nn.Module, batches: Iterable[Batch], context: Context) -> None:
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

    Layers are left out one after another and not by one ranking, for of two layers that do the same work either can go, but not both.

    Args:
        answered: The model and its answers.
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
    """What a model of this speed keeps where all its layers are alike: of each number of layers the widest, and of these the one whose
    answers are nearest to the whole model's.

    Args:
        answered: The whole model and its answers.
        layer_sets: The layers to leave out, from :func:`layers_in_turn`.
        scores: Of each layer's neurons the most informative stay.
        table: Measured times.
        speedup: How many times as fast.

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
            f"No model whose layers are alike is {speedup:g} times as fast here; the fastest is {fastest:.1f} times. Ask for less, or "
            "leave out shrink.shape=uniform."
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
