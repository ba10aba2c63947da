"""Several runs of several conditions: every seed a dot, their mean with its interval beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from bertsecrets.results.figures.style import ACCENTS, PAGE_WIDTH, QUIET, footnote, house_style, new_figure


@dataclass(frozen=True)
class ScoreRow:
    """A condition's scores.

    Args:
        label: What it is called.
        values: One for each seed.
        low, high: Confidence limits of their mean; NaN where unknown.
        constant: A constant answer's score; NaN where undefined.
    """

    label: str
    values: Sequence[float]
    low: float
    high: float
    constant: float


def score_rows(rows: Sequence[ScoreRow], *, title: str, note: str) -> Figure:
    """Scores by condition: dots for seeds, a bar for the mean and a line for its interval, a tick for a constant answer."""
    with house_style():
        figure = new_figure(PAGE_WIDTH, 0.34 * len(rows) + 1.5, title)
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            known = [value for value in row.values if math.isfinite(value)]
            if known:
                mean = float(np.mean(known))
                axes.plot([mean], [place], "|", color="black", markersize=13, markeredgewidth=2)
            if math.isfinite(row.low):
                axes.plot([row.low, row.high], [place, place], color="black", linewidth=1.2)
            axes.plot(known, [place] * len(known), "o", color=ACCENTS[0], markersize=5, alpha=0.8)
            if math.isfinite(row.constant):
                axes.plot([row.constant], [place], "x", color=ACCENTS[1], markersize=6)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("score")
        footnote(figure, f"dot: one seed; bar and line: mean and interval; ×: a constant answer; {note}")
    return figure


@dataclass(frozen=True)
class ScatterPanel:
    """Two numbers for each head: ``x`` and ``y`` of equal length, and the heads that count."""

    title: str
    x: ArrayLike
    y: ArrayLike
    certain: ArrayLike


def head_scatter(panels: Sequence[ScatterPanel], *, title: str, x_label: str, y_label: str, note: str) -> Figure:
    """A dot for each head, filled where it counts; all panels share their axes."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with house_style():
        figure = new_figure(max(4.2, PAGE_WIDTH * columns / 3), rows * 2.2 + 1.1, title)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes, panel in zip(grid.flat, panels, strict=False):
            x, y, certain = (np.asarray(each) for each in (panel.x, panel.y, panel.certain))
            certain = certain.astype(bool)
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.plot(
                x[~certain], y[~certain], "o", markersize=3, markerfacecolor="none", color=QUIET, markeredgewidth=0.7
            )
            axes.plot(x[certain], y[certain], "o", markersize=4.5, color=ACCENTS[1])
            axes.set_title(panel.title, fontsize=8.0)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        figure.supylabel(y_label, fontsize=9.0)
        for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel(x_label)
            axes.tick_params(labelbottom=True)
        footnote(figure, note)
    return figure
