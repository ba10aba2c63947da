"""Drift: how far attention has moved from a reference model's (Kovaleva et al. 2019, section 4.3)."""

import math
from dataclasses import replace
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import Feed, Length, MaxExamples, Measure, Need, Passed
from bertsecrets.settings import typed
from bertsecrets.statistics.corrections import holm

_COSINE, _DIVERGENCE = "cosine similarity (1: unchanged)", "divergence in nats (0: unchanged)"

_WITH, _BEFORE = "cosine similarity with the maps ", "before fine-tuning"

FIRST = "p_cosine_first"
"""Column of p-values for a head having changed as much as the most changed head."""


Padding = Literal["exclude", "kovaleva"]


def cosine(attention_BHQK: Tensor, reference_BHQK: Tensor, rows_BQ: Tensor | None = None) -> Tensor:
    """Cosine similarity of two flattened maps, ``[B, H]`` in 0..1, optionally of ``rows_BQ`` only.

    0 if one of the maps is all zero.
    """
    # Row by row: rows can be left out without copying the map.
    dot_BHQ = (attention_BHQK * reference_BHQK).sum(-1)
    squares_BHQ = torch.linalg.vector_norm(attention_BHQK, dim=-1).square()
    reference_squares_BHQ = torch.linalg.vector_norm(reference_BHQK, dim=-1).square()
    if rows_BQ is not None:
        weight_BHQ = rows_BQ[:, None].to(dot_BHQ.dtype)
        dot_BHQ, squares_BHQ = dot_BHQ * weight_BHQ, squares_BHQ * weight_BHQ
        reference_squares_BHQ = reference_squares_BHQ * weight_BHQ
    norms_BH = squares_BHQ.sum(-1).sqrt() * reference_squares_BHQ.sum(-1).sqrt()
    cosine_BH: Tensor = dot_BHQ.sum(-1) / norms_BH.clamp(min=torch.finfo(norms_BH.dtype).tiny)
    # Rounding may push the cosine of two equal maps above 1.
    return cosine_BH.clamp(max=1)


