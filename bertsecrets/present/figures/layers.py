"""Numbers by layer: bars with their seeds, and heads as dots around a line."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    footnote,
    house_style,
    panels_across,
    score_change,
    titled_panels,
)

_MARKERS = "os^D"
_SPREAD = 0.16
"""Distance between the dots of two series in one layer, in layers."""


@dataclass(frozen=True)
class LayerPanel:
    """One bar chart of layers.

    Args:
        title: Title of the panel.
        value_RL: ``[replicates, layers]``.
        certain_L: Which bars to colour; the others are pale.
    """

    title: str
    value_RL: ArrayLike
    certain_L: ArrayLike


def layer_panels(panels: Sequence[LayerPanel], *, title: str, note: str) -> Figure:
    """A bar for the mean change of score of each layer, with its replicates as dots, one panel each on shared axes."""
    columns = panels_across(len(panels))
    with house_style():
        figure, axes_N = titled_panels(
            [textwrap.fill(panel.title, max(12, int(PAGE_WIDTH / 3 / 0.075))) for panel in panels],
            columns,
            (max(4.2, PAGE_WIDTH * columns / 3), 1.7),
            title,
            "layer",
        )
        for axes, panel in zip(axes_N, panels, strict=True):
            value_RL, certain_L = np.asarray(panel.value_RL, np.float64), np.asarray(panel.certain_L, bool)
            layers = np.arange(value_RL.shape[1])
            colours = [ACCENTS[0] if certain else "#cfd8df" for certain in certain_L]
            axes.bar(layers, np.nanmean(value_RL, axis=0), color=colours, width=0.75)
            for value_L in value_RL:
                axes.plot(layers, value_L, "o", color="black", markersize=2.5)
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.set_xticks(layers[:: 1 if len(layers) <= 8 else 2])
        figure.supylabel(score_change(), fontsize=9.0)
        footnote(figure, f"{note}; layers count from 0")
    return figure


@dataclass(frozen=True)
class LayerLine:
    """One series.

    Args:
        name: Its name in the legend.
        value_LH: ``[layers, heads]``; NaN is ignored.
        published_L: A paper's means by layer for its own model, with any number of layers; None for no such line.
    """

    name: str
    value_LH: ArrayLike
    published_L: ArrayLike | None = None


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
    """Heads as dots by layer, and the mean over each layer's heads as a line.

    Args:
        panels: Title of each panel -> its series; all panels share their axes.
        title: What the figure shows.
        unit: Label of the y axis.
        note: Footnote: sample sizes.
        top: Upper end of the y axis; None for automatic.
        level: Height of a dashed line to compare with, e.g. chance; None for no such line.
        level_name: Its name in the legend.
    """
    columns = len(panels) if len(panels) <= 3 else 2
    with house_style():
        figure, axes_N = titled_panels(
            list(panels) if len(panels) > 1 else [""],
            columns,
            (PAGE_WIDTH if columns > 1 else 5.6, 2.6),
            title,
            "layer (0 next to the input)",
        )
        for axes, lines in zip(axes_N, panels.values(), strict=True):
            for index, line in enumerate(lines):
                shift = (index - (len(lines) - 1) / 2) * _SPREAD
                _draw_heads(axes, line, shift, ACCENTS[index % len(ACCENTS)], _MARKERS[index % len(_MARKERS)])
            if level is not None:
                axes.axhline(level, color=QUIET, linestyle="--", linewidth=1.0, label=level_name)
            axes.grid(axis="y", linewidth=0.4, alpha=0.5)
            if len(lines) > 1 or (level is not None and axes is axes_N[0]):
                axes.legend(
                    loc="lower left",
                    bbox_to_anchor=(0.0, 1.08),
                    ncols=3,
                    frameon=False,
                    borderaxespad=0.0,
                    handlelength=1.2,
                    columnspacing=1.0,
                )
        # After all lines are drawn, because the panels share the axis.
        for axes in axes_N:
            axes.set_ylim(0, top)
        figure.supylabel(unit, fontsize=9.0)
        published = any(line.published_L is not None for lines in panels.values() for line in lines)
        theirs = "; dotted: the paper's model, with its layers spread over the same width" if published else ""
        footnote(figure, f"{note}; dots: heads, lines: mean over the heads of a layer{theirs}; layers count from 0")
    return figure


def _draw_heads(axes: Axes, line: LayerLine, shift: float, colour: str, marker: str) -> None:
    value_LH = np.asarray(line.value_LH, np.float64)
    layers = np.arange(len(value_LH))
    axes.plot(
        np.repeat(layers + shift, value_LH.shape[1]),
        value_LH.ravel(),
        linestyle="none",
        marker=marker,
        markersize=3,
        color=colour,
        alpha=0.6,
        markeredgewidth=0,
    )
    defined_L = np.isfinite(value_LH).any(axis=1)
    mean_L = np.full(len(layers), np.nan)
    mean_L[defined_L] = np.nanmean(value_LH[defined_L], axis=1)
    axes.plot(layers, mean_L, color=colour, label=line.name)
    if line.published_L is not None:
        published_L = np.asarray(line.published_L, np.float64)
        axes.plot(np.linspace(0, layers[-1], len(published_L)), published_L, color=colour, linestyle=":")
    axes.set_xticks(layers[:: 1 if len(layers) <= 12 else 2])
