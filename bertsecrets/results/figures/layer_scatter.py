"""A dot for each head over its layer, with a line through the layers' means."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bertsecrets.results.figures.panels import LayerLine
from bertsecrets.results.figures.style import ACCENTS, PAGE_WIDTH, QUIET, footnote, house_style, new_figure

_MARKERS = "os^D"
_SPREAD = 0.16
"""Distance between the dots of two series in one layer, in layers."""


def layer_scatter(
    panels: Mapping[str, Sequence[LayerLine]],
    *,
    title: str,
    unit: str,
    note: str,
    top: float | None = None,
    level: float | None = None,
    level_name: str = "",
) -> Figure:
    """Heads as dots by layer, and the mean over each layer's heads as a line; up to four series in a panel.

    Args:
        panels: Title of each panel -> its series; all panels share their axes.
        title: What the figure shows.
        unit: Label of the y axis.
        note: Footnote: sample sizes.
        top: Upper end of the y axis; None for that of the values.
        level: Height of a dashed line to compare with; None for no such line.
        level_name: Its name in the legend.
    """
    columns = len(panels) if len(panels) <= 3 else 2
    rows = -(-len(panels) // columns)
    with house_style():
        figure = new_figure(PAGE_WIDTH if columns > 1 else 5.6, rows * 2.6 + 1.0, title)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for place, (axes, (name, lines)) in enumerate(zip(grid.flat, panels.items(), strict=False)):
            _draw(axes, lines)
            if level is not None:
                axes.axhline(level, color=QUIET, linestyle="--", linewidth=1.0, label=level_name)
            if len(panels) > 1:
                axes.set_title(name, fontsize=8.0)
            if place + columns >= len(panels):
                axes.set_xlabel("layer (0 next to the input)")
                axes.tick_params(labelbottom=True)
            axes.set_ylim(0, top)
            axes.grid(axis="y", linewidth=0.4, alpha=0.5)
            if len(lines) > 1 or (level is not None and place == 0):
                axes.legend(frameon=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        figure.supylabel(unit, fontsize=9.0)
        footnote(figure, f"{note}; dots: heads, lines: mean over the heads of a layer; layers count from 0")
    return figure


def _draw(axes: Axes, lines: Sequence[LayerLine]) -> None:
    for place, line in enumerate(lines):
        value_LH = np.asarray(line.value_LH, np.float64)
        layers = np.arange(len(value_LH))
        colour, marker = ACCENTS[place % len(ACCENTS)], _MARKERS[place % len(_MARKERS)]
        shifted = layers + (place - (len(lines) - 1) / 2) * _SPREAD
        axes.plot(
            np.repeat(shifted, value_LH.shape[1]),
            value_LH.ravel(),
            linestyle="none",
            marker=marker,
            markersize=3,
            color=colour,
            alpha=0.6,
            markeredgewidth=0,
        )
        known = np.isfinite(value_LH).any(axis=1)
        mean_L = np.full(len(layers), np.nan)
        mean_L[known] = np.nanmean(value_LH[known], axis=1)
        axes.plot(layers, mean_L, color=colour, label=line.name if len(lines) > 1 else None)
        axes.set_xticks(layers[:: 1 if len(layers) <= 12 else 2])
