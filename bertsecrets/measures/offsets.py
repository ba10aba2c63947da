"""Attention to the previous, the same and the next token (Kovaleva et al. 2019, section 4.1; METHODS K2)."""

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column
from bertsecrets.measures.base import Feed, MaxExamples, Measure

OFFSETS = {"previous": -1, "same": 0, "next": 1}
"""Column -> position of the attended token minus that of the attending token."""


def attention_at_offset(attention_BHQK: Tensor, real_BS: Tensor, offset: int) -> Tensor:
    """Mean weight that a real token gives to the token at an offset from it, ``[B, H]`` in 0..1.

    s = mean of A[i, i + offset] over the tokens i for which i + offset is a real token too; NaN if there is none.
    """
    size = real_BS.shape[1]
    first, last = max(0, -offset), size - max(0, offset)
    both_BQ = real_BS[:, first:last] & real_BS[:, first + offset : last + offset]
    weight_BHQ = attention_BHQK.diagonal(offset, dim1=-2, dim2=-1) * both_BQ[:, None]
    return weight_BHQ.sum(-1) / both_BQ.sum(-1)[:, None]


class Offsets(Measure):
    """Attention to the previous, the same and the next token, which appears as diagonals in maps.

    In the paper, the diagonal pattern is attention to the previous and next token, not to the token itself.

    Args:
        num_layers, num_heads: Size of the grid.
        max_examples: A random sample of this many examples; None for all.
    """

    name = "offsets"
    title = "Attention to neighbouring tokens"
    columns = tuple(Column(name, f"{name} token", "mean weight given to the token there") for name in OFFSETS)
    tracked = ()

    def __init__(self, num_layers: int, num_heads: int, max_examples: MaxExamples = None) -> None:
        super().__init__(num_layers, num_heads)
        self.feed = Feed(max_examples=max_examples)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        return torch.stack(
            [attention_at_offset(attention_BHQK, real_BS, offset) for offset in OFFSETS.values()], dim=-1
        )
