"""Effects of disabling single heads on the score: by layer and head, in order, and against their p-values."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.cells import mark_heads
from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    effect_scale,
    footnote,
    house_style,
    ink_on,
    new_figure,
    sample_size,
)
from bertsecrets.results.formatting import number
from bertsecrets.results.verdicts import BETTER, COLOURS, DISPENSABLE, INCONCLUSIVE, MARKS, NEEDED, WORDS

POINTS = "change of score (points)"
"""Unit of all changes in these figures: scores lie in -1..1, a point is one hundredth."""

FONT = 8.0
"""Size of all text in a panel, in points."""

_NAMED = 6
"""Number of variants named at each end."""

_VOLCANO_SIZE = (5.6, 4.0)


def within(margin: float | None) -> str:
    """Part of a footnote: what it means that a head can be spared."""
    return "" if margin is None else f" (a loss of {number(100 * margin, 1)} points or more is ruled out)"


def disabling_heatmap(
    delta_LH: ArrayLike,
    significant_LH: ArrayLike,
    dispensable_LH: ArrayLike,
    *,
    title: str,
    count: ArrayLike,
    margin: float | None = None,
    smallest_effect: float,
    rate: float = 0.05,
    unit: str = POINTS,
) -> Figure:
    """A cell for each head: red where it is needed, darker for larger losses, blue where it raises the score, pale blue where it
    can be spared, hatched where there are not enough examples to tell.

    Args:
        delta_LH: Changes of the score, negative for harm; NaN where a head was not disabled.
        significant_LH: Which heads are needed, or raise the score significantly, bool.
        dispensable_LH: Which heads can be spared, bool.
        title: What the figure shows.
        count: Number of examples.
        margin: The loss that matters, in the unit of ``delta_LH``.
        smallest_effect: The smallest loss that the set could have shown, in the unit of ``delta_LH``; NaN if unknown.
        rate: False discovery rate of ``significant_LH``.
        unit: What the colour bar measures; values are shown times 100.
    """
    point_LH = 100 * np.asarray(delta_LH, np.float64)
    certain_LH = np.asarray(significant_LH, bool) & np.isfinite(point_LH)
    layers, heads = point_LH.shape
    cell = min(0.75, (PAGE_WIDTH - 1.4) / heads)
    with house_style():
        figure = new_figure(max(5.2, cell * heads + 1.4), max(0.28, min(0.5, 4.8 / layers)) * layers + 1.8, title)
        axes = figure.add_subplot()
        norm, colours = effect_scale(np.where(certain_LH, point_LH, 0.0) if certain_LH.any() else point_LH)
        shown_LH = np.ma.masked_where(~certain_LH, point_LH)
        mesh = axes.pcolormesh(shown_LH, norm=norm, cmap=colours, edgecolors="white", linewidth=0.5)
        axes.set_xlim(0, heads)
        axes.set_ylim(layers, 0)
        mark_heads(axes, layers, heads)
        for layer, head in np.argwhere(~certain_LH & np.isfinite(point_LH)):
            spared = np.asarray(dispensable_LH, bool)[layer, head]
            fill = COLOURS[DISPENSABLE][0] if spared else "white"
            axes.add_patch(Rectangle((head, layer), 1, 1, facecolor=fill, edgecolor="white", linewidth=0.5))
            if not spared:
                axes.add_patch(
                    Rectangle(
                        (head, layer), 1, 1, fill=False, edgecolor=COLOURS[INCONCLUSIVE][0], hatch="///", linewidth=0
                    )
                )
        _draw_cells(axes, point_LH, certain_LH, norm, colours, cell)
        axes.set_yticks(np.arange(layers) + 0.5, [str(layer) for layer in range(layers)])
        axes.set_xticks(np.arange(heads) + 0.5, [str(head) for head in range(heads)])
        axes.set_xlabel("head")
        axes.set_ylabel("layer (0 next to the input)")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = figure.colorbar(mesh, ax=axes, aspect=25, pad=0.02)
        bar.set_label(unit)
        bar.outline.set_linewidth(0.4)
        footnote(
            figure,
            f"red: {WORDS[NEEDED]}, blue: {WORDS[BETTER]} (false discovery rate {rate:.0%}); pale blue: "
            f"{WORDS[DISPENSABLE]}{within(margin)}; hatched: {WORDS[INCONCLUSIVE]}; {_reach(smallest_effect)}; "
            f"{sample_size(count)}; layers and heads count from 0",
        )
    return figure


def _reach(smallest_effect: float) -> str:
    return f"smallest loss that this set could have shown: {number(100 * smallest_effect, 1)} points"


def _draw_cells(
    axes: Axes,
    point_LH: NDArray[np.float64],
    certain_LH: NDArray[np.bool_],
    norm: mpl.colors.Normalize,
    colours: mpl.colors.Colormap,
    cell: float,
) -> None:
    for (layer, head), value in np.ndenumerate(point_LH):
        if not np.isfinite(value):
            axes.add_patch(
                Rectangle((head, layer), 1, 1, facecolor="white", edgecolor=QUIET, hatch="////", linewidth=0)
            )
            continue
        certain = bool(certain_LH[layer, head])
        if certain:
            axes.add_patch(Rectangle((head + 0.03, layer + 0.03), 0.94, 0.94, fill=False, edgecolor="black"))
        text = number(value, 2 if certain and abs(value) < 0.1 else 1)
        # Where numbers would touch, significant ones lose their decimals; their colour and outline stay.
        if certain and not _fits(text, cell, certain):
            text = number(value, 0)
        if not _fits(text, cell, certain):
            continue
        axes.text(
            head + 0.5,
            layer + 0.5,
            text,
            ha="center",
            va="center",
            fontsize=FONT,
            fontweight="bold" if certain else "normal",
            color=ink_on(colours(norm(value))) if certain else QUIET,
        )


def _fits(text: str, cell: float, bold: bool) -> bool:
    """Whether a text fits a cell of this width in inches; digits of DejaVu Sans are 0.64 of the font size wide."""
    return len(text) * FONT * (0.75 if bold else 0.64) + 2 <= cell * 72


def sorted_effects(
    names: Sequence[str],
    delta_V: ArrayLike,
    low_V: ArrayLike,
    high_V: ArrayLike,
    significant_V: ArrayLike,
    dispensable_V: ArrayLike,
    *,
    title: str,
    count: ArrayLike,
    level: float = 0.95,
) -> Figure:
    """Every variant from most harmful to most helpful, with its interval, coloured by its verdict; both ends are named.

    Args:
        names: Names of the variants.
        delta_V, low_V, high_V: Change of the score and its confidence limits; a change of NaN is left out and counted
            in the footnote.
        significant_V: Which variants are needed, or raise the score significantly, bool.
        dispensable_V: Which variants can be spared, bool.
        title: What the figure shows.
        count: Number of examples.
        level: Level of the limits.

    Raises:
        ValueError: If there is no variant.
    """
    delta_V, low_V, high_V = (100 * np.asarray(each, np.float64) for each in (delta_V, low_V, high_V))
    certain_V = np.asarray(significant_V, bool)
    colour_V = verdict_colours(delta_V, significant_V, dispensable_V)
    if not len(names):
        raise ValueError("A figure of effects needs at least one variant")
    # NaN sorts last, which would make an undefined score the best one.
    order = np.argsort(delta_V, kind="stable")[: np.isfinite(delta_V).sum()]
    sorted_names = [names[i] for i in order]
    few = len(names) <= 40
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.2 if not few else max(2.4, 0.2 * len(names) + 1.6), title)
        axes = figure.add_subplot()
        if few:
            _few_effects(axes, sorted_names, delta_V[order], low_V[order], high_V[order], colour_V[order])
        else:
            _many_effects(
                axes, sorted_names, delta_V[order], low_V[order], high_V[order], certain_V[order], colour_V[order]
            )
        footnote(
            figure,
            f"bars: {level:.0%} interval; *: significant after correction; {VERDICT_KEY}; {sample_size(count)}"
            f"{undefined(delta_V)}",
        )
    return figure


VERDICT_KEY = (
    f"red: {WORDS[NEEDED]}, dark blue: {WORDS[BETTER]}, pale blue: {WORDS[DISPENSABLE]}, grey: {WORDS[INCONCLUSIVE]}"
)
"""Part of a footnote: what the colours of :func:`verdict_colours` mean."""


def verdict_colours(delta_V: ArrayLike, significant_V: ArrayLike, dispensable_V: ArrayLike) -> NDArray[np.str_]:
    """A colour for each variant, by its verdict."""
    rest_V = np.where(np.asarray(dispensable_V, bool), MARKS[DISPENSABLE], MARKS[INCONCLUSIVE])
    certain_V = np.where(np.asarray(delta_V, np.float64) > 0, MARKS[BETTER], MARKS[NEEDED])
    return np.asarray(np.where(np.asarray(significant_V, bool), certain_V, rest_V))


def undefined(delta_V: NDArray[np.float64]) -> str:
    """The part of a footnote on variants without a defined score; empty if all are defined."""
    missing = int((~np.isfinite(delta_V)).sum())
    return f"; not drawn: {missing} without a defined score" if missing else ""


def _few_effects(
    axes: Axes,
    names: Sequence[str],
    delta_V: NDArray[np.float64],
    low_V: NDArray[np.float64],
    high_V: NDArray[np.float64],
    colour_V: NDArray[np.str_],
) -> None:
    for place, colour in enumerate(colour_V):
        axes.plot([low_V[place], high_V[place]], [place, place], color=colour, linewidth=1.6)
        axes.plot(delta_V[place], place, "o", color=colour, markersize=5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.set_xlabel(POINTS)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)


def _many_effects(
    axes: Axes,
    names: Sequence[str],
    delta_V: NDArray[np.float64],
    low_V: NDArray[np.float64],
    high_V: NDArray[np.float64],
    certain_V: NDArray[np.bool_],
    colour_V: NDArray[np.str_],
) -> None:
    for code, width in ((INCONCLUSIVE, 0.8), (DISPENSABLE, 0.8), (NEEDED, 1.4), (BETTER, 1.4)):
        colour = MARKS[code]
        places = np.flatnonzero(colour_V == colour)
        axes.vlines(places, low_V[places], high_V[places], color=colour, linewidth=width)
        axes.plot(places, delta_V[places], "o", color=colour, markersize=3)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks([])
    axes.set_xlabel(f"{len(names)} variants, most harmful first")
    axes.set_ylabel(POINTS)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.margins(x=0.02)
    _list_names(axes, names, delta_V, certain_V)


def _list_names(axes: Axes, names: Sequence[str], delta_V: NDArray[np.float64], certain_V: NDArray[np.bool_]) -> None:
    """List names next to the panel, where they cannot cover the data."""
    for start, alignment, heading, chosen in (
        (1.0, "top", "most harmful", range(min(_NAMED, len(names)))),
        (0.0, "bottom", "most helpful", range(max(0, len(names) - _NAMED), len(names))),
    ):
        lines = [f"{names[i]} {number(delta_V[i], 1)}{'*' if certain_V[i] else ''}" for i in chosen]
        text = "\n".join([heading, *lines])
        axes.text(1.02, start, text, transform=axes.transAxes, va=alignment, fontsize=8.0)


def volcano(
    names: Sequence[str],
    delta_V: ArrayLike,
    p_value_V: ArrayLike,
    significant_V: ArrayLike,
    *,
    title: str,
    count: ArrayLike,
    labelled: int = 8,
) -> Figure:
    """Change of the score against how surprising it would be without an effect (-log10 p); the line is at p = 0.05.

    Args:
        names: Names of the variants.
        delta_V: Changes of the score; NaN is left out and counted in the footnote.
        p_value_V: P-values before correction.
        significant_V: Which are significant after correction, bool.
        title: What the figure shows.
        count: Number of examples.
        labelled: Number of most surprising variants to name; of equally surprising ones, the larger changes first.
    """
    all_V = 100 * np.asarray(delta_V, np.float64)
    known_V = np.isfinite(all_V)
    names = [name for name, known in zip(names, known_V, strict=True) if known]
    delta_V = all_V[known_V]
    surprise_V = -np.log10(np.maximum(np.asarray(p_value_V, np.float64)[known_V], 1e-300))
    certain_V = np.asarray(significant_V, bool)[known_V]
    with house_style():
        figure = new_figure(*_VOLCANO_SIZE, title)
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
        _name_points(axes, _VOLCANO_SIZE, names, delta_V, surprise_V, [int(i) for i in order[:labelled]])
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
    """Name points above p = 0.05, next to, above or below them; a name without room is left out, as the table has it."""
    # An estimate of the panel's size in points; an error costs a name at most.
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
