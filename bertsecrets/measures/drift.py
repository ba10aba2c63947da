"""Drift: how far attention has moved from a reference model's (Kovaleva et al. 2019, section 4.3)."""

from typing import Literal, get_args

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError, choices
from bertsecrets.measures.base import Feed, Measure, Need

Padding = Literal["exclude", "kovaleva"]


def cosine(attention_BHQK: Tensor, reference_BHQK: Tensor, rows_BQ: Tensor | None = None) -> Tensor:
    """Cosine similarity of two flattened maps, ``[B, H]`` in 0..1, of ``rows_BQ`` alone where given.

    0 where one of the maps is all zero.
    """
    # Row by row, so that rows are left out without a copy of the map.
    dot_BHQ = (attention_BHQK * reference_BHQK).sum(-1)
    squares_BHQ = torch.linalg.vector_norm(attention_BHQK, dim=-1).square()
    reference_squares_BHQ = torch.linalg.vector_norm(reference_BHQK, dim=-1).square()
    if rows_BQ is not None:
        weight_BHQ = rows_BQ[:, None].to(dot_BHQ.dtype)
        dot_BHQ, squares_BHQ = dot_BHQ * weight_BHQ, squares_BHQ * weight_BHQ
        reference_squares_BHQ = reference_squares_BHQ * weight_BHQ
    norms_BH = squares_BHQ.sum(-1).sqrt() * reference_squares_BHQ.sum(-1).sqrt()
    cosine_BH: Tensor = dot_BHQ.sum(-1) / norms_BH.clamp(min=torch.finfo(norms_BH.dtype).tiny)
    return cosine_BH


def jensen_shannon(attention_BHQK: Tensor, reference_BHQK: Tensor, rows_BQ: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats of two maps' rows, averaged over ``rows_BQ``: ``[B, H]`` in 0..ln 2.

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 with H the Shannon entropy.
    """
    divergence_BHQ = (_negentropy(attention_BHQK) + _negentropy(reference_BHQK)) / 2 - _negentropy(
        (attention_BHQK + reference_BHQK) / 2
    )
    weight_BQ = rows_BQ.to(divergence_BHQ.dtype)
    mean_BH = torch.einsum("bhq,bq->bh", divergence_BHQ, weight_BQ) / weight_BQ.sum(-1)[:, None]
    return mean_BH.clamp(min=0)


def _negentropy(attention_BHQK: Tensor) -> Tensor:
    return torch.xlogy(attention_BHQK, attention_BHQK).sum(-1)


class Drift(Measure):
    """Similarity and divergence of current and reference maps, whole map and classification token's row.

    Columns:
        ``cosine``: cosine similarity of the flattened maps, 1 where nothing moved.
        ``jensen_shannon``: Jensen-Shannon divergence of the rows, in nats, averaged over the rows.
        ``cls_cosine``, ``cls_jensen_shannon``: the same two for row 0 alone.

    Args:
        num_layers, num_heads: Size of the grid.
        padding: ``exclude`` leaves out rows and columns of padding. ``kovaleva`` flattens the padded map, rows of
            padding included, as the original code does (cell 31 of its notebook).
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        pad_to: With ``kovaleva``, the length to truncate and pad to; the original's is 200.

    Raises:
        UserError: If ``padding`` is neither.
    """

    name = "drift"
    columns = ("cosine", "jensen_shannon", "cls_cosine", "cls_jensen_shannon")
    needs = frozenset({Need.REFERENCE})

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        padding: Padding = "exclude",
        max_examples: int | None = None,
        pad_to: int = 200,
    ) -> None:
        if padding not in get_args(Padding):
            raise UserError(f"Unknown padding '{padding}' of the drift measure; {choices(padding, get_args(Padding))}.")
        super().__init__(num_layers, num_heads)
        self.padding = padding
        length = pad_to if padding == "kovaleva" else None
        self.feed = Feed(max_examples=max_examples, max_length=length, pad_to=length)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        assert reference_BHQK is not None
        rows_BQ = batch.attention_mask_BS.bool()
        if self.padding == "kovaleva":
            rows_BQ = torch.ones_like(rows_BQ)
        cls_BH1K, cls_reference_BH1K = attention_BHQK[:, :, :1], reference_BHQK[:, :, :1]
        return torch.stack(
            (
                cosine(attention_BHQK, reference_BHQK, rows_BQ),
                jensen_shannon(attention_BHQK, reference_BHQK, rows_BQ),
                cosine(cls_BH1K, cls_reference_BH1K),
                jensen_shannon(cls_BH1K, cls_reference_BH1K, torch.ones_like(rows_BQ[:, :1])),
            ),
            dim=-1,
        )
