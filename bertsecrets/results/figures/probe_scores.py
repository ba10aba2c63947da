"""Scores of probes with intervals, one row for each probe."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.results.figures.style import ACCENTS, footnote, house_style, new_figure

_SERIES = (("UAS: right head", "o"), ("LAS: and right relation", "s"), ("control task", "D"))

Point = tuple[float, float, float]
"""A share with the limits of its interval."""


@dataclass(frozen=True)
class ProbeRow:
    """A row: the name of a probe, its scores, and its score in the control task, if it has one."""

    name: str
    uas: Point
    las: Point
    control: Point | None


def probe_scores_figure(rows: Sequence[ProbeRow], *, title: str, note: str) -> Figure:
    """Dots with intervals for each probe, the first at the top."""
    with house_style():
        figure = new_figure(6.2, 0.36 * len(rows) + 1.6, title)
        axes = figure.add_subplot()
        for series, (label, marker) in enumerate(_SERIES):
            points = [(row.uas, row.las, row.control)[series] for row in rows]
            known = [(place, *point) for place, point in enumerate(points) if point is not None]
            if known:
                place, value, low, high = (np.array(column) for column in zip(*known, strict=True))
                axes.errorbar(
                    value,
                    place + 0.22 * (series - 1),
                    xerr=np.stack([np.maximum(value - low, 0), np.maximum(high - value, 0)]),
                    fmt=marker,
                    markersize=4,
                    elinewidth=1.0,
                    color=ACCENTS[series],
                    label=label,
                )
        axes.set_yticks(np.arange(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        axes.set_xlabel("share of words")
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(-0.3, 1.0), borderaxespad=0.2)
        footnote(figure, note)
    return figure
