"""What disabling each head does to the score, with what is noise kept apart from what is not."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    footnote,
    house_style,
    ink_on,
    new_figure,
    number,
    sample_size,
    scale,
)

POINTS = "change of score (points)"
"""Unit of every change that is drawn here: scores lie in -1..1, a point is one hundredth."""

_PALE = "#f4f4f4"
FONT = 8.0
"""Size of every text in a panel, in points."""

_NAMED = 6
"""How many variants are named at each end."""


def disabling_heatmap(
    delta_LH: ArrayLike,
    significant_LH: ArrayLike,
    *,
    title: str,
    count: int,
    smallest_effect: float,
    rate: float = 0.05,
    unit: str = POINTS,
) -> Figure:
    """A cell for each head; those whose change is not significant are pale with small grey numbers.

    Args:
        delta_LH: Changes of the score, negative for harm; NaN where a head was not tried.
        significant_LH: Which changes are significant after correction, bool.
        title: What the figure shows.
        count: Number of examples.
        smallest_effect: The smallest change that could have been found, in the unit of ``delta_LH``.
        rate: False discovery rate of ``significant_LH``.
        unit: What the colour bar measures; values are shown times 100.
    """
    point_LH = 100 * np.asarray(delta_LH, np.float64)
    certain_LH = np.asarray(significant_LH, bool) & np.isfinite(point_LH)
    layers, heads = point_LH.shape
    cell = min(0.75, (PAGE_WIDTH - 1.4) / heads)
    with house_style():
        figure = new_figure(max(5.2, cell * heads + 1.4), max(0.28, min(0.5, 4.8 / layers)) * layers + 1.8, title)
        axes = figure.add_subplot()
        norm, colours = scale(np.where(certain_LH, point_LH, 0.0) if certain_LH.any() else point_LH, None, signed=True)
        shown_LH = np.ma.masked_where(~certain_LH, point_LH)
        axes.set_facecolor(_PALE)
        mesh = axes.pcolormesh(shown_LH, norm=norm, cmap=colours, edgecolors="white", linewidth=0.5)
        axes.set_xlim(0, heads)
        axes.set_ylim(layers, 0)
        _draw_cells(axes, point_LH, certain_LH, norm, mpl.colormaps[colours], cell)
        axes.set_yticks(np.arange(layers) + 0.5, [str(layer) for layer in range(layers)])
        axes.set_xticks(np.arange(heads) + 0.5, [str(head) for head in range(heads)])
        axes.set_xlabel("head")
        axes.set_ylabel("layer (0 next to the input)")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = figure.colorbar(mesh, ax=axes, aspect=25, pad=0.02)
        bar.set_label(unit)
        bar.outline.set_linewidth(0.4)
        footnote(
            figure,
            f"pale: not distinguishable from no change (false discovery rate {rate:.0%}); {_reach(smallest_effect)}; "
            f"{sample_size(count)}; layers and heads count from 0",
        )
    return figure


def _reach(smallest_effect: float) -> str:
    return f"smallest change that this set could have shown: {number(100 * smallest_effect, 1)} points"


def _draw_cells(
    axes: Axes,
    point_LH: NDArray[np.float64],
    certain_LH: NDArray[np.bool_],
    norm: mpl.colors.Normalize,
    colours: mpl.colors.Colormap,
    cell: float,
) -> None:
    for (layer, head), value in np.ndenumerate(point_LH):
        if not np.isfinite(value):
            axes.add_patch(
                Rectangle((head, layer), 1, 1, facecolor="white", edgecolor=QUIET, hatch="////", linewidth=0)
            )
            continue
        certain = bool(certain_LH[layer, head])
        if certain:
            axes.add_patch(Rectangle((head + 0.03, layer + 0.03), 0.94, 0.94, fill=False, edgecolor="black"))
        text = number(value, 2 if certain and abs(value) < 0.1 else 1)
        # Where numbers would touch, what is significant loses its decimals first; its colour and outline stay.
        if certain and not _fits(text, cell, certain):
            text = number(value, 0)
        if not _fits(text, cell, certain):
            continue
        axes.text(
            head + 0.5,
            layer + 0.5,
            text,
            ha="center",
            va="center",
            fontsize=FONT,
            fontweight="bold" if certain else "normal",
            color=ink_on(colours(norm(value))) if certain else QUIET,
        )


def _fits(text: str, cell: float, bold: bool) -> bool:
    """Whether a text fits a cell of that width in inches; DejaVu Sans's digits are 0.64 of the font size wide."""
    return len(text) * FONT * (0.75 if bold else 0.64) + 2 <= cell * 72


