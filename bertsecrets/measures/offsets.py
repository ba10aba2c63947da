"""Attention to the previous, the same and the next token, or at any offset (Clark et al. 2019, section 3.1; methods C1,
K2).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import MaxExamples, Measure
from bertsecrets.settings import typed

MeanOver = Literal["pairs", "tokens"]

NAMES = {-1: "previous", 0: "same", 1: "next"}
"""Column names of the nearest offsets; others are called ``minus_2``, ``plus_2`` and so on."""

_UNIT = "mean weight given to the token there"
_OFFSETS = "a list of different whole numbers, e.g. [-1, 0, 1]"


def attention_at_offset(attention_BHQK: Tensor, real_BS: Tensor, offset: int, mean_over: MeanOver = "pairs") -> Tensor:
    """Mean weight from a real token to the token at an offset from it, ``[B, H]`` in 0..1.

    s = mean of A[i, i + offset] over the tokens i for which i + offset is a real token too; NaN if there is none. With
    ``mean_over="tokens"`` it is the sum over the same tokens divided by the number of all real tokens, as in the code
    of Clark et al.
    """
    size = real_BS.shape[1]
    # A short text has no such pair; a negative `last` would count from the other end.
    if abs(offset) >= size:
        return attention_BHQK.new_full(attention_BHQK.shape[:2], torch.nan if mean_over == "pairs" else 0.0)
    first, last = max(0, -offset), size - max(0, offset)
    both_BQ = real_BS[:, first:last] & real_BS[:, first + offset : last + offset]
    weight_BHQ = attention_BHQK.diagonal(offset, dim1=-2, dim2=-1) * both_BQ[:, None]
    return weight_BHQ.sum(-1) / (both_BQ if mean_over == "pairs" else real_BS).sum(-1)[:, None]


def column_name(offset: int) -> str:
    """The column of an offset.

    >>> [column_name(offset) for offset in (-2, -1, 0, 1, 3)]
    ['minus_2', 'previous', 'same', 'next', 'plus_3']
    """
    return NAMES.get(offset, f"{'minus' if offset < 0 else 'plus'}_{abs(offset)}")


def offset_label(offset: int) -> str:
    """An offset's label on pages."""
    if offset in NAMES:
        return f"{NAMES[offset]} token"
    return f"{abs(offset)} tokens {'back' if offset < 0 else 'ahead'}"


def _shown(offsets: Sequence[int]) -> Shown:
    labels = {column_name(offset): offset_label(offset) for offset in offsets}
    says = "gives {value} of its attention to the {label}"
    return Shown(each=tuple(labels), beyond=0.5, says=says, by_layer=labels)


class Offsets(Measure):
    """Attention at fixed offsets, which appears as diagonals in maps.

    In Kovaleva et al., the diagonal pattern is attention to the previous and next token, not to the token itself.

    Args:
        offsets: Positions of the attended token minus that of the attending token: -1 is the previous one.
        mean_over: Units to average over: ``pairs`` of tokens at the offset, or all ``tokens`` of the text (Clark et
            al.), which multiplies the mean of a text with L tokens by (L - |offset|) / L.

    Raises:
        UserError: If ``offsets`` is not a list of different whole numbers, or ``mean_over`` does not exist.
    """

    name = "offsets"
    title = "Attention to neighbouring tokens"
    shown = _shown(tuple(NAMES))
    tracked = ()

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        offsets: Annotated[Sequence[int], Field(min_length=1, description=_OFFSETS)] = (-1, 0, 1),
        mean_over: MeanOver = "pairs",
        max_examples: MaxExamples = None,
    ) -> None:
        if len(set(offsets)) < len(offsets):
            raise UserError(f"Offsets.offsets is {offsets!r}; expected {_OFFSETS}.")
        self.offsets, self.mean_over = tuple(offsets), mean_over
        self.columns = tuple(Column(column_name(offset), offset_label(offset), _UNIT) for offset in offsets)
        self.shown = _shown(offsets)
        super().__init__(num_layers, num_heads, max_examples)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        return torch.stack(
            [attention_at_offset(attention_BHQK, real_BS, offset, self.mean_over) for offset in self.offsets], dim=-1
        )
