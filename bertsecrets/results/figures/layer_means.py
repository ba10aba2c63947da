"""How something that every head has goes from layer to layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from bertsecrets.results.figures.style import ACCENTS, QUIET, footnote, house_style, new_figure

_MARKERS = "os^Dv<>"


@dataclass(frozen=True)
class LayerLine:
    """One line.

    Args:
        name: In the legend.
        value_LH: ``[layers, heads]``; NaN does not count.
    """

    name: str
    value_LH: ArrayLike


def layer_means(
    lines: Sequence[LayerLine], *, title: str, unit: str, note: str, level: float | None = None, level_name: str = ""
) -> Figure:
    """A line for the mean over heads in each layer, with a band between the lowest and the highest head.

    Args:
        lines: At least one.
        title: What the figure shows.
        unit: What is measured.
        note: Said under the figure: sample sizes.
        level: A dashed line to compare with, e.g. chance; None for none.
        level_name: What that line is called.
    """
    with house_style():
        figure = new_figure(5.6, 3.4, title)
        axes = figure.add_subplot()
        for place, line in enumerate(lines):
            values_LH = np.asarray(line.value_LH, np.float64)
            layers = np.arange(len(values_LH))
            colour = ACCENTS[place % len(ACCENTS)]
            axes.fill_between(
                layers, np.nanmin(values_LH, 1), np.nanmax(values_LH, 1), color=colour, alpha=0.12, linewidth=0
            )
            marker = _MARKERS[place % len(_MARKERS)]
            axes.plot(layers, np.nanmean(values_LH, 1), color=colour, marker=marker, markersize=4, label=line.name)
        if level is not None:
            axes.axhline(level, color=QUIET, linestyle="--", linewidth=1.0, label=level_name)
        axes.set_xticks(layers[:: 1 if len(layers) <= 12 else 2])
        axes.set_xlabel("layer (0 next to the input)")
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes.legend(frameon=False)
        footnote(figure, f"{note}; lines: mean over heads, bands: lowest to highest head; layers count from 0")
    return figure
