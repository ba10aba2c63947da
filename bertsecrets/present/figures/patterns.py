"""Patterns of attention maps: shares as stacked bars, and heads by pattern.

``title`` is always the figure's title.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import ArrayLike, NDArray

from bertsecrets.patterns.classes import NAMES, UNCERTAIN, dominant_patterns, pattern_label
from bertsecrets.present.figures.grids import NO_VALUE, draw_grid, one_grid, write_in_cells
from bertsecrets.present.figures.style import (
    PAGE_WIDTH,
    SMALL,
    chart,
    footnote,
    house_style,
    ink_on,
    row_names,
)
from bertsecrets.results.formatting import percentage

COLOURS = {
    "vertical": "#0072B2",
    "diagonal": "#D55E00",
    "vertical_diagonal": "#CC79A7",
    "block": "#009E73",
    "heterogeneous": "#E8B33F",
    UNCERTAIN: "#d9d9d9",
}
"""Colour of each pattern, the same in every figure; grey for uncertain maps."""

_SHARE = "share of attention maps"
_ENOUGH = 0.05
_SHORT_NAME = 16


@dataclass(frozen=True)
class ShareBar:
    """One bar of shares.

    Args:
        name: Label at its left.
        share_C: Share of each pattern in 0..1, in the order of :data:`~bertsecrets.patterns.classes.NAMES`.
        error_C: Half-widths of their intervals; NaN for none.
    """

    name: str
    share_C: NDArray[np.float64]
    error_C: NDArray[np.float64]


def pattern_bars(bars: Sequence[ShareBar], *, title: str, note: str) -> Figure:
    """Stacked bars of the patterns' shares, as in the paper's Figure 2, with the interval of each share at its right
    end.

    Args:
        bars: From the top; at least one.
        note: Footnote: sample size, and the meaning of the intervals.
    """
    shares_RC = np.array([bar.share_C for bar in bars])
    errors_RC = np.array([bar.error_C for bar in bars])
    rows, lines = row_names([bar.name for bar in bars])
    height = max(0.34, 0.17 * lines) * len(bars) + 1.75
    with chart(PAGE_WIDTH, height, title, _SHARE, "", note, grid="") as (figure, axes):
        row_R = np.arange(len(bars))
        end_RC = shares_RC.cumsum(1)
        for c, name in enumerate(NAMES):
            axes.barh(
                row_R,
                shares_RC[:, c],
                left=end_RC[:, c] - shares_RC[:, c],
                color=COLOURS[name],
                height=0.74,
                label=pattern_label(name),
                hatch="////" if name == UNCERTAIN else None,
                edgecolor="white",
                linewidth=0.6,
            )
            for r in row_R:
                _mark(axes, float(end_RC[r, c]), float(shares_RC[r, c]), float(errors_RC[r, c]), int(r), COLOURS[name])
        axes.set_yticks(row_R, rows)
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.set_xticks(np.arange(0, 1.01, 0.2), [percentage(tick) for tick in np.arange(0, 1.01, 0.2)])
        axes.tick_params(axis="y", length=0)
        wide = max(len(bar.name) for bar in bars) > _SHORT_NAME
        _legend(axes, *axes.get_legend_handles_labels(), columns=3 if wide else 6)
    return figure


def _legend(axes: Axes, handles: Sequence[Artist], labels: Sequence[str], columns: int = 6) -> None:
    """Explain the patterns' colours above the axes."""
    axes.legend(
        list(handles),
        list(labels),
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        borderaxespad=0.2,
        columnspacing=1.0,
        handlelength=1.4,
        handletextpad=0.5,
    )


def _mark(axes: Axes, end: float, share: float, error: float, row: int, colour: str) -> None:
    """Draw the interval at the end of a share, and print the share if there is room."""
    if np.isfinite(error) and share > 0:
        axes.errorbar(end, row + 0.2, xerr=error, color="black", linewidth=0.8, capsize=1.6, capthick=0.8)
    if share >= _ENOUGH:
        ink = ink_on(to_rgba(colour))
        axes.text(
            end - share / 2, row - 0.08, f"{100 * share:.0f}", ha="center", va="center", fontsize=SMALL, color=ink
        )


def pattern_grid(share_LHC: ArrayLike, *, title: str, note: str) -> Figure:
    """The grid of heads, each coloured by the pattern of at least half of its maps, with this share in percent.

    Heads without such a pattern are grey and hatched. Layer 0 is at the top.

    Args:
        share_LHC: Shares ``[layers, heads, patterns]``; NaN where a head has no maps.
        note: Footnote: the sample size.
    """
    shares_LHC = np.asarray(share_LHC, np.float64)
    layers, heads = shares_LHC.shape[:2]
    main_LH = dominant_patterns(shares_LHC)
    colours = ListedColormap([COLOURS[name] for name in NAMES])
    with house_style():
        figure, axes, cell_width = one_grid(title, layers, heads, least_width=4.6, extra=2.0)
        mesh = draw_grid(axes, np.where(main_LH >= 0, main_LH, np.nan), Normalize(-0.5, len(NAMES) - 0.5), colours)
        if cell_width > 0.3:
            shares = {
                cell: f"{100 * shares_LHC[cell][main]:.0f}" for cell, main in np.ndenumerate(main_LH) if main >= 0
            }
            write_in_cells(axes, mesh, shares)
        shown = [name for index, name in enumerate(NAMES) if (main_LH == index).any()]
        handles = [Patch(facecolor=COLOURS[name], label=pattern_label(name)) for name in shown]
        if (main_LH < 0).any():
            handles.append(Patch(**NO_VALUE, label="no pattern in half the maps"))
        _legend(axes, handles, [str(handle.get_label()) for handle in handles])
        footnote(figure, f"numbers: share of the head's maps, in percent; {note}; layers and heads count from 0")
    return figure
