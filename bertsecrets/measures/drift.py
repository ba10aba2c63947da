"""Drift: how far attention has moved from a reference model's (Kovaleva et al. 2019, section 4.3)."""

import math
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import Column
from bertsecrets.measures.base import Feed, Length, MaxExamples, Measure, Need
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.figures.trajectory import trajectory
from bertsecrets.results.formatting import head_label, lower_first, number, with_error
from bertsecrets.results.report.content import FigureBlock, HeadLine, Highlights, Section, Table
from bertsecrets.results.views import MeasureView

_LISTED, _OUTLINED = 10, 5
_COSINE, _DIVERGENCE = "cosine similarity (1: unchanged)", "divergence in nats (0: unchanged)"

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
    """Similarity and divergence of current and reference maps: of whole maps, and of the classification token's row.

    Columns:
        ``cosine``: cosine similarity of the flattened maps, 1 if nothing changed.
        ``jensen_shannon``: Jensen-Shannon divergence of the rows, in nats, averaged over the rows.
        ``cls_cosine``, ``cls_jensen_shannon``: the same two for row 0 only.

    Args:
        num_layers, num_heads: Size of the grid.
        padding: ``exclude`` leaves out rows and columns of padding. ``kovaleva`` flattens the padded map, rows of
            padding included, as the original code does (cell 31 of its notebook).
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        pad_to: With ``kovaleva``, the length to truncate and pad to; the original's is 200.

    Raises:
        UserError: If ``padding`` is neither of the two.
    """

    name = "drift"
    title = "Drift of attention"
    # One scale for all runs, to compare reports; the divergence is at most ln 2 nats.
    columns = (
        Column("cosine", "cosine similarity with the maps before fine-tuning", _COSINE, (0.0, 1.0)),
        Column(
            "jensen_shannon",
            "Jensen-Shannon divergence from the maps before fine-tuning",
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
    )
    needs = frozenset({Need.REFERENCE})
    tracked = ("cosine", "jensen_shannon")

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        padding: Padding = "exclude",
        max_examples: MaxExamples = None,
        pad_to: Length = 200,
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

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Drift by head, by layer and during training; None without cosine similarities."""
        if not view.has("cosine"):
            return None
        value_LH, stderr_LH, _ = view.grid("cosine")
        order = np.argsort(value_LH, axis=None, kind="stable")
        places = [divmod(int(place), value_LH.shape[1]) for place in order]
        changed = [place for place in places if np.isfinite(value_LH[place])][:_LISTED]
        lines = [
            HeadLine(place[0], place[1], "cosine", float(value_LH[place]), float(stderr_LH[place])) for place in changed
        ]
        blocks = [_heatmap(view, column, changed[:_OUTLINED]) for column in view.columns if view.has(column.name)]
        return Section(
            "How each head's attention changed",
            _findings(value_LH, stderr_LH, changed),
            [
                "Each number compares a head's attention maps with the same head's before fine-tuning, on the same examples, "
                "averaged over examples; padding is left out unless the run says otherwise (Kovaleva et al. 2019, "
                "section 4.3). The five most changed heads are outlined."
            ],
            [_heads_table(lines), _layers_table(value_LH)],
            [*blocks, *_through_training(view)],
            highlights=Highlights("Heads that changed most", lines),
        )


def _findings(
    value_LH: NDArray[np.float64], stderr_LH: NDArray[np.float64], changed: list[tuple[int, int]]
) -> list[str]:
    mean_L = np.nanmean(value_LH, axis=1)
    most, least = int(np.nanargmin(mean_L)), int(np.nanargmax(mean_L))
    top = changed[0]
    return [
        f"Attention changed most in layer {most} (mean cosine {number(mean_L[most])} with the maps before fine-tuning) and "
        f"least in layer {least} ({number(mean_L[least])}).",
        f"The head that changed most is {head_label(*top)}: cosine {with_error(value_LH[top], stderr_LH[top])}.",
    ]


def _heatmap(view: MeasureView, column: Column, outlined: list[tuple[int, int]]) -> FigureBlock:
    value_LH, stderr_LH, count_LH = view.grid(column.name)
    figure = heatmap(
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


def _through_training(view: MeasureView) -> list[FigureBlock]:
    history = view.history("cosine")
    if len(history) < 2:
        return []
    figure = trajectory(
        [step for step, _ in history],
        np.stack([value_LH for _, value_LH in history]),
        title="Drift during training",
        unit=_COSINE,
        count=view.grid("cosine")[2],
    )
    caption = "Cosine similarity with the maps before fine-tuning, at every validation."
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
    ]
    return Table(["layer", "mean cosine over heads", "lowest head", "highest head"], rows, "By layer")
