"""Drift: how far attention has moved from a reference model's (Kovaleva et al. 2019, section 4.3)."""

import math
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Feed, Length, MaxExamples, Measure, Need
from bertsecrets.measures.first_heads import differs_from_first
from bertsecrets.results.figures.curves import trajectory
from bertsecrets.results.figures.grids import heatmap
from bertsecrets.results.formatting import head_label, lower_first, number, with_error
from bertsecrets.results.ranking import picked, ties_in_words
from bertsecrets.results.report.content import FigureBlock, HeadLine, Highlights, Section, Table
from bertsecrets.results.views import MeasureView
from bertsecrets.settings import typed

_LISTED, _OUTLINED = 10, 5
_TITLE = "How each head's attention changed"
_COSINE, _DIVERGENCE = "cosine similarity (1: unchanged)", "divergence in nats (0: unchanged)"

_WITH, _BEFORE = "cosine similarity with the maps ", "before fine-tuning"

FIRST = "p_cosine_first"
"""Column of the p-values of heads equalling the most changed one."""

_ROUNDING = 3e-7
"""Largest 1 − cosine of two maps that differ by float32 rounding only."""

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
    # Rounding may carry the cosine of two equal maps above 1.
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


class Drift(Measure):
    """Similarity and divergence of current and reference maps: of whole maps, and of the classification token's row.

    Columns:
        ``cosine``: cosine similarity of the flattened maps, 1 if nothing changed.
        ``jensen_shannon``: Jensen-Shannon divergence of the rows, in nats, averaged over the rows.
        ``cls_cosine``, ``cls_jensen_shannon``: the same two for row 0 only.
        ``p_cosine_first``: p-value of a head's mean cosine equalling that of the head with the lowest one, paired over
            examples and corrected over heads (:func:`~bertsecrets.measures.first_heads.differs_from_first`).

    Args:
        padding: ``exclude`` leaves out rows and columns of padding. ``kovaleva`` flattens the padded map, rows of
            padding included, as the original code does (cell 31 of its notebook).
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        pad_to: With ``kovaleva``, the length to truncate and pad to; the original's is 200.

    Raises:
        UserError: If ``padding`` is neither of the two.
    """

    name = "drift"
    title = "Drift of attention"
    reads_task = True
    # One scale for all runs, to compare reports; the divergence is at most ln 2 nats.
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
        Column(FIRST, "p, same cosine as the head with the lowest", "p-value", (0.0, 1.0), role="p_value"),
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

    def update(self, layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None = None) -> None:
        """Add one layer's maps of one batch, and after the last layer the products of all heads' numbers."""
        super().update(layer, attention_BHQK, batch, reference_BHQK)
        if layer == 0:
            self._distances = batch, []
        # A caller may feed single layers; products need all of them.
        if self._distances is None or self._distances[0] is not batch:
            return
        layers = self._distances[1]
        assert self.added is not None
        assert self.added.values_BHC is not None
        # 1 − cosine: differences of numbers near 0 keep more digits than those of numbers near 1.
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

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Drift by head, by layer and during training; None without cosine similarities."""
        if not view.has("cosine"):
            return None
        value_LH, stderr_LH, count_LH = view.grid("cosine")
        order = np.argsort(value_LH, axis=None, kind="stable")
        heads = [divmod(int(head), value_LH.shape[1]) for head in order]
        changed = [head for head in heads if np.isfinite(value_LH[head])][:_LISTED]
        if not changed:
            return Section(
                _TITLE,
                [
                    f"No head's change can be told: its cosine similarity is undefined (NaN) for all {value_LH.size} heads."
                ],
                ["The maps of one of the two models are not numbers, or no example was compared."],
            )
        columns = [column for column in view.columns if column.role != "p_value" and view.has(column.name)]
        moved = bool(np.nanmin(value_LH) < 1 - _ROUNDING)
        other = _other(view)
        lines = [
            HeadLine(head[0], head[1], "cosine", float(value_LH[head]), float(stderr_LH[head])) for head in changed
        ]
        outlined = changed[:_OUTLINED] if moved else []
        how = (
            f"Each number compares a head's attention maps with the same head's {other}, on the same examples, "
            "averaged over examples; padding is left out unless the run says otherwise (Kovaleva et al. 2019, "
            "section 4.3)."
        )
        if outlined:
            which = "The head is" if len(outlined) == 1 else f"The {len(outlined)} most changed heads are"
            how += f" {which} outlined, and named in the chart over steps."
        return Section(
            _TITLE,
            _findings(view, value_LH, stderr_LH, count_LH, changed, other)
            if moved
            else [_unmoved(value_LH, count_LH, other)],
            [how],
            [*([_heads_table(lines)] if moved else []), _layers_table(value_LH)],
            [*(_heatmap(view, column, outlined) for column in columns), *_through_training(view, outlined)],
            highlights=Highlights("Heads that changed most", lines) if moved else None,
        )


def _other(view: MeasureView) -> str:
    """Whose maps those of a run are compared with: ``before fine-tuning``, or those of a model."""
    return view.column("cosine").label.removeprefix(_WITH)


def _unmoved(value_LH: NDArray[np.float64], count_LH: NDArray[np.int64], other: str) -> str:
    defined = int(np.isfinite(value_LH).sum())
    heads = f"None of {defined} heads has changed its" if defined > 1 else "The only head has not changed its"
    return f"{heads} attention beyond rounding on {_examples(count_LH)}: cosine 1 with the maps {other}."


def _examples(count_LH: NDArray[np.int64]) -> str:
    count = int(count_LH.max())
    return f"{count:,} example{'s' * (count != 1)}"


def _findings(
    view: MeasureView,
    value_LH: NDArray[np.float64],
    stderr_LH: NDArray[np.float64],
    count_LH: NDArray[np.int64],
    changed: list[tuple[int, int]],
    other: str,
) -> list[str]:
    top = changed[0]
    cosine = f"cosine {picked(top, value_LH, stderr_LH, count_LH, bounds=(0.0, 1.0))} over {_examples(count_LH)}"
    if value_LH.size == 1:
        return [f"The only head, {head_label(*top)}, has a {cosine} with its maps {other}."]
    defined = [layer for layer, value_H in enumerate(value_LH) if np.isfinite(value_H).any()]
    mean_L = {layer: float(np.nanmean(value_LH[layer])) for layer in defined}
    most, least = min(defined, key=lambda layer: mean_L[layer]), max(defined, key=lambda layer: mean_L[layer])
    layers = (
        f"The mean cosine with the maps {other} is lowest, that is attention changed most, in layer {most} "
        f"({number(mean_L[most])}), and highest in layer {least} ({number(mean_L[least])})."
        if number(mean_L[most]) != number(mean_L[least])
        else f"All {len(defined)} layers have the same mean cosine with the maps {other}, {number(mean_L[most])}."
        if len(defined) > 1
        else ""
    )
    heads = f"The head that changed most is {head_label(*top)}: {cosine}. {_like_the_first(view, value_LH)}".strip()
    return [*([layers] if layers else []), heads]


def _like_the_first(view: MeasureView, value_LH: NDArray[np.float64]) -> str:
    """The heads that cannot be told from the first, by the paired test; nothing for a run of an earlier version."""
    if not view.has(FIRST):
        return ""
    p_LH, _, count_LH = view.grid(FIRST)
    ahead = "It changed significantly more than every other head"
    return ties_in_words(-value_LH, p_LH, count_LH, tests="paired t tests", ahead=ahead)


def _heatmap(view: MeasureView, column: Column, outlined: list[tuple[int, int]]) -> FigureBlock:
    value_LH, stderr_LH, count_LH = view.grid(column.name)
    figure = partial(
        heatmap,
        value_LH,
        title=f"{view.title}: {column.label}",
        unit=column.unit,
        count=count_LH,
        stderr_LH=stderr_LH,
        limits=column.limits,
        marked=outlined if column.name == "cosine" else None,
    )
    caption = f"{view.title}: {column.label}, step {view.step}."
    alt = f"Heatmap by layer and head: {lower_first(column.label)}."
    return FigureBlock(f"{view.name}_{column.name}", figure, caption, alt)


def _through_training(view: MeasureView, named: list[tuple[int, int]]) -> list[FigureBlock]:
    history = [(step, value_LH) for step, value_LH in view.history("cosine") if step > 0]
    if not history:
        return []
    # Before the first step the model is its own reference: every cosine is 1.
    start_LH = np.where(np.isfinite(history[0][1]), 1.0, np.nan)
    steps, values = zip((0, start_LH), *history, strict=True)
    figure = partial(
        trajectory,
        steps,
        np.stack(values),
        title="Drift during training",
        unit=_COSINE,
        count=view.grid("cosine")[2],
        named=named,
    )
    caption = (
        "Cosine similarity with the maps before fine-tuning, from step 0 (1 by definition) over every validation; named: the "
        "heads of the list."
    )
    return [
        FigureBlock(f"{view.name}_trajectory", figure, caption, "Line chart of drift by layer and head over steps.")
    ]


def _heads_table(lines: list[HeadLine]) -> Table:
    rows = [[head_label(line.layer, line.head), with_error(line.value, line.stderr)] for line in lines]
    return Table(["head", "cosine ± standard error"], rows, "The heads that changed most")


def _layers_table(value_LH: NDArray[np.float64]) -> Table:
    rows = [
        [str(layer), *(number(float(summary(value_H))) for summary in (np.nanmean, np.nanmin, np.nanmax))]
        for layer, value_H in enumerate(value_LH)
        if np.isfinite(value_H).any()
    ]
    return Table(["layer", "mean cosine over heads", "lowest head", "highest head"], rows, "By layer", folded=True)
