"""Change of the score against surprise, for every variant of a sweep."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.ablation_heads import FONT, POINTS, undefined
from bertsecrets.results.figures.style import ACCENTS, QUIET, footnote, house_style, new_figure, sample_size

_SIZE = (5.6, 4.0)


def volcano(
    names: Sequence[str],
    delta_V: ArrayLike,
    p_value_V: ArrayLike,
    significant_V: ArrayLike,
    *,
    title: str,
    count: int,
    labelled: int = 8,
) -> Figure:
    """Change of the score against how surprising it would be without any effect; the line is p = 0.05.

    Args:
        names: What was disabled.
        delta_V: Changes of the score; NaN is left out and counted under the figure.
        p_value_V: P-values before correction.
        significant_V: Which are significant after correction, bool.
        title: What the figure shows.
        count: Number of examples.
        labelled: How many of the most surprising are named, larger changes first where several are alike.
    """
    all_V = 100 * np.asarray(delta_V, np.float64)
    known_V = np.isfinite(all_V)
    names = [name for name, known in zip(names, known_V, strict=True) if known]
    delta_V = all_V[known_V]
    surprise_V = -np.log10(np.maximum(np.asarray(p_value_V, np.float64)[known_V], 1e-300))
    certain_V = np.asarray(significant_V, bool)[known_V]
    with house_style():
        figure = new_figure(*_SIZE, title)
        axes = figure.add_subplot()
        for chosen, colour, size, label in (
            (~certain_V, "#b4b4b4", 12, "not significant after correction"),
            (certain_V, ACCENTS[1], 26, "significant after correction"),
        ):
            axes.scatter(delta_V[chosen], surprise_V[chosen], s=size, color=colour, label=f"{label} ({chosen.sum()})")
        axes.axhline(-np.log10(0.05), color=QUIET, linewidth=0.8, linestyle="--")
        axes.axvline(0, color="black", linewidth=0.6)
        reach = max(0.5, float(np.abs(delta_V).max(initial=0))) * 1.25
        top = max(2.0, float(surprise_V.max(initial=0))) * 1.15
        axes.set_xlim(-reach, reach)
        axes.set_ylim(-0.05 * top, top)
        axes.text(reach * 0.98, -np.log10(0.05), "p = 0.05", ha="right", va="bottom", fontsize=8.0, color=QUIET)
        axes.set_xlabel(POINTS)
        axes.set_ylabel("surprise, \N{MINUS SIGN}log10 of p before correction")
        order = np.lexsort((-np.abs(delta_V), -surprise_V))
        _name_points(axes, _SIZE, names, delta_V, surprise_V, [int(i) for i in order[:labelled]])
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
        footnote(figure, sample_size(count) + undefined(all_V))
    return figure


def _name_points(
    axes: Axes,
    size: tuple[float, float],
    names: Sequence[str],
    delta_V: NDArray[np.float64],
    surprise_V: NDArray[np.float64],
    order: Sequence[int],
) -> None:
    """Names points above p = 0.05, beside, above or below them; a name without room is left out: the table has it."""
    # The panel takes about four fifths of the page; a wrong guess costs a name at most.
    width, height = 0.85 * 72 * size[0], 0.7 * 72 * size[1]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    x_V = (delta_V - left) / (right - left) * width
    y_V = (surprise_V - bottom) / (top - bottom) * height
    line = (-np.log10(0.05) - bottom) / (top - bottom) * height
    used: list[tuple[float, float, float, float]] = []
    for i in order:
        if surprise_V[i] <= -np.log10(0.05):
            continue
        length = len(names[i]) * FONT * 0.64
        sides = [(-5.0, -3.0, "right"), (5.0, -3.0, "left"), (0.0, 5.0, "center"), (0.0, -13.0, "center")]
        for dx, dy, align in sides if delta_V[i] <= 0 else [sides[1], sides[0], *sides[2:]]:
            start = x_V[i] + dx - {"right": length, "left": 0.0, "center": length / 2}[align]
            box = (start, y_V[i] + dy, start + length, y_V[i] + dy + FONT + 2)
            on_point = ((x_V > box[0] - 3) & (x_V < box[2] + 3) & (y_V > box[1] - 3) & (y_V < box[3] + 3)).any()
            outside = box[0] < 0 or box[2] > width or box[1] < line
            if outside or on_point or any(_overlap(box, other) for other in used):
                continue
            used.append(box)
            axes.annotate(
                names[i],
                (delta_V[i], surprise_V[i]),
                xytext=(dx, dy),
                textcoords="offset points",
                ha=align,
                fontsize=FONT,
            )
            break


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