def jensen_shannon(attention_BHQK: Tensor, reference_BHQK: Tensor, rows_BQ: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats of two maps' rows, averaged over ``rows_BQ``: ``[B, H]`` in 0..ln 2.

    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 with H the Shannon entropy.
    """
    divergence_BHQ = (_negentropy(attention_BHQK) + _negentropy(reference_BHQK)) / 2 - _negentropy(
        (attention_BHQK + reference_BHQK) / 2
    )
    weight_BQ = rows_BQ.to(divergence_BHQ.dtype)
    mean_BH = torch.einsum("bhq,bq->bh", divergence_BHQ, weight_BQ) / weight_BQ.sum(-1)[:, None]
    # A difference of entropies: rounding leaves equal maps slightly off 0.
    return mean_BH.clamp(min=0)


def _negentropy(attention_BHQK: Tensor) -> Tensor:
    return torch.xlogy(attention_BHQK, attention_BHQK).sum(-1)


def differs_from_first(total_N: Tensor, products_NN: Tensor, count: int) -> Tensor:
    """P-values for each head's mean being equal to the first head's, paired over examples, float64 ``[N]``.

    Two-sided paired t tests of the head with the highest mean against every other, adjusted by Holm's method
    over the others. 1 for the first head itself; NaN with fewer than two examples.

    Args:
        total_N: Sum of each head's numbers over the examples.
        products_NN: Sum of the products of two heads' numbers over the examples.
        count: Number of examples.
    """
    p_N = torch.full_like(total_N, torch.nan)
    if count < 2 or not len(total_N):
        return p_N
    first = int(total_N.argmax())
    difference_N = (total_N - total_N[first]) / count
    # The squared difference comes from sums of products, so no numbers of single examples are kept.
    squares_N = products_NN.diagonal() + products_NN[first, first] - 2 * products_NN[first]
    variance_N = (squares_N / count - difference_N.square()).clamp(min=0) * count / (count - 1)
    # Absorb rounding of sums of squares: two heads with the same numbers do not differ.
    rounding = 1e-14 * products_NN.diagonal().abs().max().clamp(min=1) / count
    variance_N = torch.where(variance_N <= rounding, 0.0, variance_N)
    t_N = difference_N.abs() / (variance_N / count).sqrt()
    t_N = torch.where(difference_N.square() <= rounding, 0.0, t_N)
    others = [index for index in range(len(total_N)) if index != first]
    p_N[first] = 1.0
    if others:
        raw = 2 * stats.t.sf(t_N[others].numpy(), count - 1)
        p_N[others] = torch.from_numpy(holm(raw))
    return p_N


class Drift(Measure):
    """Similarity and divergence of current and reference maps, for whole maps and for the classification token's row.

    Columns:
        ``cosine``: cosine similarity of the flattened maps, 1 if nothing changed.
        ``jensen_shannon``: Jensen-Shannon divergence of the rows, in nats, averaged over the rows.
        ``cls_cosine``, ``cls_jensen_shannon``: the same two for row 0 only.
        ``p_cosine_first``: p-value for a head's mean cosine being equal to the lowest one, paired over examples and
            corrected over heads (:func:`differs_from_first`).

    Args:
        padding: ``exclude`` ignores rows and columns of padding. ``kovaleva`` flattens the padded map, including
            padding rows, like the original code (cell 31 of its notebook).
        max_examples: Size of a random sample of examples; None for all. The paper uses 1000.
        pad_to: With ``kovaleva``, the length to truncate and pad to; 200 in the original.

    Raises:
        UserError: If ``padding`` is not valid.
    """

    name = "drift"
    title = "Drift of attention"
    # The same scale for all runs, so that reports are comparable; the divergence is at most ln 2 nats.
    columns: tuple[Column, ...] = (
        Column("cosine", f"{_WITH}{_BEFORE}", _COSINE, (0.0, 1.0)),
        Column(
            "jensen_shannon",
            f"Jensen-Shannon divergence from the maps {_BEFORE}",
            _DIVERGENCE,
            (0.0, math.log(2)),
        ),
        Column("cls_cosine", "cosine similarity, classification token's row only", _COSINE, (0.0, 1.0)),
        Column(
            "cls_jensen_shannon",
            "Jensen-Shannon divergence, classification token's row only",
            _DIVERGENCE,
            (0.0, math.log(2)),
        ),
        Column(FIRST, "p, equal to the lowest cosine", "p-value", (0.0, 1.0), role="p_value"),
    )
    shown = Shown(
        about="Each number compares a head's maps with the other model's on the same examples, averaged over examples; "
        "padding is ignored by default (Kovaleva et al. 2019, section 4.3).",
        lowest=True,
        verb="changed most",
        first=FIRST,
        unchanged=1.0,
        history=("cosine",),
        start=1.0,
        reads_task=True,
    )
    needs = frozenset({Need.REFERENCE})
    tracked = ("cosine", "jensen_shannon")

    paired_total_N: Tensor
    products_NN: Tensor
    paired_count: Tensor

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        padding: Padding = "exclude",
        max_examples: MaxExamples = None,
        pad_to: Length = 200,
    ) -> None:
        super().__init__(num_layers, num_heads)
        self.padding = padding
        length = pad_to if padding == "kovaleva" else None
        self.feed = Feed(max_examples=max_examples, max_length=length, pad_to=length)
        heads = num_layers * num_heads
        self.add_state("paired_total_N", torch.zeros(heads, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("products_NN", torch.zeros(heads, heads, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("paired_count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        # Distances of one batch by layer, until all layers are known.
        self._distances: tuple[Batch, list[Tensor]] | None = None

    def compares_with(self, name: str) -> None:
        self.columns = tuple(
            replace(column, label=column.label.replace(_BEFORE, f"of the model '{name}'")) for column in self.columns
        )

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        assert reference_BHQK is not None
        rows_BQ = batch.attention_mask_BS.bool()
        # [CLS] is not at 0 with padding on the left.
        first_B = rows_BQ.long().argmax(-1)
        example_B = torch.arange(len(first_B), device=first_B.device)
        cls_BH1K, cls_reference_BH1K = (
            maps_BHQK[example_B, :, first_B][:, :, None] for maps_BHQK in (attention_BHQK, reference_BHQK)
        )
        if self.padding == "kovaleva":
            rows_BQ = torch.ones_like(rows_BQ)
        return torch.stack(
            (
                cosine(attention_BHQK, reference_BHQK, rows_BQ),
                jensen_shannon(attention_BHQK, reference_BHQK, rows_BQ),
                cosine(cls_BH1K, cls_reference_BH1K),
                jensen_shannon(cls_BH1K, cls_reference_BH1K, torch.ones_like(rows_BQ[:, :1])),
            ),
            dim=-1,
        )

    def update(self, passed: Passed) -> None:
        """Add one layer's maps of one batch, and after the last layer the products of all heads' numbers."""
        super().update(passed)
        batch = passed.batch
        if passed.layer == 0:
            self._distances = batch, []
        # A caller may feed single layers, but products need all layers.
        if self._distances is None or self._distances[0] is not batch:
            return
        layers = self._distances[1]
        assert self.added is not None
        assert self.added.values_BHC is not None
        # Use 1 − cosine, because differences of numbers near 0 are more precise than near 1.
        layers.append(1 - self.added.values_BHC[..., 0].to(self.products_NN.device).double())
        if len(layers) == len(self.total_LHC):
            distance_BN = torch.cat(layers, dim=1)
            distance_BN = distance_BN[distance_BN.isfinite().all(1)]
            self.paired_total_N += distance_BN.sum(0)
            self.products_NN += distance_BN.T @ distance_BN
            self.paired_count += len(distance_BN)
            self._distances = None

    def compute(self) -> HeadGrid:
        """Means, standard errors and counts, reduced over all processes, and the p-values against the first head."""
        grid = super().compute()
        count = self.paired_count.cpu()
        p_N = differs_from_first(self.paired_total_N.cpu(), self.products_NN.cpu(), int(count))
        return self.with_p_values(grid, p_N.reshape(*grid.value_LHC.shape[:2], 1), count)
