"""Heads as dots: by two numbers, or as points that are close if the heads attend similarly."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    footnote,
    house_style,
    layer_bar,
    layer_colours,
    titled_panels,
)
from bertsecrets.results.formatting import MISSING

_MARKERS = "os^Dv<>Ph*X"


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
    with house_style():
        figure, axes_N = titled_panels(
            [panel.title for panel in panels], columns, (max(4.2, PAGE_WIDTH * columns / 3), 2.2), title, x_label
        )
        for axes, panel in zip(axes_N, panels, strict=True):
            x_N, y_N, certain_N = np.asarray(panel.x), np.asarray(panel.y), np.asarray(panel.certain, bool)
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.plot(x_N[~certain_N], y_N[~certain_N], "o", markersize=3, fillstyle="none", color=QUIET, mew=0.7)
            axes.plot(x_N[certain_N], y_N[certain_N], "o", markersize=4.5, color=ACCENTS[1])
        figure.supylabel(y_label, fontsize=9.0)
        footnote(figure, note)
    return figure


def head_space(
    points_N2: ArrayLike, classes: Mapping[str, Sequence[str]], *, title: str, note: str, heads: int
) -> Figure:
    """The same points by layer and for each classification, coloured by class; heads without a common class are small
    and grey.

    Args:
        points_N2: The heads in order of layers.
        classes: Title of a panel -> class of each head; a dash for none.
        title: What the figure shows.
        note: Footnote.
        heads: Heads per layer.
    """
    points = np.asarray(points_N2, np.float64)
    with house_style():
        panels, size = ["by layer", *classes], (PAGE_WIDTH + 1.0, 3.6)
        figure, axes_N = titled_panels(panels, 2, size, title, margin=0.8, shared=False)
        for axes, class_N in zip(axes_N[1:], classes.values(), strict=True):
            labels = np.asarray(class_N)
            common = [label for label, _ in Counter(sorted(labels[labels != MISSING])).most_common(len(ACCENTS))]
            rest_N = ~np.isin(labels, common)
            if rest_N.any():
                x, y = points[rest_N].T
                axes.scatter(x, y, s=8, color=QUIET, linewidths=0, label=f"others ({rest_N.sum()})")
            for colour, marker, label in zip(ACCENTS, _MARKERS, common, strict=False):
                x, y = points[labels == label].T
                axes.scatter(x, y, color=colour, marker=marker, s=23, linewidths=0, label=f"{label} ({len(x)})")
            axes.legend(
                frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, fontsize=6.5, borderaxespad=0.4
            )
        middle, reach = (points.min(axis=0) + points.max(axis=0)) / 2, np.ptp(points, axis=0).max() * 0.56 or 1.0
        for axes in axes_N:
            # No ticks, because only distances have a meaning.
            limits = zip(middle - reach, middle + reach, strict=True)
            axes.set(xticks=[], yticks=[], **dict(zip(("xlim", "ylim"), limits, strict=True)))
            axes.set_aspect("equal", adjustable="box")
            for spine in axes.spines.values():
                spine.set_visible(True)
        layer_N = np.arange(len(points)) // heads
        colours = layer_colours(int(layer_N.max()) + 1)[1]
        axes_N[0].scatter(points[:, 0], points[:, 1], c=[colours[layer] for layer in layer_N], s=22, linewidths=0)
        layer_bar(figure, axes_N[:1], len(colours))
        footnote(figure, note)
    return figure
