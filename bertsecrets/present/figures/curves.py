"""Numbers during training: a measure of every head, and the gradients of every layer."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    footnote,
    house_style,
    layer_bar,
    layer_colours,
    log_axis,
    new_figure,
    sample_size,
    step_axis,
)
from bertsecrets.results.formatting import head_label

_FEW_STEPS = 25
"""Up to this many steps, each step has a dot."""


def trajectory(
    steps: Sequence[int],
    value_SLH: ArrayLike,
    *,
    title: str,
    unit: str,
    count: ArrayLike,
    named: Sequence[tuple[int, int]],
) -> Figure:
    """Two panels over training steps: the mean of each layer, and every head, some of them labelled.

    Args:
        steps: The S training steps, ascending.
        value_SLH: Values ``[steps, layers, heads]``; NaN leaves a gap.
        title: Title of the figure.
        unit: Label of the y axis, with its unit.
        count: Number of examples, one for all or any shape.
        named: The heads ``(layer, head)`` to name: the first of the page's list.
    """
    values_SLH = np.asarray(value_SLH, np.float64)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 6.2, title)
        top, bottom = figure.subplots(2, 1, sharex=True)
        _draw_layers(top, steps, values_SLH)
        top.set_title("mean over the heads of each layer; band: ± one standard error", loc="left", fontsize=9.0)
        layer_bar(figure, [top], values_SLH.shape[1])
        _draw_heads(bottom, steps, values_SLH, named)
        listed = f"; the first {len(named)} of the list in colour" if named else ""
        bottom.set_title(f"every head (grey){listed}", loc="left", fontsize=9.0)
        for axes in (top, bottom):
            axes.set_ylabel(unit)
            axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        step_axis(bottom, steps)
        footnote(figure, f"{sample_size(count)}; layers and heads count from 0, layer 0 next to the input")
    return figure


def _draw_layers(axes: Axes, steps: Sequence[int], value_SLH: NDArray[np.float64]) -> None:
    marker = "o" if len(steps) <= _FEW_STEPS else ""
    for layer, colour in enumerate(layer_colours(value_SLH.shape[1])[1]):
        defined_SH = np.ma.masked_invalid(value_SLH[:, layer])
        mean_S = defined_SH.mean(axis=1).filled(np.nan)
        # A single head has no spread.
        error_S = (defined_SH.std(axis=1, ddof=1) / np.sqrt(defined_SH.count(axis=1))).filled(0.0)
        if len(steps) == 1:
            axes.errorbar(
                steps, mean_S, error_S, color=colour, fmt="o", markersize=4, capsize=2, label=f"layer {layer}"
            )
        else:
            axes.fill_between(steps, mean_S - error_S, mean_S + error_S, color=colour, alpha=0.1, linewidth=0)
            axes.plot(steps, mean_S, color=colour, marker=marker, markersize=3, label=f"layer {layer}")


def _draw_heads(
    axes: Axes, steps: Sequence[int], value_SLH: NDArray[np.float64], named_heads: Sequence[tuple[int, int]]
) -> None:
    marker = "o" if len(steps) <= _FEW_STEPS else ""
    flat_SN = value_SLH.reshape(len(steps), -1)
    axes.plot(steps, flat_SN, color="#9a9a9a", linewidth=0.5, alpha=0.45, marker=marker, markersize=1.5, zorder=1)
    for index, (layer, head) in enumerate(named_heads):
        (line,) = axes.plot(steps, value_SLH[:, layer, head], marker=marker, markersize=3, zorder=3)
        line.set(color=ACCENTS[index % len(ACCENTS)], label=head_label(layer, head))
    if named_heads:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def gradient_flow(
    steps: Sequence[int], norm_SL: ArrayLike, ratio_SL: ArrayLike, *, title: str, batch_size: int | None
) -> Figure:
    """Gradient norm and update-to-weight ratio over training steps, on log scales, with one line per layer.

    Args:
        steps: The S training steps, ascending.
        norm_SL: L2 norm of each layer's gradient, ``[steps, layers]``; zero and NaN (a frozen layer) draw no line.
        ratio_SL: L2 norm of each layer's update divided by the norm of its weights, ``[steps, layers]``.
        title: Title of the figure.
        batch_size: Examples in each step; None if unknown.
    """
    norms_SL, ratios_SL = np.asarray(norm_SL, np.float64), np.asarray(ratio_SL, np.float64)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 5.8, title)
        top, bottom = figure.subplots(2, 1, sharex=True)
        seen = [] if batch_size is None else [f"each step sees {sample_size(batch_size)}"]
        notes = [*seen, "layer 0 next to the input"]
        for axes, value_SL, label in (
            (top, norms_SL, "gradient norm (L2)"),
            (bottom, ratios_SL, "update norm ÷ weight norm"),
        ):
            silent = _draw_gradients(axes, steps, value_SL)
            axes.set_ylabel(label)
            if silent:
                notes.append(f"no {label.split(' norm')[0]} in layers {', '.join(map(str, silent))}")
        if window(len(steps)) > 1:
            notes.append(f"strong lines: running median of {window(len(steps))} recorded steps")
        step_axis(bottom, steps)
        layer_bar(figure, [top, bottom], norms_SL.shape[1])
        footnote(figure, "; ".join(notes))
    return figure


def window(num_steps: int) -> int:
    """Width of the running median in steps: odd, about a fifteenth of all steps."""
    return 2 * (num_steps // 30) + 1


def running_median(value_S: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Running median over ``width`` (odd) values, fewer at the ends; NaN without finite values."""
    padded = np.pad(value_S, width // 2, constant_values=np.nan)
    present = [near[np.isfinite(near)] for near in np.lib.stride_tricks.sliding_window_view(padded, width)]
    return np.array([np.median(near) if near.size else np.nan for near in present])


def _draw_gradients(axes: Axes, steps: Sequence[int], value_SL: NDArray[np.float64]) -> list[int]:
    positive_SL = np.where(np.isfinite(value_SL) & (value_SL > 0), value_SL, np.nan)
    silent = [layer for layer in range(value_SL.shape[1]) if np.isnan(positive_SL[:, layer]).all()]
    marker = "o" if len(steps) == 1 else ""
    for layer, colour in enumerate(layer_colours(value_SL.shape[1])[1]):
        if layer not in silent:
            axes.plot(steps, positive_SL[:, layer], color=colour, linewidth=0.5, alpha=0.3)
            smooth_S = running_median(positive_SL[:, layer], window(len(steps)))
            axes.plot(steps, smooth_S, color=colour, marker=marker, label=f"layer {layer}")
    if len(silent) < value_SL.shape[1]:
        log_axis(axes, "y")
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    return silent
