"""Grids of heads side by side, on one colour scale."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from bertsecrets.results.figures.style import ACCENTS, PAGE_WIDTH, QUIET, footnote, house_style, new_figure, scale

_PALE = "#f4f4f4"
_COLUMNS = 3


@dataclass(frozen=True)
class HeadPanel:
    """One grid.

    Args:
        title: What it is of.
        value_LH: ``[layers, heads]``; NaN is hatched.
        certain_LH: Which values count; the others are left pale. None: all.
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
    ticks: Mapping[float, str] | None = None,
    rows: Sequence[str] | None = None,
) -> Figure:
    """Small heatmaps of ``[layers, heads]`` values, layer 0 in the top row, all on the same colour scale.

    Args:
        panels: At least one, all of one size.
        title: What the figure shows.
        unit: What the colour bar measures.
        note: Said under the figure: sample sizes, and what pale cells mean.
        limits: Ends of the scale; None for the range of all values that count.
        signed: Whether zero is the middle of the scale; None decides by the values.
        ticks: Values to label on the colour bar, and their labels; those outside the scale are left out.
        rows: Names of the rows, where they are not layers.
    """
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
    # A letter of 8 pt is about 0.068 inches wide.
    titles = [textwrap.fill(panel.title, max(12, int(side / 0.068))) for panel in panels]
    lines = max(text.count("\n") + 1 for text in titles)
    height = max(1.1, min(2.4, side / heads * layers)) + 0.25 + 0.17 * lines
    with house_style():
        figure = new_figure(max(4.2, side * columns + 1.2), down * height + 1.3, title)
        norm, colours = scale(
            counting if counting.size else np.concatenate([v.ravel() for v in values]), limits, signed=signed
        )
        grid = figure.subplots(down, columns, squeeze=False, sharex=True, sharey=True)
        for axes, text, value_LH, certain_LH in zip(grid.flat, titles, values, certain, strict=False):
            _draw(axes, text, value_LH, certain_LH, norm, colours)
            if rows is not None:
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
    """Panels in a row: four make a square."""
    return 2 if panels == 4 else min(_COLUMNS, panels)


def _draw(
    axes: Axes, title: str, value_LH: ArrayLike, certain_LH: ArrayLike, norm: mpl.colors.Normalize, colours: str
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
    """One row of layers.

    Args:
        title: What it is of.
        value_RL: ``[replicates, layers]``.
        certain_L: Which layers count; the bars of the others are pale.
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
