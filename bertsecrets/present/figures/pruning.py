"""Curves of the score against the number of heads kept, and against the cost of smaller models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from types import MappingProxyType

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    chart,
    sample_size,
    score_change,
)
from bertsecrets.pruning.rows import CONTROLS
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import level_text
from bertsecrets.statistics.replicates import Interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CurvePoint:
    """A model on a curve.

    Args:
        name: Name of the curve.
        kept: Remaining heads.
        change: Change of the score.
        order: Index among several curves with this name, from 0.
    """

    name: str
    kept: float
    change: Estimate
    order: int = 0


_MARKERS = "osv^Dx*"
_LINES = ("-", "--", ":")
_LABEL_WIDTH = 34
"""Characters of a line of a legend."""
_INSIDE = 5
"""A legend with more lines would cover the curves and is placed beside the axes."""


def _points(changes: Sequence[Estimate]) -> Array:
    """Changes of the score and their limits, in points, ``[3, V]``."""
    rows = [[100 * change.value for change in changes], [100 * change.low for change in changes]]
    return np.array([*rows, [100 * change.high for change in changes]])


def pruning_curves(
    points: Sequence[CurvePoint],
    *,
    title: str,
    count: int,
    level: float,
    metric: str,
    margin: float | None = None,
    marked: int | None = None,
    over: str = "examples",
    bands: bool | None = None,
    published: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
) -> Figure:
    """Change of the score against the number of heads kept, one line per order of removal; the controls come last.

    Args:
        metric: The score.
        margin: The largest acceptable loss, drawn as a line; None for none.
        marked: Number of heads of the smallest model that passed its test, drawn as a line; None for none.
        over: Units of the intervals.
        bands: Whether to draw intervals for all lines or none; None for the first line only.
        published: Points of published curves, heads kept and change of the score, drawn as crosses.
    """
    names = sorted(dict.fromkeys(point.name for point in points), key=lambda name: name in CONTROLS)
    notes = [
        "" if bands is False else f"band{'s' * bool(bands)}: {level_text(level)} interval over {over}",
        "" if margin is None else "dashed: the margin",
        "" if marked is None else "dotted: the smallest model that passed its test",
        sample_size(count),
    ]
    note = "; ".join(filter(None, notes))
    with chart(PAGE_WIDTH, 3.8, title, "heads kept", score_change(metric), note) as (figure, axes):
        for index, name in enumerate(names):
            colour = QUIET if name in CONTROLS else ACCENTS[index % len(ACCENTS)]
            label = fill(name, _LABEL_WIDTH)
            orders = list(dict.fromkeys(point.order for point in points if point.name == name))
            for number, order in enumerate(orders):
                line = [point for point in points if (point.name, point.order) == (name, order)]
                kept_V = np.array([point.kept for point in line], np.float64)
                change_V, low_V, high_V = _points([point.change for point in line])
                if bands or (bands is None and index == 0 and number == 0):
                    axes.fill_between(kept_V, low_V, high_V, color=colour, alpha=0.2, linewidth=0)
                axes.plot(
                    kept_V,
                    change_V,
                    f"{_MARKERS[index % len(_MARKERS)]}{_LINES[index // len(ACCENTS) % len(_LINES)]}",
                    color=colour,
                    markersize=3,
                    alpha=1 if len(orders) == 1 else 0.6,
                    label=None if number else label if len(orders) == 1 else f"{label} ({len(orders)} orders)",
                )
        for index, (name, theirs) in enumerate(published.items()):
            kept_V, change_V = np.transpose(theirs)
            axes.plot(kept_V, 100 * change_V, "x+"[index % 2], color="black", markersize=5, label=name)
        axes.axhline(0, color="black", linewidth=0.6)
        if margin is not None:
            axes.axhline(-100 * margin, color="black", linewidth=0.8, linestyle="--")
        if marked is not None:
            axes.axvline(marked, color="black", linewidth=0.8, linestyle=":")
        axes.invert_xaxis()
        if len(names) + len(published) > _INSIDE:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        else:
            axes.legend(frameon=False)
    return figure


def kept_scores(lines: Mapping[str, Mapping[int, Interval]], *, title: str, metric: str, note: str) -> Figure:
    """A score against the number of heads kept, one line with error bars per way of choosing them.

    Args:
        lines: Name -> heads kept -> the mean score with its interval, whose limits may be NaN.
    """
    with chart(PAGE_WIDTH, 3.4, title, "heads kept", metric, note) as (figure, axes):
        for index, (name, line) in enumerate(lines.items()):
            score_V, low_V, high_V = np.array(
                [(line[kept].mean, line[kept].low, line[kept].high) for kept in sorted(line)]
            ).T
            axes.errorbar(
                sorted(line),
                score_V,
                np.nan_to_num(np.stack([score_V - low_V, high_V - score_V])),
                fmt=f"{_MARKERS[index % len(_MARKERS)]}-",
                color=ACCENTS[index % len(ACCENTS)],
                markersize=4,
                capsize=2,
                label=name,
            )
        axes.invert_xaxis()
        axes.legend(frameon=False)
    return figure
