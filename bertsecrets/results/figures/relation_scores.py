"""Shares with intervals beside their baselines, one row for each relation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.results.figures.style import ACCENTS, QUIET, footnote, house_style, new_figure


@dataclass(frozen=True)
class ScoreRow:
    """A row: its name, a share with the limits of its interval, and the share of a baseline."""

    name: str
    value: float
    low: float
    high: float
    baseline: float


def relation_scores(rows: Sequence[ScoreRow], *, title: str, unit: str, baseline: str, note: str) -> Figure:
    """A dot with its interval for each row, and a cross for its baseline; the first row at the top."""
    with house_style():
        figure = new_figure(6.2, 0.21 * len(rows) + 1.6, title)
        axes = figure.add_subplot()
        places = np.arange(len(rows))
        value = np.array([row.value for row in rows])
        reach = np.abs(np.array([[row.low, row.high] for row in rows]).T - value)
        axes.errorbar(
            value, places, xerr=reach, fmt="o", markersize=4, color=ACCENTS[0], elinewidth=1.0, label="best head"
        )
        axes.plot([row.baseline for row in rows], places, "x", markersize=5, color=QUIET, label=baseline)
        axes.set_yticks(places, [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        axes.set_xlabel(unit)
        axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)
        footnote(figure, note)
    return figure
