"""Conditions, columns or models side by side: heatmaps of heads, bars and lines by layer, scatters of heads."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from bertsecrets.results.figures.cells import mark_heads
from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    effect_scale,
    footnote,
    house_style,
    new_figure,
    scale,
    sentence,
)

_MARKERS = "os^Dv<>"
_PALE = "#f4f4f4"
_COLUMNS = 3


@dataclass(frozen=True)
class HeadPanel:
    """One heatmap.

    Args:
        title: Title of the panel.
        value_LH: ``[layers, heads]``; NaN is hatched, and a panel of nothing else is a sentence under the figure.
        certain_LH: Which values to colour; the others are pale. None for all.
    """

    title: str
    value_LH: ArrayLike
    certain_LH: ArrayLike | None = None


def head_panels(
    panels: Sequence[HeadPanel],
    *,
    title: str,
    unit: str,
    note: str,
    limits: tuple[float, float] | None = None,
    signed: bool | None = None,
    effects: bool = False,
    ticks: Mapping[float, str] | None = None,
    rows: Sequence[str] | None = None,
) -> Figure:
    """Small heatmaps of ``[layers, heads]`` values, layer 0 in the top row, all on the same colour scale.

    Args:
        panels: At least one, all of one size.
        title: What the figure shows.
        unit: Label of the colour bar.
        note: Footnote: sample sizes, and what pale cells mean.
        limits: Ends of the scale; None for the range of all coloured values.
        signed: Whether zero is the middle of the scale; None decides by the values.
        effects: Whether values are changes of a score, whose losses are drawn from white to dark red.
        ticks: Values to label on the colour bar, with their labels; those outside the scale are left out.
        rows: Names of the rows if they are not layers.
    """
    empty = [panel.title for panel in panels if not np.isfinite(np.asarray(panel.value_LH, np.float64)).any()]
    if len(empty) == len(panels):
        return sentence(title, f"No head has a value: {', '.join(empty)}; {note}")
    if empty:
        panels = [panel for panel in panels if panel.title not in empty]
        note = f"{note}; no head has a value: {', '.join(empty)}"
    values = [np.asarray(panel.value_LH, np.float64) for panel in panels]
    certain = [
        np.isfinite(value_LH)
        if panel.certain_LH is None
        else np.asarray(panel.certain_LH, bool) & np.isfinite(value_LH)
        for panel, value_LH in zip(panels, values, strict=True)
    ]
    counting = np.concatenate([value_LH[keep_LH] for value_LH, keep_LH in zip(values, certain, strict=True)])
    columns = _across(len(panels))
    down = -(-len(panels) // columns)
    layers, heads = values[0].shape
    side = (PAGE_WIDTH - 1.2) / columns
    # An 8 pt letter is about 0.068 inches wide.
    titles = [textwrap.fill(panel.title, max(12, int(side / 0.068))) for panel in panels]
    lines = max(text.count("\n") + 1 for text in titles)
    height = max(1.1, min(2.4, side / heads * layers)) + 0.25 + 0.17 * lines
    with house_style():
        figure = new_figure(max(4.2, side * columns + 1.2), down * height + 1.3, title)
        drawn = counting if counting.size else np.concatenate([v.ravel() for v in values])
        norm, colours = effect_scale(drawn) if effects else scale(drawn, limits, signed=signed)
        grid = figure.subplots(down, columns, squeeze=False, sharex=True, sharey=True)
        for axes, text, value_LH, certain_LH in zip(grid.flat, titles, values, certain, strict=False):
            _draw(axes, text, value_LH, certain_LH, norm, colours)
            if rows is None:
                mark_heads(axes, layers, heads)
            else:
                axes.set_yticks(np.arange(layers) + 0.5, list(rows))
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for place, axes in enumerate(grid.flat[: len(panels)]):
            axes.tick_params(labelbottom=place + columns >= len(panels), labelleft=place % columns == 0, length=0)
            if place + columns >= len(panels):
                axes.set_xlabel("head")
            if place % columns == 0 and rows is None:
                axes.set_ylabel("layer")
        mappable = mpl.cm.ScalarMappable(norm, colours)
        bar = figure.colorbar(mappable, ax=list(grid.flat), aspect=30, pad=0.02)
        bar.set_label(unit)
        if ticks is not None:
            low, high = bar.mappable.get_clim()
            inside = [value for value in ticks if low <= value <= high]
            bar.set_ticks(inside, labels=[ticks[value] for value in inside])
            bar.minorticks_off()
        bar.outline.set_linewidth(0.4)
        counted = "layers and heads count from 0, layer 0 at the top, next to the input"
        footnote(figure, f"{note}; {counted if rows is None else 'heads count from 0'}")
    return figure


def _across(panels: int) -> int:
    """Number of panels in a row: four make a square."""
    return 2 if panels == 4 else min(_COLUMNS, panels)


def _draw(
    axes: Axes,
    title: str,
    value_LH: ArrayLike,
    certain_LH: ArrayLike,
    norm: mpl.colors.Normalize,
    colours: str | Colormap,
) -> None:
    values_LH, certain_LH = np.asarray(value_LH), np.asarray(certain_LH)
    layers, heads = values_LH.shape
    axes.set_facecolor(_PALE)
    axes.pcolormesh(
        np.ma.masked_where(~certain_LH, values_LH), norm=norm, cmap=colours, edgecolors="white", linewidth=0.4
    )
    for layer, head in np.argwhere(~np.isfinite(values_LH)):
        axes.add_patch(Rectangle((head, layer), 1, 1, facecolor="white", edgecolor=QUIET, hatch="////", linewidth=0))
    every = 1 if max(layers, heads) <= 8 else 2 if max(layers, heads) <= 12 else 4
    axes.set_xticks(np.arange(0, heads, every) + 0.5, [str(head) for head in range(0, heads, every)])
    axes.set_yticks(np.arange(0, layers, every) + 0.5, [str(layer) for layer in range(0, layers, every)])
    axes.set_xlim(0, heads)
    axes.set_ylim(layers, 0)
    axes.set_title(title, fontsize=8.0)
    for spine in axes.spines.values():
        spine.set_visible(False)


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


def layer_panels(panels: Sequence[LayerPanel], *, title: str, unit: str, note: str) -> Figure:
    """A bar for each layer's mean with its replicates as dots, one panel each, all on the same axes."""
    columns = _across(len(panels))
    rows = -(-len(panels) // columns)
    with house_style():
        figure = new_figure(max(4.2, PAGE_WIDTH * columns / _COLUMNS), rows * 1.7 + 1.2, title)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for place, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            value_RL, certain_L = np.asarray(panel.value_RL, np.float64), np.asarray(panel.certain_L, bool)
            layers = np.arange(value_RL.shape[1])
            colours = [ACCENTS[0] if certain else "#cfd8df" for certain in certain_L]
            axes.bar(layers, np.nanmean(value_RL, axis=0), color=colours, width=0.75)
            for value_L in value_RL:
                axes.plot(layers, value_L, "o", color="black", markersize=2.5)
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.set_xticks(layers[:: 1 if len(layers) <= 8 else 2])
            axes.set_title(textwrap.fill(panel.title, max(12, int(PAGE_WIDTH / _COLUMNS / 0.075))), fontsize=8.0)
            if place + columns >= len(panels):
                axes.set_xlabel("layer")
                axes.tick_params(labelbottom=True)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        figure.supylabel(unit, fontsize=9.0)
        footnote(figure, f"{note}; layers count from 0")
    return figure


@dataclass(frozen=True)
class LayerLine:
    """One line.

    Args:
        name: Its name in the legend.
        value_LH: ``[layers, heads]``; NaN is ignored.
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
        unit: Label of the y axis.
        note: Footnote: sample sizes.
        level: Height of a dashed line to compare with, e.g. chance; None for no such line.
        level_name: Its name in the legend.
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


@dataclass(frozen=True)
class ScatterPanel:
    """One scatter: ``x`` and ``y`` of each head, and whether to fill its dot (``certain``)."""

    title: str
    x: ArrayLike
    y: ArrayLike
    certain: ArrayLike


def head_scatter(panels: Sequence[ScatterPanel], *, title: str, x_label: str, y_label: str, note: str) -> Figure:
    """A dot for each head, filled where certain; all panels share their axes."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with house_style():
        figure = new_figure(max(4.2, PAGE_WIDTH * columns / 3), rows * 2.2 + 1.1, title)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes, panel in zip(grid.flat, panels, strict=False):
            x, y, certain = (np.asarray(each) for each in (panel.x, panel.y, panel.certain))
            certain = certain.astype(bool)
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.plot(
                x[~certain], y[~certain], "o", markersize=3, markerfacecolor="none", color=QUIET, markeredgewidth=0.7
            )
            axes.plot(x[certain], y[certain], "o", markersize=4.5, color=ACCENTS[1])
            axes.set_title(panel.title, fontsize=8.0)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        figure.supylabel(y_label, fontsize=9.0)
        for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel(x_label)
            axes.tick_params(labelbottom=True)
        footnote(figure, note)
    return figure
