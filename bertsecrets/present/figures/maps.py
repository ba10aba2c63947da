"""Attention maps of heads (rows) at stages of training (columns)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from bertsecrets.present.figures.style import (
    colour_bar,
    footnote,
    house_style,
    new_figure,
    sample_size,
    scale,
)

_PITCH = 0.135
"""Distance between two 8 pt token labels, in inches."""

_ALL_LABELLED = 30
_SOME_LABELLED = 64
_SPECIAL = frozenset({"[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<cls>", "<sep>", "<mask>"})


@dataclass(frozen=True)
class MapPanel:
    """One attention map of a gallery.

    Args:
        row: Name of the head, e.g. ``"layer 5 · head 3"``; panels with the same name share a row and a colour scale.
        column: Name of the stage, e.g. ``"step 63"``; panels with the same name share a column.
        attention_QK: Weights in 0..1, ``[T, T]``; a difference of weights if ``signed``.
        tokens: The T tokens.
        signed: Whether this is a difference, drawn on a scale with zero in the middle.
        marked: Rows and columns of the cells to frame.
    """

    row: str
    column: str
    attention_QK: ArrayLike
    tokens: Sequence[str]
    signed: bool = False
    marked: Sequence[tuple[int, int]] = ()


def gallery(panels: Sequence[MapPanel], *, title: str) -> Figure:
    """Attention maps in a grid of heads by stages, query tokens downward and key tokens to the right.

    All tokens are labelled up to 30, some of them up to 64, and only special tokens beyond that. Empty grid positions
    are marked.
    """
    rows = list(dict.fromkeys(panel.row for panel in panels))
    columns = list(dict.fromkeys(panel.column for panel in panels))
    longest = max(len(panel.tokens) for panel in panels)
    side = 2.4 if longest > _SOME_LABELLED else min(4.2, max(1.7, _PITCH * longest))
    with house_style():
        figure = new_figure((side + 0.45) * len(columns) + 1.2, (side + 0.25) * len(rows) + 1.6, title, "compressed")
        grid: NDArray[Any] = figure.subplots(len(rows), len(columns), squeeze=False)
        placed = {(panel.row, panel.column): panel for panel in panels}
        for r, row in enumerate(rows):
            for c, column in enumerate(columns):
                below = placed.get((rows[r + 1], column)) if r + 1 < len(rows) else None
                left = placed.get((row, columns[c - 1])) if c else None
                _draw(grid[r, c], placed.get((row, column)), below, left)
                if r == 0:
                    grid[r, c].set_title(column, fontsize=9.0)
            grid[r, 0].set_ylabel(f"{row}\nquery token")
            _draw_scales(figure, grid[r], [placed.get((row, column)) for column in columns])
        for axes in grid[-1]:
            axes.set_xlabel("key token (attended to)")
        footnote(
            figure,
            f"{sample_size(len({tuple(panel.tokens) for panel in panels}))}; each row of a map sums to 1; "
            "colour scales are shared along a row; special tokens in bold; layers and heads count from 0",
        )
    return figure


def _draw(axes: Axes, panel: MapPanel | None, below: MapPanel | None, left: MapPanel | None) -> None:
    if panel is None:
        axes.text(0.5, 0.5, "no map", ha="center", va="center", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.imshow(np.asarray(panel.attention_QK, np.float64), interpolation="nearest", aspect="equal")
    for query, key in panel.marked:
        axes.add_patch(Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=1.2))
    for spine in axes.spines.values():
        spine.set_visible(True)
    shown = labelled_positions(panel.tokens)
    axes.set_xticks(shown, [panel.tokens[t] for t in shown], rotation=90)
    axes.set_yticks(shown, [panel.tokens[t] for t in shown])
    axes.tick_params(length=2, pad=1)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_fontweight("bold" if label.get_text() in _SPECIAL else "normal")
    if below is not None and list(below.tokens) == list(panel.tokens):
        axes.tick_params(labelbottom=False)
    if left is not None and list(left.tokens) == list(panel.tokens):
        axes.tick_params(labelleft=False)


def labelled_positions(tokens: Sequence[str]) -> list[int]:
    """Positions of the tokens to label: all, special tokens and some others, or only special tokens.

    >>> labelled_positions(["[CLS]", "a", "b", "[SEP]"])
    [0, 1, 2, 3]
    """
    if len(tokens) <= _ALL_LABELLED:
        return list(range(len(tokens)))
    special = [position for position, token in enumerate(tokens) if token in _SPECIAL]
    every = -(-len(tokens) // _ALL_LABELLED) if len(tokens) <= _SOME_LABELLED else 0
    others = range(0, len(tokens), every) if every else range(0)
    # A label next to that of a special token would overlap it.
    kept = [t for t in others if all(abs(t - s) >= every for s in special)]
    return sorted({*special, *kept})


def _draw_scales(figure: Figure, row: NDArray[Any], panels: Sequence[MapPanel | None]) -> None:
    for signed, unit in ((False, "attention weight"), (True, "change in weight")):
        drawn = [(axes, p) for axes, p in zip(row, panels, strict=True) if p is not None and p.signed == signed]
        if not drawn:
            continue
        reach = max(float(np.abs(np.asarray(panel.attention_QK)).max()) for _, panel in drawn)
        norm, colours = scale([0.0, reach], None, signed=signed)
        for axes, _ in drawn:
            axes.images[0].set(norm=norm, cmap=colours)
        colour_bar(figure, drawn[-1][0].images[0], [axes for axes, _ in drawn], unit)
