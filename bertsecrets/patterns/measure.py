"""Share of each attention pattern per head (Kovaleva et al. 2019, section 4.1 and Figure 2; methods K2), and its section."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy import stats
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import MaxExamples, Measure
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import MIN_LENGTH, SHIPPED, load_classifier
from bertsecrets.patterns.figures import (
    ShareBar,
    dominant_patterns,
    pattern_bars,
    pattern_grid,
    pattern_steps,
    pattern_transitions,
)
from bertsecrets.patterns.segments import first_segments
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import grid_comparison
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import MISSING, head_label, number
from bertsecrets.results.run import INITIAL, TRAINING
from bertsecrets.results.views import Comparison, MeasureView
from bertsecrets.settings import typed

Array = NDArray[np.float64]

UNCERTAIN = "uncertain"
"""The column of the maps for which the classifier names no pattern: the two most probable ones are too close."""

LIMITS = (
    "bars at the end of a share: 95% intervals of the mean over heads, at their widest (as if all heads' errors went the "
    "same way)"
)
_SHARE_OF_MAPS = "share of attention maps"

NAMED = "patterns named by a classifier that learned from language models' labels, 77 to 87 % right on models it had not met"
"""The end of the notes under figures of shares."""

ANNOTATED = (
    "A convolutional classifier assigns each map of each head to one of the five patterns of Kovaleva et al. 2019 (section "
    "4.1), or to none where two are about as probable. It learned from generated maps and from maps that language models, not "
    "people, had labelled. On maps of three models, each left out of training in turn, 87, 83 and 77 % of its answers agreed "
    "with such labels (docs/patterns.md): expect one map in eight to one in four to be named wrongly."
)
"""What the names of patterns are worth."""


def _main_patterns(view: MeasureView) -> list[list[str]]:
    """The pattern ``[layers][heads]`` that at least half of a head's maps show; a dash where none does."""
    names = [column.name for column in view.columns]
    share_LHC, _, _ = _grids(view, names)
    labels = [*(name.replace("_", " + ") for name in names), MISSING]
    return [[labels[index] for index in row] for row in dominant_patterns(share_LHC, names)]


def over_heads(share_LHC: Array, error_LHC: Array) -> tuple[Array, Array]:
    """Mean share over heads and the half-width of its 95% interval, ``[patterns]``.

    All heads see the same examples, and the table does not hold the correlation of their errors; the mean of their
    standard errors is the most that the standard error of the mean can be.
    """
    share_C: Array = np.nanmean(share_LHC, axis=(0, 1))
    reach_C: Array = 1.96 * np.nanmean(error_LHC, axis=(0, 1))
    return share_C, reach_C


def _grids(view: MeasureView, names: Sequence[str]) -> tuple[Array, Array, NDArray[np.int64]]:
    grids = [view.grid(name) for name in names]
    share_LHC: Array = np.stack([share_LH for share_LH, _, _ in grids], axis=-1)
    error_LHC: Array = np.stack([error_LH for _, error_LH, _ in grids], axis=-1)
    return share_LHC, error_LHC, grids[0][2]


def _finding(share_LHC: Array, share_C: Array, names: Sequence[str]) -> str:
    most = int(share_C.argmax())
    main_LH = dominant_patterns(share_LHC, names)
    counts = {
        name.replace("_", " + "): int((main_LH == index).sum())
        for index, name in enumerate(names)
        if name != UNCERTAIN and (main_LH == index).any()
    }
    listing = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    return (
        f"By the classifier's names, the most frequent pattern of maps is {names[most].replace('_', ' + ')} "
        f"({share_C[most]:.0%}); of {main_LH.size} heads {(main_LH >= 0).sum()} show one pattern in at least half of their "
        f"maps{f': {listing}' if listing else ''}."
    )


def _moments(view: MeasureView, column: str) -> list[MeasureView]:
    """The model before its fine-tuning, where that was measured, and at every step of its training up to now."""
    before = view.at(INITIAL)
    steps = view.rows.steps(view.name, column, TRAINING)
    training = [view.at(TRAINING, step) for step in steps if view.step is not None and step < view.step]
    return [moment for moment in (before, *training, view) if moment is not None]


