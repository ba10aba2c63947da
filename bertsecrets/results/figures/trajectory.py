"""One number per head over the course of fine-tuning."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    finite_of,
    footnote,
    house_style,
    layer_bar,
    layer_colours,
    new_figure,
    sample_size,
    step_axis,
)
from bertsecrets.results.formatting import head_label

_FEW_STEPS = 25
"""Up to this many steps, each one gets a dot."""


def trajectory(
    steps: Sequence[int],
    value_SLH: ArrayLike,
    *,
    title: str,
    unit: str,
    count: ArrayLike,
    highlight: int = 5,
    named: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """Two panels over training steps: the mean of each layer, and every head with the most changed ones named.

    Args:
        steps: The S training steps, ascending.
        value_SLH: Values ``[steps, layers, heads]``; NaN leaves a gap.
        title: What the figure shows.
        unit: Label of the y axis, with its unit.
        count: Number of examples, one for all or any shape.
        highlight: Number of heads to name; with a single step, those furthest from the median head.
        named: The heads ``(layer, head)`` to name, for a page that ranks heads elsewhere; None to choose them here.

    Raises:
        ValueError: If ``steps`` and ``value_SLH`` differ in length or are empty.
    """
    values_SLH = np.asarray(value_SLH, np.float64)
    if not len(steps) or values_SLH.ndim != 3 or len(steps) != values_SLH.shape[0]:
        raise ValueError(f"{len(steps)} steps do not fit values of shape {list(values_SLH.shape)}")
    with house_style():
        figure = new_figure(PAGE_WIDTH, 6.2, title)
        top, bottom = figure.subplots(2, 1, sharex=True)
        _draw_layers(top, steps, values_SLH)
        top.set_title("mean over the heads of each layer; band: ± one standard error", loc="left", fontsize=9.0)
        layer_bar(figure, [top], values_SLH.shape[1])
        chosen = most_changed(values_SLH, highlight) if named is None else list(named)
        _draw_heads(bottom, steps, values_SLH, chosen)
        heads_title = _heads_title(len(steps), len(chosen)) if named is None else _named_title(len(chosen))
        bottom.set_title(heads_title, loc="left", fontsize=9.0)
        for axes in (top, bottom):
            axes.set_ylabel(unit)
            axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        step_axis(bottom, steps)
        footnote(figure, f"{sample_size(count)}; layers and heads count from 0, layer 0 next to the input")
    return figure


def most_changed(value_SLH: NDArray[np.float64], limit: int) -> list[tuple[int, int]]:
    """Heads ``(layer, head)`` by how far their value moved between their first and last step, furthest first.

    With one step, the heads furthest from the median head. Heads without a value are left out.
    """
    if value_SLH.shape[0] == 1:
        finite = finite_of(value_SLH)
        change_LH = np.abs(value_SLH[0] - (np.median(finite) if finite.size else np.nan))
    else:
        change_LH = np.abs(_last_finite(value_SLH) - _last_finite(value_SLH[::-1]))
    order = np.argsort(-np.nan_to_num(change_LH, nan=-1.0), axis=None, kind="stable")
    layers, heads = np.unravel_index(order, change_LH.shape)
    pairs = zip(layers.tolist(), heads.tolist(), strict=True)
    return [pair for pair in pairs if np.isfinite(change_LH[pair])][:limit]


def _last_finite(value_SLH: NDArray[np.float64]) -> NDArray[np.float64]:
    last_LH = np.full(value_SLH.shape[1:], np.nan)
    for value_LH in value_SLH:
        last_LH = np.where(np.isfinite(value_LH), value_LH, last_LH)
    return last_LH


def _heads_title(num_steps: int, num_chosen: int) -> str:
    which = "furthest from the median head" if num_steps == 1 else "that changed most"
    return f"every head (grey); the {num_chosen} {which} in colour" if num_chosen else "every head (grey)"


def _named_title(num_chosen: int) -> str:
    return f"every head (grey); the first {num_chosen} of the list in colour" if num_chosen else "every head (grey)"


def _draw_layers(axes: Axes, steps: Sequence[int], value_SLH: NDArray[np.float64]) -> None:
    marker = "o" if len(steps) <= _FEW_STEPS else ""
    for layer, colour in enumerate(layer_colours(value_SLH.shape[1])[1]):
        present_SH = np.isfinite(value_SLH[:, layer])
        heads_S = present_SH.sum(1)
        kept_SH = np.where(present_SH, value_SLH[:, layer], 0.0)
        mean_S = np.where(heads_S > 0, kept_SH.sum(1) / np.maximum(heads_S, 1), np.nan)
        squares_S = (np.where(present_SH, value_SLH[:, layer] - mean_S[:, None], 0.0) ** 2).sum(1)
        error_S = np.sqrt(squares_S / np.maximum(heads_S - 1, 1) / np.maximum(heads_S, 1))
        if len(steps) == 1:
            axes.errorbar(
                steps, mean_S, error_S, color=colour, fmt="o", markersize=4, capsize=2, label=f"layer {layer}"
            )
        else:
            axes.fill_between(steps, mean_S - error_S, mean_S + error_S, color=colour, alpha=0.1, linewidth=0)
            axes.plot(steps, mean_S, color=colour, marker=marker, markersize=3, label=f"layer {layer}")


def _draw_heads(
    axes: Axes, steps: Sequence[int], value_SLH: NDArray[np.float64], chosen: Sequence[tuple[int, int]]
) -> None:
    marker = "o" if len(steps) <= _FEW_STEPS else ""
    flat_SN = value_SLH.reshape(len(steps), -1)
    axes.plot(steps, flat_SN, color="#9a9a9a", linewidth=0.5, alpha=0.45, marker=marker, markersize=1.5, zorder=1)
    last_LH = _last_finite(value_SLH)
    low, high = axes.get_ylim()
    heights = spread_apart([float(last_LH[pair]) for pair in chosen], (high - low) * 0.075)
    for place, ((layer, head), height) in enumerate(zip(chosen, heights, strict=True)):
        colour = ACCENTS[place % len(ACCENTS)]
        name = head_label(layer, head)
        axes.plot(steps, value_SLH[:, layer, head], color=colour, marker=marker, markersize=3, zorder=3, label=name)
        axes.annotate(
            name,
            (steps[-1], last_LH[layer, head]),
            xytext=(1.03, height),
            textcoords=axes.get_yaxis_transform(),
            color=colour if colour != "#E69F00" else "#8a5f00",
            fontsize=8.0,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2},
        )


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights apart to at least ``gap`` in one sweep, keeping their mean; returned in the order of the input."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = list(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    drift = sum(moved) / len(moved) - sum(heights) / len(heights) if moved else 0.0
    return [height - drift for height in moved]
