"""Heatmaps of heads, all drawn by :func:`draw_grid`."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from bertsecrets.present.figures.style import (
    PAGE_WIDTH,
    QUIET,
    SMALL,
    colour_bar,
    effect_scale,
    finite_of,
    footnote,
    house_style,
    ink_on,
    new_figure,
    panels_across,
    sample_size,
    scale,
    sentence,
    titled_panels,
)
from bertsecrets.results.formatting import number

NO_VALUE: dict[str, Any] = {"facecolor": "#f2f2f2", "edgecolor": "#8a8a8a", "hatch": "////", "linewidth": 0}
"""Look of a cell without a value."""

_PALE = "#f4f4f4"
_MARGIN = 1.4
"""Width of the labels and the colour bar, in inches."""

_grids_of_heads: WeakKeyDictionary[Axes, tuple[int, int]] = WeakKeyDictionary()


@dataclass(frozen=True)
class HeadCells:
    """Position of a grid of heads in a figure: one row of equal cells per layer, layer 0 at the top.

    Args:
        left, top, width, height: Fractions of the figure's width and height, from its top left corner.
        layers, heads: Number of rows and of columns.
    """

    left: float
    top: float
    width: float
    height: float
    layers: int
    heads: int


def head_cells(figure: Figure) -> list[HeadCells]:
    """The grids of heads in a drawn figure (its layout is only known then), so that a page can open the head under the
    pointer.
    """
    boxes = [(axes.get_position(), *_grids_of_heads[axes]) for axes in figure.axes if axes in _grids_of_heads]
    return [HeadCells(box.x0, 1 - box.y1, box.width, box.height, layers, heads) for box, layers, heads in boxes]


def draw_grid(
    axes: Axes,
    value_RC: ArrayLike,
    norm: Normalize,
    colours: str | Colormap,
    *,
    coloured_RC: ArrayLike | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    every: int = 1,
) -> QuadMesh:
    """Draw a cell for each value, row 0 at the top, labelled at the cells' centres; NaN is hatched.

    Args:
        axes: Where to draw.
        value_RC: The numbers, ``[rows, columns]``.
        norm, colours: The colour scale.
        coloured_RC: Which values to colour, bool; the others show the background. None for all.
        rows, columns: Names; None for layers and for heads, counted from 0.
        every: Distance between numbered layers and heads.
    """
    values_RC = np.asarray(value_RC, np.float64)
    height, width = values_RC.shape
    missing_RC = ~np.isfinite(values_RC)
    bare_RC = missing_RC if coloured_RC is None else missing_RC | ~np.asarray(coloured_RC, bool)
    mesh = axes.pcolormesh(
        np.ma.masked_where(bare_RC, values_RC), norm=norm, cmap=colours, edgecolors="white", linewidth=0.5
    )
    for row, column in np.argwhere(missing_RC):
        axes.add_patch(Rectangle((column, row), 1, 1, **NO_VALUE))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    for set_ticks, names, length in ((axes.set_xticks, columns, width), (axes.set_yticks, rows, height)):
        step = every if names is None else 1
        labels = [str(index) for index in range(length)] if names is None else list(names)
        set_ticks(np.arange(0, length, step) + 0.5, labels[::step])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if rows is None and columns is None:
        _grids_of_heads[axes] = height, width
    return mesh


def write_in_cells(
    axes: Axes, mesh: QuadMesh, texts: Mapping[tuple[int, int], str], bold: Collection[tuple[int, int]] = ()
) -> None:
    """Print texts into cells ``(row, column)``, black or white on a colour, grey on the background."""
    value_N: NDArray[np.float64] = np.ma.asarray(mesh.get_array()).ravel()
    colour_N4, bare_N = mesh.to_rgba(value_N), np.ma.getmaskarray(value_N)
    width = int(axes.get_xlim()[1])
    for (row, column), text in texts.items():
        cell = row * width + column
        axes.text(
            column + 0.5,
            row + 0.5,
            text,
            ha="center",
            va="center",
            fontsize=SMALL,
            fontweight="bold" if (row, column) in bold else "normal",
            color=QUIET if bare_N[cell] else ink_on(tuple(colour_N4[cell])),
        )


def fits(text: str, width: float, *, bold: bool = False) -> bool:
    """Whether a text fits a cell of this width in inches; digits of DejaVu Sans are 0.64 of the font size wide."""
    # Two points keep neighbours apart.
    return len(text) * SMALL * (0.75 if bold else 0.64) + 2 <= width * 72


def one_grid(
    title: str, layers: int, heads: int, *, least_width: float = 4.2, extra: float = 1.5
) -> tuple[Figure, Axes, float]:
    """A figure for one grid of heads, its axes, and the width of a cell in inches.

    Args:
        title: What the figure shows.
        layers, heads: Size of the grid.
        least_width: Width of the figure that its notes need, in inches.
        extra: Height of the title, the labels and the notes, in inches.
    """
    cell_width = min(0.75, (PAGE_WIDTH - _MARGIN) / heads)
    cell_height = min(0.5, max(0.26, 4.8 / layers))
    figure = new_figure(max(least_width, cell_width * heads + _MARGIN), cell_height * layers + extra, title)
    axes = figure.add_subplot()
    axes.set_xlabel("head")
    axes.set_ylabel("layer (0 at the top, next to the input)" if layers > 4 else "layer (0 = input)")
    return figure, axes, cell_width


def heatmap(
    value_LH: ArrayLike,
    *,
    title: str,
    unit: str,
    count: ArrayLike,
    stderr_LH: ArrayLike | None = None,
    limits: tuple[float, float] | None = None,
    marked: Collection[tuple[int, int]] | None = None,
    whole_layers: bool = False,
    rows: Sequence[str] | None = None,
) -> Figure:
    """A heatmap of ``[layers, heads]`` values, layer 0 in the top row, with values printed where they fit.

    Args:
        value_LH: The numbers; NaN cells are hatched, and only NaN gives a sentence.
        title: What the figure shows.
        unit: Label of the colour bar, with its unit.
        count: Number of examples, one for all or ``[layers, heads]``.
        stderr_LH: Standard errors, summarised under the figure.
        limits: Ends of the colour scale; made symmetric if zero is between them. None for the range of the values.
        marked: Cells ``(layer, head)`` to outline.
        whole_layers: Whether the single column shows whole layers rather than head 0.
        rows: Names of the rows if they are not layers.
    """
    values_LH = np.asarray(value_LH, np.float64)
    finite = finite_of(values_LH)
    if not finite.size:
        return sentence(title, f"No head has a value; {sample_size(count)}")
    layers, heads = values_LH.shape
    with house_style():
        figure, axes, cell_width = one_grid(title, layers, heads)
        norm, colours = scale(values_LH, limits)
        mesh = draw_grid(axes, values_LH, norm, colours, rows=rows, columns=["all heads"] if whole_layers else None)
        if whole_layers:
            axes.set_xlabel("")
        if rows is not None:
            axes.set_ylabel("")
        notes = [sample_size(count)]
        # Fewer decimals if more would touch; no numbers if even whole ones would.
        for digits in (3, 2) if np.abs(finite).max() < 10 else (1, 0):
            texts = {cell: number(value, digits) for cell, value in np.ndenumerate(values_LH) if np.isfinite(value)}
            if all(fits(text, cell_width) for text in texts.values()):
                write_in_cells(axes, mesh, texts)
                notes.append("layers and heads count from 0" if rows is None else "heads count from 0")
                break
        if finite.size < values_LH.size:
            notes.append("hatched: no value")
        if marked:
            outline(axes, marked)
            notes.append("outlined: heads mentioned in the text")
        errors = finite_of([] if stderr_LH is None else stderr_LH)
        if errors.size:
            notes.append(f"standard error: median {np.median(errors):.2g}, largest {errors.max():.2g}")
        colour_bar(figure, mesh, axes, unit, extend=_beyond(finite, norm))
        footnote(figure, "; ".join(notes))
    return figure


def outline(axes: Axes, cells: Collection[tuple[int, int]]) -> None:
    """Frame cells ``(row, column)`` in black with a white rim, visible on any colour."""
    for row, column in cells:
        for colour, width in (("white", 3.5), ("black", 1.8)):
            axes.add_patch(
                Rectangle((column + 0.04, row + 0.04), 0.92, 0.92, fill=False, edgecolor=colour, linewidth=width)
            )


def _beyond(values: NDArray[np.float64], norm: Normalize) -> str:
    below = norm.vmin is not None and values.min() < norm.vmin
    above = norm.vmax is not None and values.max() > norm.vmax
    return "both" if below and above else "min" if below else "max" if above else "neither"


@dataclass(frozen=True)
class HeadPanel:
    """One heatmap.

    Args:
        title: Title of the panel.
        value_LH: ``[layers, heads]``; NaN is hatched, and an all-NaN panel becomes a sentence under the figure.
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
    whole_layers: bool = False,
) -> Figure:
    """Small heatmaps of ``[layers, heads]`` values, layer 0 in the top row, all on the same colour scale.

    Args:
        panels: At least one, all of one size.
        title: What the figure shows.
        unit: Label of the colour bar.
        note: Footnote: sample sizes, and the meaning of pale cells.
        limits: Ends of the scale; None for the range of all coloured values.
        signed: Whether zero is the middle of the scale; None decides by the values.
        effects: Whether values are changes of a score, whose losses are drawn from white to dark red.
        ticks: Values to label on the colour bar, with their labels; values outside the scale are omitted.
        whole_layers: Whether the single column shows whole layers rather than head 0.
    """
    empty = [panel.title for panel in panels if not np.isfinite(np.asarray(panel.value_LH, np.float64)).any()]
    if len(empty) == len(panels):
        return sentence(title, f"No head has a value: {', '.join(empty)}; {note}")
    if empty:
        panels = [panel for panel in panels if panel.title not in empty]
        note = f"{note}; no head has a value: {', '.join(empty)}"
    values = [np.asarray(panel.value_LH, np.float64) for panel in panels]
    coloured = [
        np.isfinite(value_LH) & (True if panel.certain_LH is None else np.asarray(panel.certain_LH, bool))
        for panel, value_LH in zip(panels, values, strict=True)
    ]
    scaled = np.concatenate([value_LH[coloured_LH] for value_LH, coloured_LH in zip(values, coloured, strict=True)])
    if not scaled.size:
        scaled = np.concatenate([value_LH.ravel() for value_LH in values])
    columns = panels_across(len(panels))
    layers, heads = values[0].shape
    side = (PAGE_WIDTH - 1.2) / columns
    # An 8 pt letter is about 0.068 inches wide.
    titles = [textwrap.fill(panel.title, max(12, int(side / 0.068))) for panel in panels]
    lines = max(text.count("\n") + 1 for text in titles)
    height = max(1.1, min(2.4, side / heads * layers)) + 0.25 + 0.17 * lines
    every = 1 if max(layers, heads) <= 8 else 2 if max(layers, heads) <= 12 else 4
    names = ["all heads"] if whole_layers else None
    with house_style():
        figure, axes_N = titled_panels(titles, columns, (max(4.2, side * columns + 1.2), height), title, margin=1.3)
        norm, colours = effect_scale(scaled) if effects else scale(scaled, limits, signed=signed)
        for index, (axes, value_LH, coloured_LH) in enumerate(zip(axes_N, values, coloured, strict=True)):
            axes.set_facecolor(_PALE)
            draw_grid(axes, value_LH, norm, colours, coloured_RC=coloured_LH, every=every, columns=names)
            if not coloured_LH.any():
                # So that the panel does not look as if it was not drawn.
                middle = heads / 2, layers / 2
                axes.text(*middle, "no head", ha="center", va="center", fontsize=SMALL, color=QUIET)
            lowest, leftmost = index + columns >= len(panels), index % columns == 0
            axes.tick_params(labelbottom=lowest, labelleft=leftmost)
            axes.set_xlabel("head" if lowest and not whole_layers else "")
            axes.set_ylabel("layer" if leftmost else "")
        bar = colour_bar(figure, ScalarMappable(norm, colours), axes_N, unit, aspect=30)
        if ticks is not None:
            low, high = bar.mappable.get_clim()
            inside = [value for value in ticks if low <= value <= high]
            bar.set_ticks(inside, labels=[ticks[value] for value in inside])
            bar.minorticks_off()
        footnote(figure, f"{note}; layers and heads count from 0, layer 0 at the top, next to the input")
    return figure
