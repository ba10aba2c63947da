"""The report's section on attention patterns: shares over heads and layers, heads by pattern, and how both moved."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.patterns.measure import PATTERN_MEASURE, UNCERTAIN
from bertsecrets.results.figures.patterns import (
    ShareBar,
    dominant_patterns,
    pattern_bars,
    pattern_grid,
    pattern_steps,
    pattern_transitions,
)
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import CHECKPOINT, INITIAL, TRAINING
from bertsecrets.results.table import HeadTable

Array = NDArray[np.float64]

LIMITS = (
    "bars at the end of a share: 95% intervals of the mean over heads, at their widest (as if all heads' errors went the "
    "same way)"
)
_SHARE = "share of attention maps"


def pattern_sections(table: HeadTable, figures: dict[str, Figure], lead: list[str]) -> list[Section]:
    """The section, if the patterns were measured: at their last step, a checkpoint's before training's."""
    rows = table.select(measure=PATTERN_MEASURE)
    if not len(rows):
        return []
    names = pc.unique(rows.table["column"]).to_pylist()
    stage = CHECKPOINT if CHECKPOINT in pc.unique(rows.table["stage"]).to_pylist() else TRAINING
    share_LHC, error_LHC, count_LH = _grids(rows, names, stage, rows.steps(PATTERN_MEASURE, names[0], stage)[-1])
    if not count_LH.any():
        return [Section("Attention patterns", ["No example has the 8 tokens that a map needs to show a pattern."])]
    note = sample_size(count_LH)
    share_C, reach_C = over_heads(share_LHC, error_LHC)
    sentences = _findings(share_LHC, share_C, names)
    lead.append(sentences[0])
    bars = [ShareBar("all heads", share_C, reach_C)]
    bars += [
        ShareBar(f"layer {layer}", *over_heads(share_LHC[layer : layer + 1], error_LHC[layer : layer + 1]))
        for layer in range(len(share_LHC))
    ]
    figures["patterns_shares"] = pattern_bars(
        bars, names, title="Attention patterns, over all heads and by layer", note=f"{note}; {LIMITS}", unit=_SHARE
    )
    figures["patterns_heads"] = pattern_grid(share_LHC, names, title="The pattern of each head", note=note)
    blocks = [
        FigureBlock(figures["patterns_shares"], "Share of each pattern (figure 2 of the paper).", "Stacked bars."),
        FigureBlock(
            figures["patterns_heads"], "Heads by the pattern that most of their maps show.", "Grid of coloured heads."
        ),
    ]
    moments = _moments(rows, names[0], stage)
    if len(moments) > 1:
        moved, sentence = _movement(rows, names, moments, note, figures)
        blocks += moved
        sentences.append(sentence)
        lead.append(sentence)
    cells = [
        [name.replace("_", " + "), f"{share:.1%} ± {reach:.1%}", _highest(share_LHC[..., place])]
        for place, (name, share, reach) in enumerate(zip(names, share_C, reach_C, strict=True))
    ]
    return [
        Section(
            "Attention patterns",
            paragraphs=[
                *sentences,
                "A convolutional classifier, trained on generated and annotated maps, takes each map of each head for one "
                "of the five patterns of Kovaleva et al. 2019 (section 4.1), or for none where two are about as "
                "probable. docs/patterns.md says how often it is right: shares move with the classifier as well as "
                "with the model.",
            ],
            tables=[Table(["pattern", "share of maps", "head that shows it most"], cells, "± half of a 95% interval")],
            figures=blocks,
        )
    ]


def over_heads(share_LHC: Array, error_LHC: Array) -> tuple[Array, Array]:
    """Mean share over heads and the half-width of its 95% interval, ``[patterns]``.

    All heads see the same examples, so that their errors go together in a way that the table does not tell; the mean
    of their standard errors is the most that the standard error of the mean can be.
    """
    share_C: Array = np.nanmean(share_LHC, axis=(0, 1))
    reach_C: Array = 1.96 * np.nanmean(error_LHC, axis=(0, 1))
    return share_C, reach_C


def _grids(rows: HeadTable, names: Sequence[str], stage: str, step: int) -> tuple[Array, Array, NDArray[np.int64]]:
    grids = [rows.grid(PATTERN_MEASURE, name, stage, step) for name in names]
    share_LHC: Array = np.stack([share_LH for share_LH, _, _ in grids], axis=-1)
    error_LHC: Array = np.stack([error_LH for _, error_LH, _ in grids], axis=-1)
    return share_LHC, error_LHC, grids[0][2]


def _findings(share_LHC: Array, share_C: Array, names: Sequence[str]) -> list[str]:
    most = int(share_C.argmax())
    main_LH = dominant_patterns(share_LHC, names)
    counts = {
        name.replace("_", " + "): int((main_LH == place).sum())
        for place, name in enumerate(names)
        if name != UNCERTAIN and (main_LH == place).any()
    }
    told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))
    return [
        f"Most attention maps are {names[most].replace('_', ' + ')} ({share_C[most]:.0%}); of {main_LH.size} heads "
        f"{(main_LH >= 0).sum()} show one pattern in at least half of their maps: {told}."
    ]


def _moments(rows: HeadTable, column: str, stage: str) -> list[tuple[str, int]]:
    """Stage and step of the model before its fine-tuning, where that was measured, and of its training up to now."""
    before = [(INITIAL, 0)] if len(rows.select(stage=INITIAL)) else []
    last = rows.steps(PATTERN_MEASURE, column, stage)[-1]
    training = [(TRAINING, step) for step in rows.steps(PATTERN_MEASURE, column, TRAINING) if step < last]
    return [*before, *training, (stage, last)]


def _movement(
    rows: HeadTable, names: Sequence[str], moments: Sequence[tuple[str, int]], note: str, figures: dict[str, Figure]
) -> tuple[list[FigureBlock], str]:
    grids = [_grids(rows, names, stage, step) for stage, step in moments]
    steps = [step for _, step in moments]
    share_SC, reach_SC = (np.stack(each) for each in zip(*(over_heads(*grid[:2]) for grid in grids), strict=True))
    blocks = []
    if len(steps) > 2:
        figures["patterns_steps"] = pattern_steps(
            steps,
            share_SC,
            reach_SC,
            names,
            title="Patterns while the model learns",
            note=f"{note}; bands: 95% intervals at their widest",
        )
        blocks.append(
            FigureBlock(figures["patterns_steps"], "Shares over all heads, step by step.", "Line chart of shares.")
        )
    before_LH, after_LH = (dominant_patterns(grid[0], names) for grid in (grids[0], grids[-1]))
    start = "before fine-tuning" if moments[0][0] == INITIAL else f"at step {steps[0]}"
    figures["patterns_transitions"] = pattern_transitions(
        before_LH,
        after_LH,
        [name for name in names if name != UNCERTAIN],
        title=f"Heads by pattern, {start} and at step {steps[-1]}",
        note=f"a head's pattern is the one that at least half of its maps show; {note}",
    )
    blocks.append(
        FigureBlock(
            figures["patterns_transitions"], "How many heads kept their pattern and how many changed it.", "Table."
        )
    )
    change_C = share_SC[-1] - share_SC[0]
    most = int(np.abs(change_C).argmax())
    named_LH = (before_LH >= 0) & (after_LH >= 0)
    moved = int(((before_LH != after_LH) & named_LH).sum())
    return blocks, (
        f"Compared with the model {start}, {moved} of the {int(named_LH.sum())} heads that show a pattern both times "
        f"changed it; the share that moved "
        f"most is {names[most].replace('_', ' + ')}, by {100 * change_C[most]:+.1f} percentage points."
    )


def _highest(share_LH: Array) -> str:
    layer, head = np.unravel_index(np.nanargmax(share_LH), share_LH.shape)
    return f"layer {layer} · head {head} ({share_LH[layer, head]:.0%})" if share_LH[layer, head] > 0 else "–"
