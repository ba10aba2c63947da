"""Scores of one run compared with a constant answer, and scores of several runs by condition."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    footnote,
    house_style,
    new_figure,
    row_names,
    sample_size,
)
from bertsecrets.results.formatting import number
from bertsecrets.results.scores import Score


def scores(rows: Sequence[Score], *, title: str, count: ArrayLike) -> Figure:
    """A row for each metric: a filled dot for the model, a hollow square for a constant answer.

    Args:
        rows: The metrics, first at the top. Where its ends are known, a 95 % interval is drawn.
        title: What the figure shows.
        count: Number of examples, one for all or one for each row.

    Raises:
        ValueError: If there are no rows.
    """
    if not rows:
        raise ValueError("A figure of scores needs at least one score")
    with house_style():
        figure = new_figure(5.2, 0.42 * len(rows) + 1.7, title)
        axes = figure.add_subplot()
        for height, row in enumerate(rows):
            _draw_row(axes, height, row)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        ends = [end for row in rows for end in (row.value, row.baseline) if np.isfinite(end)]
        axes.set_xlim(min([-1.05 if min(ends, default=0.0) < 0 else -0.02, *ends]), max([1.1, *ends]))
        axes.set_xlabel("score")
        axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        axes.tick_params(axis="y", length=0)
        axes.plot([], [], "o", color=ACCENTS[0], label="fine-tuned model")
        axes.plot([], [], "s", color=QUIET, markerfacecolor="white", label="constant answer")
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
        interval = "; bars: 95 % interval" if any(np.isfinite(row.low) for row in rows) else ""
        footnote(figure, sample_size(count) + interval)
    return figure


def _draw_row(axes: Axes, height: int, row: Score) -> None:
    if np.isfinite(row.value) and np.isfinite(row.baseline):
        axes.plot([row.baseline, row.value], [height, height], color=QUIET, linewidth=1.0, zorder=1)
    if np.isfinite(row.baseline):
        axes.plot(row.baseline, height, "s", color=QUIET, markerfacecolor="white", markersize=6, zorder=2)
    if not np.isfinite(row.value):
        axes.text(0.01, height, "undefined", va="center", fontsize=8.0, color=QUIET)
        return
    if np.isfinite(row.low):
        reach = [[row.value - row.low], [row.high - row.value]]
        axes.errorbar([row.value], [height], xerr=reach, color=ACCENTS[0], capsize=3, zorder=3)
    axes.plot(row.value, height, "o", color=ACCENTS[0], markersize=7, zorder=4)
    axes.annotate(
        number(row.value, 3),
        (row.value, height),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        fontsize=8.0,
    )


@dataclass(frozen=True)
class ScoreRow:
    """A condition's scores.

    Args:
        label: Name of the condition.
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
        names, lines = row_names([row.label for row in rows])
        figure = new_figure(PAGE_WIDTH, max(0.34, 0.17 * lines) * len(rows) + 1.5, title)
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
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("score")
        footnote(figure, f"dot: one seed; bar and line: mean and interval; ×: a constant answer; {note}")
    return figure