def _movement(names: Sequence[str], moments: Sequence[MeasureView], note: str) -> tuple[list[FigureBlock], str]:
    grids = [_grids(moment, names) for moment in moments]
    steps = [moment.step or 0 for moment in moments]
    share_SC, reach_SC = (np.stack(values) for values in zip(*(over_heads(*grid[:2]) for grid in grids), strict=True))
    blocks = []
    if len(steps) > 2:
        lines = pattern_steps(
            steps,
            share_SC,
            reach_SC,
            names,
            title="Patterns during training",
            note=f"{note}; bands: 95% intervals at their widest",
        )
        blocks.append(
            FigureBlock("patterns_steps", lines, "Shares over all heads, step by step.", "Line chart of shares.")
        )
    before_LH, after_LH = (dominant_patterns(grid[0], names) for grid in (grids[0], grids[-1]))
    start = "before fine-tuning" if moments[0].stage == INITIAL else f"at step {steps[0]}"
    table = pattern_transitions(
        before_LH,
        after_LH,
        [name for name in names if name != UNCERTAIN],
        title=f"Heads by pattern, {start} and at step {steps[-1]}",
        note=f"a head's pattern is the one that at least half of its maps show; {note}",
    )
    caption = "How many heads kept their pattern and how many changed it."
    blocks.append(FigureBlock("patterns_transitions", table, caption, "Table."))
    change_C = share_SC[-1] - share_SC[0]
    most = int(np.abs(change_C).argmax())
    named_LH = (before_LH >= 0) & (after_LH >= 0)
    moved = int(((before_LH != after_LH) & named_LH).sum())
    return blocks, (
        f"Compared with the model {start}, {moved} of the {int(named_LH.sum())} heads that show a pattern both times "
        f"changed it; the share that moved most is {names[most].replace('_', ' + ')}, by {number(100 * change_C[most], 1, signed=True)} "
        "percentage points."
    )


def _highest(share_LH: Array) -> str:
    layer, head = np.unravel_index(np.nanargmax(share_LH), share_LH.shape)
    share = share_LH[layer, head]
    return f"{head_label(int(layer), int(head))} ({share:.0%})" if share > 0 else "–"


def _compared(comparison: Comparison) -> Section | None:
    """Shares of the patterns over all heads, condition by condition; None where no run measured them."""
    bars, counts, replicates = [], [], []
    names = [column.name for column in next(iter(comparison.replicates.values())).columns]
    for label, runs in comparison.replicates.items():
        grids = [grid for name in names if (grid := runs.grids(name)) is not None]
        if len(grids) == len(names):
            share_RLHC = np.stack([grid.value_RLH for grid in grids], axis=-1)
            error_RLHC = np.stack([grid.stderr_RLH for grid in grids], axis=-1)
            bars.append(ShareBar(label, *over_seeds(share_RLHC, error_RLHC)))
            counts.append(grids[0].count)
            replicates.append(len(share_RLHC))
    if not bars:
        return None
    over = (
        "over seeds (Student's t)" if min(replicates) > 1 else "over seeds where there are several, else over examples"
    )
    figure = pattern_bars(
        bars,
        names,
        title="Attention patterns, over all heads",
        note=f"{NAMED}; {sample_size(counts)} for each; bars at the end of a share: 95% intervals {over}",
        unit=_SHARE_OF_MAPS,
    )
    heterogeneous, block = names.index("heterogeneous"), names.index("block")
    free_R = np.array([bar.share_C[heterogeneous] + bar.share_C[block] for bar in bars])
    most, least = int(np.argmax(free_R)), int(np.argmin(free_R))
    finding = (
        "Heterogeneous and block maps, of which Kovaleva et al. say that they could be informative, are "
        f"{free_R[most]:.0%} of the maps"
        + (f" of {bars[most].name} and {free_R[least]:.0%} of those of {bars[least].name}" if len(bars) > 1 else "")
        + "; theirs are 32% (MRPC) to 61% (QQP)."
    )
    rows = [
        [
            bar.name,
            *(f"{share:.1%} ± {reach:.1%}" for share, reach in zip(bar.share_C, bar.error_C, strict=True)),
            f"{free:.1%}",
        ]
        for bar, free in zip(bars, free_R, strict=True)
    ]
    header = ["", *(name.replace("_", " + ") for name in names), "heterogeneous + block"]
    return Section(
        "Attention patterns (figure 2 of Kovaleva et al.)",
        [finding],
        [ANNOTATED],
        tables=[Table(header, rows, f"Share of attention maps ± half of a 95% interval {over}")],
        figures=[
            FigureBlock("patterns_shares", figure, "Share of each pattern over all heads.", "Stacked bars of shares.")
        ],
    )


def over_seeds(share_RLHC: Array, error_RLHC: Array) -> tuple[Array, Array]:
    """Mean share over heads and seeds, and the half-width of its 95% interval: over seeds, or examples with one seed."""
    if len(share_RLHC) == 1:
        return over_heads(share_RLHC[0], error_RLHC[0])
    share_RC = np.nanmean(share_RLHC, axis=(1, 2))
    count = len(share_RC)
    share_C: Array = share_RC.mean(0)
    # The spread between seeds holds that between examples, too.
    reach_C: Array = stats.t.ppf(0.975, count - 1) * share_RC.std(0, ddof=1) / np.sqrt(count)
    return share_C, reach_C


_log = logging.getLogger(__name__)

_SHARE = "share of a head's maps"


