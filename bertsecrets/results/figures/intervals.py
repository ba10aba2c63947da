"""Numbers with their intervals, one row each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.results.figures.style import ACCENTS, QUIET, footnote, house_style, new_figure, row_names


@dataclass(frozen=True)
class IntervalRow:
    """A row: its name, a number, and the ends of its interval (NaN where unknown)."""

    name: str
    value: float
    low: float = np.nan
    high: float = np.nan


def interval_rows(
    rows: Sequence[IntervalRow], *, title: str, unit: str, note: str, reference: float | None = 0.0
) -> Figure:
    """A dot with its interval for each row, the first at the top, and a vertical line at the reference.

    Raises:
        ValueError: If there are no rows.
    """
    if not rows:
        raise ValueError("A figure of intervals needs at least one row")
    with house_style():
        names, lines = row_names([row.name for row in rows])
        figure = new_figure(6.4, max(0.28, 0.17 * lines) * len(rows) + 1.5, title)
        axes = figure.add_subplot()
        if reference is not None:
            axes.axvline(reference, color=QUIET, linewidth=0.8)
        for place, row in enumerate(rows):
            if np.isfinite([row.low, row.high]).all():
                axes.plot([row.low, row.high], [place, place], color=ACCENTS[0], linewidth=1.4)
            axes.plot(row.value, place, "o", color=ACCENTS[0], markersize=5)
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        axes.set_xlabel(unit)
        axes.margins(x=0.08)
        footnote(figure, note)
    return figure
