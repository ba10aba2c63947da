"""Gradient norms and sizes of updates by layer, and gradient norms against the drift of attention."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    footnote,
    house_style,
    layer_bar,
    layer_colours,
    new_figure,
    sample_size,
    step_axis,
)
from bertsecrets.results.formatting import number
from bertsecrets.statistics.ranks import spearman


def gradient_flow(
    steps: Sequence[int], norm_SL: ArrayLike, ratio_SL: ArrayLike, *, title: str, batch_size: int
) -> Figure:
    """Gradient norm and update-to-weight ratio over training steps, on log scales, with a line for each layer.

    Args:
        steps: The S training steps, ascending.
        norm_SL: L2 norm of each layer's gradient, ``[steps, layers]``; zero and NaN (a frozen layer) draw no line.
        ratio_SL: L2 norm of each layer's update divided by that of its weights, ``[steps, layers]``.
        title: What the figure shows.
        batch_size: Examples in each step.

    Raises:
        ValueError: If the shapes do not fit together.
    """
    norms_SL, ratios_SL = np.asarray(norm_SL, np.float64), np.asarray(ratio_SL, np.float64)
    if norms_SL.ndim != 2 or norms_SL.shape != ratios_SL.shape or norms_SL.shape[0] != len(steps):
        shapes = f"{list(norms_SL.shape)} and {list(ratios_SL.shape)}"
        raise ValueError(f"{len(steps)} steps do not fit norms and ratios of shapes {shapes}")
    with house_style():
        figure = new_figure(PAGE_WIDTH, 5.8, title)
        top, bottom = figure.subplots(2, 1, sharex=True)
        notes = [f"each step sees {sample_size(batch_size)}", "layer 0 next to the input"]
        for axes, value_SL, label in (
            (top, norms_SL, "gradient norm (L2)"),
            (bottom, ratios_SL, "update norm ÷ weight norm"),
        ):
            silent = _draw_lines(axes, steps, value_SL)
            axes.set_ylabel(label)
            if silent:
                notes.append(f"no {label.split(' norm')[0]} in layers {', '.join(map(str, silent))}")
        if window(len(steps)) > 1:
            notes.append(f"strong lines: running median of {window(len(steps))} recorded steps")
        step_axis(bottom, steps)
        layer_bar(figure, [top, bottom], norms_SL.shape[1])
        footnote(figure, "; ".join(notes))
    return figure


def gradient_against_drift(norm_L: ArrayLike, drift_L: ArrayLike, *, title: str, unit: str, count: ArrayLike) -> Figure:
    """Gradient norm (log scale) against drift of attention, a point for each layer, with Spearman's rank correlation.

    Args:
        norm_L: Gradient norm of each layer; layers where it is zero or NaN are left out.
        drift_L: Drift of each layer's attention.
        title: What the figure shows.
        unit: Label of the drift axis, with its unit.
        count: Number of examples of the drift, one for all or one for each layer.

    Raises:
        ValueError: If the two differ in length.
    """
    norms_L, drifts_L = np.asarray(norm_L, np.float64), np.asarray(drift_L, np.float64)
    if norms_L.ndim != 1 or norms_L.shape != drifts_L.shape:
        raise ValueError(f"Gradient norms of shape {list(norms_L.shape)}, drifts of shape {list(drifts_L.shape)}")
    drawn_L = np.isfinite(norms_L) & np.isfinite(drifts_L) & (norms_L > 0)
    layers = np.flatnonzero(drawn_L)
    rho = spearman(norms_L[drawn_L], drifts_L[drawn_L])
    with house_style():
        figure = new_figure(5.0, 4.4, title)
        axes = figure.add_subplot()
        axes.scatter(norms_L[drawn_L], drifts_L[drawn_L], s=28, color=ACCENTS[0], edgecolors="white", linewidths=0.6)
        for layer in layers:
            axes.annotate(
                str(layer),
                (norms_L[layer], drifts_L[layer]),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=8.0,
            )
        _log_axis(axes, "x")
        axes.margins(0.1)
        axes.set_xlabel("gradient norm (L2), mean over training")
        axes.set_ylabel(unit)
        axes.grid(linewidth=0.4, alpha=0.5)
        correlation = f"Spearman ρ = {number(rho, 2)}" if np.isfinite(rho) else "Spearman ρ undefined"
        footnote(figure, f"{correlation} over {len(layers)} layers; {sample_size(count)}; numbers name layers, from 0")
    return figure


def window(num_steps: int) -> int:
    """Width of the running median in steps: odd, about a fifteenth of all steps."""
    return 2 * (num_steps // 30) + 1


def running_median(value_S: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Median of the ``width`` (odd) values around each one, fewer at the ends; NaN without any finite value."""
    padded = np.pad(value_S, width // 2, constant_values=np.nan)
    present = [near[np.isfinite(near)] for near in np.lib.stride_tricks.sliding_window_view(padded, width)]
    return np.array([np.median(near) if near.size else np.nan for near in present])


def _draw_lines(axes: Axes, steps: Sequence[int], value_SL: NDArray[np.float64]) -> list[int]:
    positive_SL = np.where(np.isfinite(value_SL) & (value_SL > 0), value_SL, np.nan)
    silent = [layer for layer in range(value_SL.shape[1]) if np.isnan(positive_SL[:, layer]).all()]
    marker = "o" if len(steps) == 1 else ""
    for layer, colour in enumerate(layer_colours(value_SL.shape[1])[1]):
        if layer not in silent:
            axes.plot(steps, positive_SL[:, layer], color=colour, linewidth=0.5, alpha=0.3)
            smooth_S = running_median(positive_SL[:, layer], window(len(steps)))
            axes.plot(steps, smooth_S, color=colour, marker=marker, label=f"layer {layer}")
    if len(silent) < value_SL.shape[1]:
        _log_axis(axes, "y")
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    return silent


def _log_axis(axes: Axes, which: str) -> None:
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    # Within two decades, powers of ten would give an axis one label at most.
    fine = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high / low < 10 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(10, subs=fine if high / low < 100 else (1.0,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