class Patterns(Measure):
    """Share of a head's maps that show each pattern; the columns sum to 1.

    Columns:
        The five :data:`~bertsecrets.patterns.classes.PATTERNS`, and ``uncertain``. Each example is 1 in the column of
        its pattern and 0 in the others; the mean is a share, and its standard error that of a share. Maps of fewer than
        8 real tokens do not count.

    Args:
        max_examples: Size of a random sample of the examples; None for all. The paper takes 1000.
        classifier: Folder of a classifier that ``tools.pattern_classifier`` wrote; None for the one in the package.
        margin: Difference of probabilities below which two patterns are a tie; None for the classifier's.

    Raises:
        UserError: If the classifier cannot be read or ``margin`` is not in 0..1.
    """

    name = "patterns"
    title = "Attention patterns"
    columns = tuple(Column(name, name.replace("_", " + "), _SHARE, (0.0, 1.0)) for name in (*PATTERNS, UNCERTAIN))
    tracked = ()

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        max_examples: MaxExamples = None,
        classifier: Annotated[str | None, Field(min_length=1, description="a folder, or null")] = None,
        margin: Annotated[float | None, Field(ge=0, le=1, description="a number from 0 to 1, or null")] = None,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.classifier = load_classifier(SHIPPED if classifier is None else Path(classifier))
        if margin is not None:
            self.classifier.margin = margin

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        first_segment_B = first_segments(batch.special_BS, real_BS)
        # On MPS, which has no float64, the sums are on the CPU and the maps are not.
        judgement = self.classifier.to(attention_BHQK.device)(attention_BHQK, real_BS, first_segment_B)
        column_BH = judgement.pattern.masked_fill(judgement.uncertain, len(PATTERNS))
        share_BHC = torch.nn.functional.one_hot(column_BH, len(self.columns)).to(attention_BHQK.dtype)
        return share_BHC.masked_fill((real_BS.sum(-1) < MIN_LENGTH)[:, None, None], torch.nan)

    def compute(self) -> HeadGrid:
        """The shares; logs a warning if no map was long enough to show a pattern."""
        grid = super().compute()
        if not grid.count_LHC.any():
            _log.warning(
                f"No example of this evaluation set has the {MIN_LENGTH} tokens that a map needs to show a pattern; choose "
                "another set, or leave out the patterns measure."
            )
        return grid

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Figure 2 of the paper, the pattern of each head, and how both moved."""
        names = [column.name for column in view.columns]
        if view.step is None or not all(view.has(name) for name in names):
            return None
        share_LHC, error_LHC, count_LH = _grids(view, names)
        if not count_LH.any():
            return Section(view.title, paragraphs=["No example has the 8 tokens that a map needs to show a pattern."])
        note = f"{NAMED}; {sample_size(count_LH)}"
        share_C, reach_C = over_heads(share_LHC, error_LHC)
        bars = [ShareBar("all heads", share_C, reach_C)]
        bars += [
            ShareBar(f"layer {layer}", *over_heads(share_LHC[layer : layer + 1], error_LHC[layer : layer + 1]))
            for layer in range(len(share_LHC))
        ]
        shares = pattern_bars(
            bars,
            names,
            title="Attention patterns, over all heads and by layer",
            note=f"{note}; {LIMITS}",
            unit=_SHARE_OF_MAPS,
        )
        heads = pattern_grid(share_LHC, names, title="The pattern of each head", note=note)
        blocks = [
            FigureBlock("patterns_shares", shares, "Share of each pattern (figure 2 of the paper).", "Stacked bars."),
            FigureBlock(
                "patterns_heads", heads, "Heads by the pattern that most of their maps show.", "Grid of coloured heads."
            ),
        ]
        findings = [_finding(share_LHC, share_C, names)]
        moments = _moments(view, names[0])
        if len(moments) > 1:
            moved, sentence = _movement(names, moments, note)
            blocks += moved
            findings.append(sentence)
        cells = [
            [name.replace("_", " + "), f"{share:.1%} ± {reach:.1%}", _highest(share_LHC[..., index])]
            for index, (name, share, reach) in enumerate(zip(names, share_C, reach_C, strict=True))
        ]
        return Section(
            view.title,
            findings,
            [f"{ANNOTATED} Shares depend on the classifier as well as on the model."],
            [Table(["pattern", "share of maps", "head that shows it most"], cells, "± half of a 95% interval")],
            blocks,
        )

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """The pattern that at least half of a head's maps show, if any."""
        return {"pattern": _main_patterns(view)} if view.step is not None else {}

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """Figure 2 of the paper, condition by condition."""
        section, heads = _compared(comparison), grid_comparison(comparison)
        if section is None or heads is None:
            return section or heads
        return replace(
            section,
            findings=[*section.findings, *heads.findings],
            tables=[*section.tables, *heads.tables],
            figures=[*section.figures, *heads.figures],
            rows=heads.rows,
        )
