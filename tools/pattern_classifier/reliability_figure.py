"""Reliability diagram: whether a classifier's probabilities match how often it is right."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple

from matplotlib.figure import Figure
from scipy import stats

from bertsecrets.present.figures.style import ACCENTS, QUIET, footnote, house_style, new_figure
from tools.pattern_classifier.scoring import ReliabilityBin

_MARKERS = "os^D"


def reliability_diagram(curves: Mapping[str, Sequence[ReliabilityBin]], *, title: str, note: str) -> Figure:
    """Plot accuracy against confidence, bin by bin, with the number of maps in each bin below.

    Bars are 95% Wilson intervals of the accuracy; a point on the dashed line is calibrated.

    Args:
        curves: Name of a classifier -> its bins.
        title: Title of the figure.
        note: Its footnote.
    """
    with house_style():
        figure = new_figure(4.8, 5.0, title)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        top.plot([0, 1], [0, 1], color=QUIET, linestyle="--", linewidth=0.8)
        for place, (name, bins) in enumerate(curves.items()):
            confidence_B, accuracy_B, count_B = zip(*map(astuple, bins), strict=True)
            intervals = [
                stats.binomtest(round(accuracy * count), count).proportion_ci(method="wilson")
                for accuracy, count in zip(accuracy_B, count_B, strict=True)
            ]
            colour, marker = ACCENTS[place], _MARKERS[place % len(_MARKERS)]
            lows, highs = [interval.low for interval in intervals], [interval.high for interval in intervals]
            top.vlines(confidence_B, lows, highs, color=colour, linewidth=1.0)
            top.plot(confidence_B, accuracy_B, marker, color=colour, markersize=5, label=name)
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
