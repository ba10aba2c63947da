"""Heatmap with one number for each attention head."""

from collections.abc import Collection, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.cells import mark_heads
from bertsecrets.results.figures.style import (
    PAGE_WIDTH,
    finite_of,
    footnote,
    house_style,
    ink_on,
    new_figure,
    sample_size,
    scale,
    sentence,
)
from bertsecrets.results.formatting import number

_FONT = 8.0
_MARGIN = 1.4
"""Width of the labels and the colour bar, in inches."""


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
        value_LH: The numbers; a cell of NaN is hatched, and nothing but NaN gives a sentence.
        title: What the figure shows.
        unit: Label of the colour bar, with its unit.
        count: Number of examples, one for all or ``[layers, heads]``.
        stderr_LH: Standard errors, summarised under the figure.
        limits: Ends of the colour scale; made symmetric if zero lies between them. None for the range of the values.
        marked: Cells ``(layer, head)`` to outline.
        whole_layers: Whether the single column is that of whole layers rather than of head 0.
        rows: Names of the rows if they are not layers.
    """
    values_LH = np.asarray(value_LH, np.float64)
    if not np.isfinite(values_LH).any():
        return sentence(title, f"No head has a value; {sample_size(count)}")
    num_layers, num_heads = values_LH.shape
    cell_width = min(0.75, (PAGE_WIDTH - _MARGIN) / num_heads)
    cell_height = min(0.5, max(0.26, 4.8 / num_layers))
    width = max(4.2, cell_width * num_heads + _MARGIN)
    with house_style():
        figure = new_figure(width, cell_height * num_layers + 1.5, title)
        axes = figure.add_subplot()
        norm, colours = scale(values_LH, limits)
        mesh = axes.pcolormesh(values_LH, norm=norm, cmap=colours, edgecolors="white", linewidth=0.5)
        axes.invert_yaxis()
        if rows is None and not whole_layers:
            mark_heads(axes, num_layers, num_heads)
        _label_axes(axes, num_layers, num_heads, whole_layers)
        if rows is not None:
            axes.set_yticks(np.arange(num_layers) + 0.5, list(rows))
            axes.set_ylabel("")
        notes = [sample_size(count)]
        if _print_values(axes, values_LH, norm, mpl.colormaps[colours], cell_width):
            notes.append("layers and heads count from 0" if rows is None else "heads count from 0")
        notes += _hatch_missing(axes, values_LH)
        notes += _outline(axes, marked or ())
        if stderr_LH is not None:
            notes += _spread(stderr_LH)
        bar = figure.colorbar(mesh, ax=axes, extend=_extend(values_LH, norm.vmin, norm.vmax), aspect=25, pad=0.02)
        bar.set_label(unit)
        bar.outline.set_linewidth(0.4)
        footnote(figure, "; ".join(notes))
    return figure


def _label_axes(axes: Axes, num_layers: int, num_heads: int, whole_layers: bool) -> None:
    axes.set_yticks(np.arange(num_layers) + 0.5, [str(layer) for layer in range(num_layers)])
    axes.set_ylabel("layer (0 at the top, next to the input)" if num_layers > 4 else "layer (0 = input)")
    axes.set_xticks(np.arange(num_heads) + 0.5, ["all heads"] if whole_layers else [str(h) for h in range(num_heads)])
    axes.set_xlabel("" if whole_layers else "head")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _print_values(
    axes: Axes, values_LH: NDArray[np.float64], norm: mpl.colors.Normalize, colours: mpl.colors.Colormap, width: float
) -> bool:
    finite = finite_of(values_LH)
    if not finite.size:
        return False
    for digits in (3, 2) if np.abs(finite).max() < 10 else (1, 0):
        texts = [number(value, digits) for value in finite]
        # A digit of DejaVu Sans is 0.64 of the font size wide; two points keep neighbours apart.
        if max(map(len, texts)) * _FONT * 0.64 + 2 <= width * 72:
            break
    else:
        return False
    for (layer, head), value in np.ndenumerate(values_LH):
        if np.isfinite(value):
            ink = ink_on(colours(norm(value)))
            axes.text(
                head + 0.5, layer + 0.5, number(value, digits), ha="center", va="center", fontsize=_FONT, color=ink
            )
    return True


def _hatch_missing(axes: Axes, values_LH: NDArray[np.float64]) -> list[str]:
    missing = np.argwhere(~np.isfinite(values_LH))
    for layer, head in missing:
        axes.add_patch(
            Rectangle((head, layer), 1, 1, facecolor="#f2f2f2", edgecolor="#8a8a8a", hatch="////", linewidth=0)
        )
    return ["hatched: no value"] if len(missing) else []


def _outline(axes: Axes, marked: Collection[tuple[int, int]]) -> list[str]:
    for layer, head in marked:
        for colour, width in (("white", 3.5), ("black", 1.8)):
            axes.add_patch(
                Rectangle((head + 0.04, layer + 0.04), 0.92, 0.92, fill=False, edgecolor=colour, linewidth=width)
            )
    return ["outlined: heads singled out in the text"] if marked else []


def _spread(stderr_LH: ArrayLike) -> list[str]:
    finite = finite_of(stderr_LH)
    if not finite.size:
        return []
    return [f"standard error: median {np.median(finite):.2g}, largest {finite.max():.2g}"]


def _extend(values_LH: NDArray[np.float64], low: float | None, high: float | None) -> str:
    finite = finite_of(values_LH)
    below = bool(finite.size and low is not None and finite.min() < low)
    above = bool(finite.size and high is not None and finite.max() > high)
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]
