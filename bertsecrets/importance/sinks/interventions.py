"""Intervention on sink heads: the effect of redirecting their attention away from a special token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.grid import Column
from bertsecrets.measures.base import Measure, Passed

REDIRECT, CUT, LOSS, FLIPS = "_redirect", "_cut", "_redirect_loss", "_redirect_flips"

_EFFECT = "mean change of the prediction"


@dataclass(frozen=True)
class Sink:
    """A head that gives a special token much of its attention.

    Args:
        layer, head: The head.
        token: Name of the token, in :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`.
    """

    layer: int
    head: int
    token: str


class SinkEffects(Measure):
    """Changes of the predictions when a sink head's attention to its token is redirected or cut.

    A prediction's change is the total variation distance between the predicted probabilities; for scores, the absolute
    change divided by the width of their range.

    Columns, for each special token; heads that are not sinks of it have no number:
        ``<token>_redirect``: change of the prediction when the attention is redirected proportionally to all other
            tokens.
        ``<token>_redirect_loss``: the resulting change of the loss.
        ``<token>_redirect_flips``: share of examples with a changed predicted class; none for scores.
        ``<token>_cut``: change of the prediction when only the attention to the token is set to zero, which removes the
            token's value.

    Args:
        ids: Name and id of each special token.
        sinks: The sink heads.
        width: Width of the range of a regression task's scores; None for classes.
    """

    name = "sink_effects"
    title = "Effects of sinks"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        ids: Mapping[str, int],
        sinks: Sequence[Sink],
        width: float | None = None,
    ) -> None:
        self.columns = tuple(column for name in ids for column in effect_columns(name))
        super().__init__(num_layers, num_heads)
        self.ids = dict(ids)
        self.sinks = tuple(sinks)
        self.width = width

    @torch.no_grad()
    def take(self, model: nn.Module, batch: Batch) -> None:
        """Add one batch: a pass of the whole model, and two for each sink. The model is in evaluation mode."""
        names = list(self.ids)
        has_BT = torch.stack([(batch.input_ids_BS == token).any(-1) for token in self.ids.values()], -1)
        clean_BC = model(**batch.inputs()).logits
        assert batch.label_B is not None
        _, num_heads, columns = self.total_LHC.shape
        # Sums are added per layer, and several sinks may share a layer.
        by_layer: dict[int, Tensor] = {}
        for sink in self.sinks:
            token_index = names.index(sink.token)
            redirected_BC, cut_BC = (self._turned(model, batch, sink, mode) for mode in ("redirect", "cut"))
            numbers_BC = torch.stack(
                (
                    self.change(clean_BC, redirected_BC),
                    batch.losses(redirected_BC) - batch.losses(clean_BC),
                    self._flips(clean_BC, redirected_BC),
                    self.change(clean_BC, cut_BC),
                ),
                -1,
            ).masked_fill(~has_BT[:, token_index, None], torch.nan)
            if sink.layer not in by_layer:
                by_layer[sink.layer] = numbers_BC.new_full((batch.size, num_heads, columns), torch.nan)
            first = token_index * numbers_BC.shape[-1]
            by_layer[sink.layer][:, sink.head, first : first + numbers_BC.shape[-1]] = numbers_BC
        for layer, values_BHC in by_layer.items():
            self.update(Passed(layer, batch, values_BHC=values_BHC))

    def _turned(self, model: nn.Module, batch: Batch, sink: Sink, mode: str) -> Tensor:
        edit = HeadEdit(sink.layer, sink.head, mode)
        with override(model, [edit], away_from=[self.ids[sink.token]]):
            logits_BC: Tensor = model(**batch.inputs()).logits
        return logits_BC

    def change(self, before_BC: Tensor, after_BC: Tensor) -> Tensor:
        """The change of each example's prediction, ``[B]`` in 0..1 (scores may leave their range)."""
        if self.width is not None:
            return (after_BC - before_BC)[:, 0].abs().float() / self.width
        before_BC, after_BC = (logits_BC.float().softmax(-1) for logits_BC in (before_BC, after_BC))
        return (after_BC - before_BC).abs().sum(-1) / 2

    def _flips(self, before_BC: Tensor, after_BC: Tensor) -> Tensor:
        if self.width is not None:
            return torch.full_like(before_BC[:, 0], torch.nan, dtype=torch.float32)
        return (before_BC.argmax(-1) != after_BC.argmax(-1)).float()


def effect_columns(name: str) -> tuple[Column, ...]:
    """The columns of one special token."""
    label = SPECIAL_TOKENS[name]
    return (
        Column(name + REDIRECT, f"{label} redirected: change of the prediction", _EFFECT),
        Column(name + LOSS, f"{label} redirected: change of the loss", "loss"),
        Column(name + FLIPS, f"{label} redirected: changed predicted class", "share of examples", (0.0, 1.0)),
        Column(name + CUT, f"{label} cut: change of the prediction", _EFFECT),
    )
