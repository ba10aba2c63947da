"""Reliability diagram: whether a classifier's probabilities match how often it is right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy import stats

from bertsecrets.results.figures.style import ACCENTS, QUIET, footnote, house_style, new_figure

_MARKERS = "os^D"


@dataclass(frozen=True)
class ReliabilityCurve:
    """One classifier's reliability.

    Args:
        name: Name of the classifier.
        confidence_B: Mean probability of the chosen class in each bin, ascending.
        accuracy_B: Share of right choices in each bin.
        count_B: Number of maps in each bin.
    """

    name: str
    confidence_B: ArrayLike
    accuracy_B: ArrayLike
    count_B: ArrayLike


def reliability_diagram(curves: Sequence[ReliabilityCurve], *, title: str, note: str) -> Figure:
    """Plot accuracy against confidence, bin by bin, with the number of maps in each bin below.

    Bars are 95% Wilson intervals of the accuracy; a point on the dashed line is calibrated.
    """
    with house_style():
        figure = new_figure(4.8, 5.0, title)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        top.plot([0, 1], [0, 1], color=QUIET, linestyle="--", linewidth=0.8)
        for place, curve in enumerate(curves):
            confidence_B = np.asarray(curve.confidence_B, np.float64)
            accuracy_B, count_B = np.asarray(curve.accuracy_B, np.float64), np.asarray(curve.count_B, np.int64)
            right_B = np.rint(accuracy_B * count_B).astype(int)
            intervals = [
                stats.binomtest(right, count).proportion_ci(method="wilson")
                for right, count in zip(right_B.tolist(), count_B.tolist(), strict=True)
            ]
            colour, marker = ACCENTS[place], _MARKERS[place % len(_MARKERS)]
            lows, highs = [interval.low for interval in intervals], [interval.high for interval in intervals]
            top.vlines(confidence_B, lows, highs, color=colour, linewidth=1.0)
            top.plot(confidence_B, accuracy_B, marker, color=colour, markersize=5, label=curve.name)
            bottom.plot(confidence_B, count_B, marker, color=colour, markersize=4)
            bottom.vlines(confidence_B, 0, count_B, color=colour, linewidth=1.0)
        top.set_ylabel("share of right choices")
        top.set_ylim(-0.02, 1.02)
        top.set_xlim(0.15, 1.02)
        top.legend(loc="upper left", frameon=False)
        bottom.set_ylabel("maps")
        bottom.set_ylim(0, None)
        bottom.set_xlabel("mean probability of the chosen pattern")
        footnote(figure, note)
    return figure
