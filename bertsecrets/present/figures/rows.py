"""Numbers with their intervals, one row each, with baselines and the numbers of single seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    SMALL,
    chart,
    row_names,
)


@dataclass(frozen=True)
class IntervalRow:
    """A row.

    Args:
        name: Its label.
        value: The number; NaN is written as undefined.
        low, high: Ends of its interval; NaN where unknown.
        baseline: A number to compare with, such as the majority baseline; NaN for none.
        seeds: The number of each seed, averaged in the value; empty with a single seed.
    """

    name: str
    value: float
    low: float = np.nan
    high: float = np.nan
    baseline: float = np.nan
    seeds: Sequence[float] = ()


def interval_rows(
    rows: Sequence[IntervalRow],
    *,
    title: str,
    unit: str,
    note: str,
    reference: float | None = 0.0,
    limits: tuple[float, float] | None = None,
    value: str = "",
    baseline: str = "",
) -> Figure:
    """A dot with its interval for each row, the first at the top.

    Args:
        rows: The rows.
        title: What the figure shows.
        unit: Label of the x axis.
        note: Footnote: meaning of the intervals, and sample sizes.
        reference: Where to draw a vertical line; None for none.
        limits: Ends of the x axis; None for automatic.
        value, baseline: Legend labels of dots and hollow squares.
    """
    names, lines = row_names([row.name for row in rows])
    height = max(0.28, 0.17 * lines)
    with chart(PAGE_WIDTH, height * len(rows) + 1.7, title, unit, "", note, grid="x") as (figure, axes):
        if reference is not None:
            axes.axvline(reference, color=QUIET, linewidth=0.8)
        for y, row in enumerate(rows):
            axes.plot([row.baseline, row.value], [y, y], color=QUIET, linewidth=0.6, alpha=0.6)
            axes.plot(row.baseline, y, "s", color=QUIET, markerfacecolor="white", markersize=5)
            axes.plot([row.low, row.high], [y, y], color=ACCENTS[0])
            axes.plot(row.seeds, [y] * len(row.seeds), "o", color=ACCENTS[0], markerfacecolor="none", markersize=4)
            axes.plot(row.value, y, "o", color=ACCENTS[0], markersize=6)
            if not np.isfinite(row.value):
                axes.text(
                    0.01, y, "undefined", va="center", fontsize=SMALL, color=QUIET, transform=axes.get_yaxis_transform()
                )
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.margins(x=0.08)
        if limits is not None:
            axes.set_xlim(*limits)
        if baseline:
            axes.plot([], [], "o", color=ACCENTS[0], label=value)
            axes.plot([], [], "s", color=QUIET, markerfacecolor="white", label=baseline)
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, borderaxespad=0.2)
    return figure
