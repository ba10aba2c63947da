"""Sink heads: what their values say, and what an intervention does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bertsecrets.results.figures.style import ACCENTS, PAGE_WIDTH, QUIET, footnote, house_style, new_figure

_MARKERS = "os^D"
_LOWEST = 1e-4
"""Smaller changes are drawn here, on an axis that has no zero."""


@dataclass(frozen=True)
class SinkDot:
    """A head.

    Args:
        name: Its label, e.g. ``3-1``.
        kind: Its kind by intervention.
        value_ratio: Value norm at the sink over that of words.
        redirected, cut: Change of the answer by either intervention.
    """

    name: str
    kind: str
    value_ratio: float
    redirected: float
    cut: float


def sink_scatter(
    panels: Mapping[str, Sequence[SinkDot]],
    kinds: Sequence[str],
    *,
    title: str,
    unit: str,
    note: str,
    value_ratio: float,
    change: float,
) -> Figure:
    """A dot for each sink head: value norm at the sink, and change of the answer, on logarithmic axes.

    The dot is the change when attention is redirected, the bar joined to it that when it is cut.

    Args:
        panels: Title of each panel -> its heads.
        kinds: The kinds, in order of their colours.
        title: What the figure shows.
        unit: Label of the y axis.
        note: Footnote.
        value_ratio, change: Limits between the kinds, drawn as dashed lines.
    """
    with house_style():
        figure = new_figure(PAGE_WIDTH if len(panels) > 1 else 5.0, 3.6, title)
        grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (name, dots) in zip(grid, panels.items(), strict=True):
            for place, kind in enumerate(kinds):
                chosen = [dot for dot in dots if dot.kind == kind]
                ratios = [dot.value_ratio for dot in chosen]
                redirected, cut = (
                    np.maximum([getattr(dot, change) for dot in chosen], _LOWEST) for change in ("redirected", "cut")
                )
                axes.vlines(ratios, cut, redirected, color=ACCENTS[place], linewidth=0.6, alpha=0.6)
                axes.plot(ratios, cut, "_", markersize=7, color=ACCENTS[place])
                axes.plot(
                    ratios,
                    redirected,
                    _MARKERS[place],
                    linestyle="none",
                    markersize=5,
                    color=ACCENTS[place],
                    alpha=0.8,
                    label=f"{kind} ({len(chosen)})",
                )
            for dot in dots:
                axes.annotate(
                    dot.name,
                    (dot.value_ratio, max(dot.redirected, _LOWEST)),
                    xytext=(3, 3),
                    textcoords="offset points",
                    fontsize=6,
                    color=QUIET,
                )
            axes.axvline(value_ratio, color=QUIET, linestyle="--", linewidth=0.8)
            axes.axhline(change, color=QUIET, linestyle="--", linewidth=0.8)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.margins(0.12)
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())
            axes.set_title(name, fontsize=8.0, pad=20)
            axes.set_xlabel("value norm at the token ÷ that of words")
            axes.legend(frameon=False, ncols=len(kinds), loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0)
        grid[0].set_ylabel(unit)
        footnote(figure, note)
    return figure
