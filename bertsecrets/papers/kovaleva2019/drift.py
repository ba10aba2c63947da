"""Section 4.3 and figure 5: how fine-tuning changes attention."""

import numpy as np

from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.papers.kovaleva2019.chapter import (
    Chapter,
    Claim,
    PaperRuns,
    by_layer,
    claims_tables,
    held,
    layer_means,
    published_for,
)
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.report.content import FigureBlock, Section, Table

_EXCEPTION = "qqp"
"""The task with another layer among the two most changed ones in the paper's figure."""
_UNCHANGED = 0.93
"""Lowest mean of the first layer in the paper's figure."""


def drift(runs: PaperRuns) -> Chapter | None:
    """Cosine similarity of the maps before and after fine-tuning, per task; None if no run has it."""
    panels, rows, counts = [], [], []
    last_two, first_least, first_same, names, expected = [], [], [], [], []
    for condition in runs.pretrained:
        grids = condition.grids("drift", "cosine")
        mean_L = layer_means(condition, "drift", "cosine")
        if grids is None or mean_L is None:
            continue
        name = runs.name(condition)
        names.append(name)
        counts.append(grids.count)
        panels.append(HeadPanel(name, grids.value_RLH.mean(axis=0)))
        lowest = set(np.argsort(mean_L)[:2].tolist())
        last_two += [name] if lowest == {len(mean_L) - 2, len(mean_L) - 1} else []
        expected += [name] if condition.task != _EXCEPTION else []
        first_least += [name] if int(np.argmax(mean_L)) == 0 else []
        first_same += [name] if round(float(mean_L[0]), 2) >= _UNCHANGED else []
        theirs = published_for(condition, published.DRIFT)
        rows.append([name, by_layer(mean_L), MISSING if theirs is None else by_layer(theirs)])
    if not panels:
        return None
    figure = head_panels(
        panels,
        title="Cosine similarity of attention maps before and after fine-tuning",
        unit="cosine similarity (1: unchanged)",
        note=f"mean over seeds, {sample_size(counts)} for each",
        limits=(0.0, 1.0),
    )
    claims = [
        Claim(
            "The last two layers change most (in the paper's figure on every task but QQP).",
            f"The two layers with the lowest mean are the last two {held(last_two, names)}.",
            set(expected) <= set(last_two) if expected else None,
        ),
        Claim(
            "The first layer hardly changes (mean cosine 0.93 or more).",
            f"Layer 0 changes least {held(first_least, names)}; its mean is {_UNCHANGED} or more {held(first_same, names)}.",
            len(first_least) == len(first_same) == len(names),
        ),
    ]
    section = Section(
        "Section 4.3, figure 5: how does fine-tuning change attention?",
        tables=[
            *claims_tables(claims),
            Table(
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
