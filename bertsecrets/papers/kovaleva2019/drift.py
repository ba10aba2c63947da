"""Section 4.3 and figure 5: how fine-tuning changes attention."""

import numpy as np
from numpy.typing import NDArray

from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    beside_the_paper,
    by_layer,
    claims_tables,
    layer_difference,
    layer_means,
    not_learned,
    published_for,
    without_unlearned,
)
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size, seeds_in_words
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.views import Grids

_EXCEPTION = "qqp"
"""The task with another layer among the two most changed ones in the paper's figure."""
_UNCHANGED = 0.93
"""Lowest mean of the first layer in the paper's figure."""
_ROUNDING = 3e-7
"""Largest 1 − cosine of maps that differ by rounding only."""


def drift(runs: PaperRuns) -> Chapter | None:
    """Cosine similarity of the maps before and after fine-tuning, per task; None if no run has it."""
    panels, rows, counts, seeds, measured = [], [], [], [], []
    last_two, first_least, first_same = Answers(), Answers(), Answers()
    for condition in runs.pretrained:
        grids = condition.grids("drift", "cosine")
        mean_L = layer_means(condition, "drift", "cosine")
        if grids is None or mean_L is None:
            continue
        name = runs.name(condition)
        measured.append(condition)
        counts.append(grids.count)
        seeds.append(len(grids.value_RLH))
        panels.append(HeadPanel(runs.title(condition), grids.value_RLH.mean(axis=0)))
        last_two[name], first_least[name], first_same[name] = _answers(grids, mean_L)
        theirs = published_for(condition, published.DRIFT)
        rows.append([name, by_layer(mean_L), MISSING if theirs is None else by_layer(theirs)])
    if not panels:
        return None
    figure = head_panels(
        panels,
        title="Cosine similarity of attention maps before and after fine-tuning",
        unit="cosine similarity (1: unchanged)",
        note=f"{seeds_in_words(seeds)}, {sample_size(counts)} for each",
        limits=(0.0, 1.0),
    )
    last_two, first_least, first_same = (
        without_unlearned(runs, measured, answers) for answers in (last_two, first_least, first_same)
    )
    expected = Answers(
        {
            name: last_two[name]
            for condition in measured
            if (name := runs.name(condition)) in last_two and condition.task != _EXCEPTION
        }
    )
    both = Answers({name: _both(first_least[name], first_same[name]) for name in first_least})
    claims = [
        Claim(
            "The last two layers change most (in the paper's figure on every task but QQP).",
            f"The two layers with the lowest mean are the last two, significantly: {last_two}.",
            expected.everywhere,
        ),
        Claim(
            "The first layer hardly changes (mean cosine 0.93 or more).",
            f"Layer 0 changes least, significantly: {first_least}; its mean is {_UNCHANGED} or more: {first_same}.",
            both.everywhere,
        ),
    ]
    section = Section(
        "Section 4.3, figure 5: how does fine-tuning change attention?",
        paragraphs=not_learned(runs, measured),
        tables=[
            *claims_tables(claims),
            beside_the_paper(
                ["task", "mean by layer", "paper (figure)"],
                rows,
                "Cosine similarity, mean over the heads of each layer, from layer 0",
            ),
        ],
        figures=[
            FigureBlock(
                "paper_figure5", figure, "Figure 5, by task.", "Heatmaps of cosine similarity by layer and head."
            )
        ],
    )
    return Chapter(section, claims)


def _answers(grids: Grids, mean_L: NDArray[np.float64]) -> tuple[bool | None, bool | None, bool | None]:
    """Whether the last two layers changed most, the first least, and the first hardly; None where that cannot be told."""
    layers = len(mean_L)
    if not np.isfinite(mean_L).all() or layers < 3 or (1 - mean_L).max() < _ROUNDING:
        return None, None, None
    upper = max((layers - 2, layers - 1), key=lambda layer: mean_L[layer])
    lower = min(range(layers - 2), key=lambda layer: mean_L[layer])
    gap, certain = layer_difference(grids, lower, upper)
    last_two = gap > 0 if certain else None
    other = max(range(1, layers), key=lambda layer: mean_L[layer])
    gap, certain = layer_difference(grids, 0, other)
    least = gap > 0 if certain else None
    return last_two, least, round(float(mean_L[0]), 2) >= _UNCHANGED


def _both(first: bool | None, second: bool | None) -> bool | None:
    return Answers({"first": first, "second": second}).everywhere
