"""How good a classifier of maps is: what it takes for what, whether its probabilities hold, and its worst mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.contact_sheet import PALETTE, ink
from bertsecrets.results.figures.style import ACCENTS, PAGE_WIDTH, QUIET, footnote, house_style, new_figure

Array = NDArray[np.float64]

_ACROSS = 5


@dataclass(frozen=True)
class Curve:
    """One classifier's reliability.

    Args:
        name: What it is called.
        confidence_B: Mean probability of the chosen class in each bin, ascending.
        accuracy_B: Share of right choices in each bin.
        count_B: Maps in each bin.
    """

    name: str
    confidence_B: ArrayLike
    accuracy_B: ArrayLike
    count_B: ArrayLike


def reliability_diagram(curves: Sequence[Curve], *, title: str, note: str) -> Figure:
    """Accuracy against confidence, bin by bin, with how many maps each bin holds below.

    Bars are 95% Wilson intervals of the accuracy; a point on the dashed line is calibrated.
    """
    with house_style():
        figure = new_figure(4.8, 5.0, title)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        top.plot([0, 1], [0, 1], color=QUIET, linestyle="--", linewidth=0.8)
        for place, curve in enumerate(curves):
            confidence_B, accuracy_B = (
                np.asarray(curve.confidence_B, np.float64),
                np.asarray(curve.accuracy_B, np.float64),
            )
            count_B = np.asarray(curve.count_B, np.float64)
            middle_B, half_B = _wilson(accuracy_B, count_B)
            colour = ACCENTS[place]
            top.vlines(confidence_B, middle_B - half_B, middle_B + half_B, color=colour, linewidth=1.0)
            top.plot(confidence_B, accuracy_B, "os^D"[place % 4], color=colour, markersize=5, label=curve.name)
            bottom.plot(confidence_B, count_B, "os^D"[place % 4], color=colour, markersize=4)
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


def _wilson(share_B: Array, count_B: Array) -> tuple[Array, Array]:
    z = 1.959964
    whole_B = 1 + z**2 / count_B
    middle_B = (share_B + z**2 / (2 * count_B)) / whole_B
    half_B = z * np.sqrt(share_B * (1 - share_B) / count_B + z**2 / (4 * count_B**2)) / whole_B
    return middle_B, half_B


@dataclass(frozen=True)
class TitledMap:
    """A map with a line or more over it."""

    title: str
    attention_QK: ArrayLike


def map_sheet(maps: Sequence[TitledMap], *, title: str, note: str) -> Figure:
    """Maps in rows of five, coloured as on the annotators' sheets: yellow is the map's largest weight."""
    rows = -(-len(maps) // _ACROSS)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 1.95 * rows + 1.1, title)
        grid = figure.subplots(rows, _ACROSS, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, each in zip(grid.flat, maps, strict=False):
            axes.imshow(PALETTE[ink(each.attention_QK)], interpolation="nearest")
            axes.set_axis_on()
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(True)
                spine.set_color("#969696")
            axes.set_title(each.title, fontsize=7.0, linespacing=1.1)
        footnote(figure, note)
    return figure
