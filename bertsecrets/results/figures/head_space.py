"""Heads as points in the plane: near each other where they attend alike."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    footnote,
    house_style,
    layer_bar,
    layer_colours,
    new_figure,
)
from bertsecrets.results.formatting import MISSING, head_label

_MARKERS = "os^Dv<>Ph*X"


def head_space(
    points_N2: ArrayLike, heads: int, groups: Sequence[int], *, title: str, note: str, listed: int = 7
) -> Figure:
    """The same points twice: coloured by layer, and by group.

    Args:
        points_N2: The heads in order of layers.
        heads: Heads of a layer.
        groups: Group of each head, from 0, the largest first.
        title: What the figure shows.
        note: Footnote.
        listed: Groups with a colour of their own; the others are grey.
    """
    points = np.asarray(points_N2, np.float64)
    layer_N, group_N = np.arange(len(points)) // heads, np.asarray(groups)
    num_layers = int(layer_N.max()) + 1
    with house_style():
        figure = new_figure(PAGE_WIDTH + 1.0, 4.4, title)
        left, right = figure.subplots(1, 2)
        colours = layer_colours(num_layers)[1]
        left.scatter(points[:, 0], points[:, 1], c=[colours[layer] for layer in layer_N], s=22, linewidths=0)
        left.set_title("by layer", fontsize=8.0)
        for group in range(int(group_N.max()) + 1):
            member_N = group_N == group
            right.scatter(
                *points[member_N].T,
                color=ACCENTS[group % len(ACCENTS)] if group < listed else QUIET,
                marker=_MARKERS[group % len(_MARKERS)],
                s=22,
                linewidths=0,
                label=f"group {group} ({member_N.sum()})" if group < listed else None,
            )
        right.set_title("by group (number of heads)", fontsize=8.0)
        right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
        for axes in (left, right):
            _bare(axes, points)
        layer_bar(figure, [left], num_layers)
        footnote(figure, note)
    return figure


def classed_heads(points_N2: ArrayLike, classes: Mapping[str, Sequence[str]], *, title: str, note: str) -> Figure:
    """The same points once for each classification, coloured by class; heads without a class are small and grey.

    Args:
        points_N2: The heads in order of layers.
        classes: Title of a panel -> class of each head; a dash for none.
        title: What the figure shows.
        note: Footnote.
    """
    points = np.asarray(points_N2, np.float64)
    columns = min(len(classes), 2)
    rows = -(-len(classes) // columns)
    with house_style():
        figure = new_figure(PAGE_WIDTH + 1.0 if columns > 1 else 5.6, 3.6 * rows + 0.8, title)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (name, class_N) in zip(grid.flat, classes.items(), strict=False):
            labels = np.asarray(class_N)
            common = [label for label, _ in Counter(labels[labels != MISSING].tolist()).most_common(len(ACCENTS))]
            rest_N = ~np.isin(labels, common)
            if rest_N.any():
                axes.scatter(*points[rest_N].T, color=QUIET, s=8, linewidths=0, label=f"others ({rest_N.sum()})")
            for place, label in enumerate(common):
                member_N = labels == label
                axes.scatter(
                    *points[member_N].T,
                    color=ACCENTS[place],
                    marker=_MARKERS[place],
                    s=24,
                    linewidths=0,
                    label=f"{label} ({member_N.sum()})",
                )
            axes.set_title(name, fontsize=8.0)
            axes.legend(
                frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, fontsize=6.5, borderaxespad=0.4
            )
            _bare(axes, points)
        for axes in list(grid.flat)[len(classes) :]:
            axes.set_visible(False)
        footnote(figure, note)
    return figure


def moved_heads(
    before_N2: ArrayLike, after_N2: ArrayLike, heads: int, *, title: str, note: str, named: int = 5
) -> Figure:
    """Heads of two models in one space: a ring before, a dot after, a line between them, coloured by layer.

    Args:
        before_N2, after_N2: The heads of each model in order of layers.
        heads: Heads of a layer.
        title: What the figure shows.
        note: Footnote.
        named: How many of the heads that moved farthest have their names beside them.
    """
    before, after = np.asarray(before_N2, np.float64), np.asarray(after_N2, np.float64)
    layer_N = np.arange(len(after)) // heads
    with house_style():
        figure = new_figure(5.8, 4.8, title)
        axes = figure.add_subplot()
        palette = layer_colours(int(layer_N.max()) + 1)[1]
        colours = [palette[layer] for layer in layer_N]
        axes.add_collection(
            LineCollection(np.stack((before, after), 1), colors=colours, linewidths=0.7, alpha=0.7)  # type: ignore[arg-type]
        )
        axes.scatter(before[:, 0], before[:, 1], facecolors="white", edgecolors=colours, s=20, linewidths=0.9)
        axes.scatter(after[:, 0], after[:, 1], c=colours, s=20, linewidths=0)
        kinds = [
            Line2D([], [], linestyle="none", marker="o", color=QUIET, markerfacecolor=face, label=label)
            for face, label in (("white", "before fine-tuning"), (QUIET, "after"))
        ]
        axes.legend(
            handles=kinds, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 0.0), borderaxespad=0.4
        )
        _bare(axes, np.concatenate((before, after)))
        for place in np.argsort(-np.linalg.norm(after - before, axis=1))[:named]:
            label = head_label(*divmod(int(place), heads))
            axes.annotate(label, after[place], (4, 3), textcoords="offset points", fontsize=6.0)
        layer_bar(figure, [axes], int(layer_N.max()) + 1)
        footnote(figure, note)
    return figure


def _bare(axes: Axes, points: NDArray[np.float64]) -> None:
    """Axes without ticks: only distances mean anything."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="box")
    middle, reach = (points.min(axis=0) + points.max(axis=0)) / 2, np.ptp(points, axis=0).max() * 0.56 or 1.0
    axes.set_xlim(middle[0] - reach, middle[0] + reach)
    axes.set_ylim(middle[1] - reach, middle[1] + reach)
    for spine in axes.spines.values():
        spine.set_visible(True)