def sorted_effects(
    names: Sequence[str],
    delta_V: ArrayLike,
    low_V: ArrayLike,
    high_V: ArrayLike,
    significant_V: ArrayLike,
    *,
    title: str,
    count: int,
    level: float = 0.95,
) -> Figure:
    """Every variant from most harmful to most helpful, with its interval; significant ones dark, and the ends named.

    Args:
        names: What was disabled.
        delta_V, low_V, high_V: Change of the score and its confidence limits; a change of NaN is left out and counted
            under the figure.
        significant_V: Which changes are significant, bool.
        title: What the figure shows.
        count: Number of examples.
        level: Of the limits.

    Raises:
        ValueError: If there is no variant.
    """
    delta_V, low_V, high_V = (100 * np.asarray(each, np.float64) for each in (delta_V, low_V, high_V))
    certain_V = np.asarray(significant_V, bool)
    if not len(names):
        raise ValueError("A figure of effects needs at least one variant")
    # NaN sorts last, which would make an undefined score the best one.
    order = np.argsort(delta_V, kind="stable")[: np.isfinite(delta_V).sum()]
    sorted_names = [names[i] for i in order]
    few = len(names) <= 40
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.2 if not few else max(2.4, 0.2 * len(names) + 1.6), title)
        axes = figure.add_subplot()
        if few:
            _few_effects(axes, sorted_names, delta_V[order], low_V[order], high_V[order], certain_V[order])
        else:
            _many_effects(axes, sorted_names, delta_V[order], low_V[order], high_V[order], certain_V[order])
        footnote(
            figure,
            f"bars: {level:.0%} bootstrap interval; dark and *: significant after correction; {sample_size(count)}"
            f"{undefined(delta_V)}",
        )
    return figure


def undefined(delta_V: NDArray[np.float64]) -> str:
    """What a footnote says of variants whose score does not exist; empty if there is none."""
    missing = int((~np.isfinite(delta_V)).sum())
    return f"; not drawn: {missing} without a defined score" if missing else ""


def _few_effects(
    axes: Axes,
    names: Sequence[str],
    delta_V: NDArray[np.float64],
    low_V: NDArray[np.float64],
    high_V: NDArray[np.float64],
    certain_V: NDArray[np.bool_],
) -> None:
    for place, certain in enumerate(certain_V):
        colour = ACCENTS[0] if certain else "#b4b4b4"
        axes.plot([low_V[place], high_V[place]], [place, place], color=colour, linewidth=1.6)
        axes.plot(delta_V[place], place, "o", color=colour, markersize=5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.set_xlabel(POINTS)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)


def _many_effects(
    axes: Axes,
    names: Sequence[str],
    delta_V: NDArray[np.float64],
    low_V: NDArray[np.float64],
    high_V: NDArray[np.float64],
    certain_V: NDArray[np.bool_],
) -> None:
    for chosen, colour, width in ((~certain_V, "#c4c4c4", 0.8), (certain_V, ACCENTS[0], 1.4)):
        places = np.flatnonzero(chosen)
        axes.vlines(places, low_V[places], high_V[places], color=colour, linewidth=width)
        axes.plot(places, delta_V[places], "o", color=colour, markersize=3)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks([])
    axes.set_xlabel(f"{len(names)} variants, most harmful first")
    axes.set_ylabel(POINTS)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.margins(x=0.02)
    _list_names(axes, names, delta_V, certain_V)


def _list_names(axes: Axes, names: Sequence[str], delta_V: NDArray[np.float64], certain_V: NDArray[np.bool_]) -> None:
    """Names beside the panel, where they cannot lie on the data."""
    for start, alignment, heading, chosen in (
        (1.0, "top", "most harmful", range(min(_NAMED, len(names)))),
        (0.0, "bottom", "most helpful", range(max(0, len(names) - _NAMED), len(names))),
    ):
        lines = [f"{names[i]} {number(delta_V[i], 1)}{'*' if certain_V[i] else ''}" for i in chosen]
        text = "\n".join([heading, *lines])
        axes.text(1.02, start, text, transform=axes.transAxes, va=alignment, fontsize=8.0)
