"""Effects of disabling heads, layers and sets of heads on the score.

In every figure ``title`` is what it shows, ``count`` the number of examples and ``level`` that of the limits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from bertsecrets.ablation.spared import Spared
from bertsecrets.results.components import HEAD
from bertsecrets.results.figures.grids import draw_grid, fits, one_grid, write_in_cells
from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    POINTS,
    QUIET,
    SMALL,
    colour_bar,
    effect_scale,
    footnote,
    house_style,
    new_figure,
    sample_size,
    step_axis,
)
from bertsecrets.results.formatting import number
from bertsecrets.results.verdicts import BETTER, COLOURS, DISPENSABLE, INCONCLUSIVE, MARKS, NEEDED, WORDS

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
    unit: str = POINTS,
    column: str = HEAD.column,
) -> Figure:
    """A cell for each head: red where it is needed, darker for larger losses, blue where it raises the score, pale blue where it
    can be spared, hatched where there are not enough examples to tell.

    Args:
        delta_LH: Changes of the score, negative for harm; NaN where a head was not disabled.
        significant_LH: Which heads are needed, or raise the score significantly, bool.
        dispensable_LH: Which heads can be spared, bool.
        margin: The loss that matters, in the unit of ``delta_LH``.
        smallest_effect: The smallest loss that the set could have shown, in the unit of ``delta_LH``; NaN if unknown.
        unit: What the colour bar measures; values are shown times 100.
        column: What the cells of a layer are (:class:`bertsecrets.results.components.Kind`).
    """
    point_LH = 100 * np.asarray(delta_LH, np.float64)
    defined_LH = np.isfinite(point_LH)
    certain_LH = np.asarray(significant_LH, bool) & defined_LH
    spared_LH = np.asarray(dispensable_LH, bool) & defined_LH & ~certain_LH
    with house_style():
        figure, axes, cell_width = one_grid(title, *point_LH.shape, least_width=5.2, extra=1.8)
        axes.set_xlabel(column)
        norm, colours = effect_scale(np.where(certain_LH, point_LH, 0.0) if certain_LH.any() else point_LH)
        mesh = draw_grid(axes, point_LH, norm, colours, coloured_RC=certain_LH)
        for layer, head in np.argwhere(spared_LH):
            axes.add_patch(Rectangle((head, layer), 1, 1, facecolor=COLOURS[DISPENSABLE][0], edgecolor="white"))
        for layer, head in np.argwhere(defined_LH & ~certain_LH & ~spared_LH):
            axes.add_patch(
                Rectangle((head, layer), 1, 1, fill=False, edgecolor=COLOURS[INCONCLUSIVE][0], hatch="///", linewidth=0)
            )
        for layer, head in np.argwhere(certain_LH):
            axes.add_patch(Rectangle((head + 0.03, layer + 0.03), 0.94, 0.94, fill=False, edgecolor="black"))
        certain = {(int(layer), int(head)) for layer, head in np.argwhere(certain_LH)}
        texts = {
            (int(layer), int(head)): _cell_text(float(point_LH[layer, head]), bool(certain_LH[layer, head]), cell_width)
            for layer, head in np.argwhere(defined_LH)
        }
        write_in_cells(axes, mesh, texts, bold=certain)
        colour_bar(figure, mesh, axes, unit)
        reach = f"smallest loss that this set could have shown: {number(100 * smallest_effect, 1)} points"
        footnote(
            figure,
            f"red: {WORDS[NEEDED]}, blue: {WORDS[BETTER]} (corrected over all {column}s); pale blue: "
            f"{WORDS[DISPENSABLE]}{within(margin)}; hatched: {WORDS[INCONCLUSIVE]}; {reach}; "
            f"{sample_size(count)}; layers and {column}s count from 0",
        )
    return figure


def _cell_text(value: float, certain: bool, width: float) -> str:
    """The number of a cell, as precise as it fits; empty where it would touch its neighbour's."""
    text = number(value, 2 if certain and abs(value) < 0.1 else 1)
    # Significant numbers lose their decimals before they vanish.
    if certain and not fits(text, width, bold=True):
        text = number(value, 0)
    return text if fits(text, width, bold=certain) else ""


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

    Raises:
        ValueError: If there is no variant.
    """
    delta_V, low_V, high_V = (100 * np.asarray(value_V, np.float64) for value_V in (delta_V, low_V, high_V))
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
    for row, colour in enumerate(colour_V):
        axes.plot([low_V[row], high_V[row]], [row, row], color=colour, linewidth=1.6)
        axes.plot(delta_V[row], row, "o", color=colour, markersize=5)
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
        ranks = np.flatnonzero(colour_V == colour)
        axes.vlines(ranks, low_V[ranks], high_V[ranks], color=colour, linewidth=width)
        axes.plot(ranks, delta_V[ranks], "o", color=colour, markersize=3)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks([])
    axes.set_xlabel(f"{len(names)} variants, most harmful first")
    axes.set_ylabel(POINTS)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.margins(x=0.02)
    _list_names(axes, names, delta_V, certain_V)


def _list_names(axes: Axes, names: Sequence[str], delta_V: NDArray[np.float64], certain_V: NDArray[np.bool_]) -> None:
    """List names next to the panel, where they cannot cover the data."""
    for start, alignment, heading, ranks in (
        (1.0, "top", "most harmful", range(min(_NAMED, len(names)))),
        (0.0, "bottom", "most helpful", range(max(0, len(names) - _NAMED), len(names))),
    ):
        lines = [f"{names[i]} {number(delta_V[i], 1)}{'*' if certain_V[i] else ''}" for i in ranks]
        text = "\n".join([heading, *lines])
        axes.text(1.02, start, text, transform=axes.transAxes, va=alignment, fontsize=SMALL)


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
        labelled: Number of most surprising variants to name; of equally surprising ones, the larger changes first.
    """
    all_V = 100 * np.asarray(delta_V, np.float64)
    defined_V = np.isfinite(all_V)
    names = [name for name, defined in zip(names, defined_V, strict=True) if defined]
    delta_V = all_V[defined_V]
    surprise_V = -np.log10(np.maximum(np.asarray(p_value_V, np.float64)[defined_V], 1e-300))
    certain_V = np.asarray(significant_V, bool)[defined_V]
    with house_style():
        figure = new_figure(*_VOLCANO_SIZE, title)
        axes = figure.add_subplot()
        for drawn_V, colour, size, label in (
            (~certain_V, "#b4b4b4", 12, "not significant after correction"),
            (certain_V, ACCENTS[1], 26, "significant after correction"),
        ):
            axes.scatter(
                delta_V[drawn_V], surprise_V[drawn_V], s=size, color=colour, label=f"{label} ({drawn_V.sum()})"
            )
        axes.axhline(-np.log10(0.05), color=QUIET, linewidth=0.8, linestyle="--")
        axes.axvline(0, color="black", linewidth=0.6)
        reach = max(0.5, float(np.abs(delta_V).max(initial=0))) * 1.25
        top = max(2.0, float(surprise_V.max(initial=0))) * 1.15
        axes.set_xlim(-reach, reach)
        axes.set_ylim(-0.05 * top, top)
        axes.text(reach * 0.98, -np.log10(0.05), "p = 0.05", ha="right", va="bottom", fontsize=SMALL, color=QUIET)
        axes.set_xlabel(POINTS)
        axes.set_ylabel("surprise, \N{MINUS SIGN}log10 of p before correction")
        order = np.lexsort((-np.abs(delta_V), -surprise_V))
        _name_points(axes, names, delta_V, surprise_V, [int(i) for i in order[:labelled]])
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
        footnote(figure, sample_size(count) + undefined(all_V))
    return figure


def _name_points(
    axes: Axes,
    names: Sequence[str],
    delta_V: NDArray[np.float64],
    surprise_V: NDArray[np.float64],
    order: Sequence[int],
) -> None:
    """Name points above p = 0.05, next to, above or below them; a name without room is left out, as the table has it."""
    # An estimate of the panel's size in points; an error costs a name at most.
    width, height = 0.85 * 72 * _VOLCANO_SIZE[0], 0.7 * 72 * _VOLCANO_SIZE[1]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    x_V = (delta_V - left) / (right - left) * width
    y_V = (surprise_V - bottom) / (top - bottom) * height
    line = (-np.log10(0.05) - bottom) / (top - bottom) * height
    used: list[tuple[float, float, float, float]] = []
    for i in order:
        if surprise_V[i] <= -np.log10(0.05):
            continue
        length = len(names[i]) * SMALL * 0.64
        sides = [(-5.0, -3.0, "right"), (5.0, -3.0, "left"), (0.0, 5.0, "center"), (0.0, -13.0, "center")]
        for dx, dy, align in sides if delta_V[i] <= 0 else [sides[1], sides[0], *sides[2:]]:
            start = x_V[i] + dx - {"right": length, "left": 0.0, "center": length / 2}[align]
            box = (start, y_V[i] + dy, start + length, y_V[i] + dy + SMALL + 2)
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
                fontsize=SMALL,
            )
            break


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def layer_bars(
    layers: Sequence[int],
    delta_L: ArrayLike,
    low_L: ArrayLike,
    high_L: ArrayLike,
    significant_L: ArrayLike,
    dispensable_L: ArrayLike,
    *,
    title: str,
    count: ArrayLike,
    level: float = 0.95,
) -> Figure:
    """A bar with its interval for each layer, coloured by its verdict.

    Args:
        layers: Layer numbers from 0.
        delta_L, low_L, high_L: Change of the score and its confidence limits.
        significant_L: Which layers are needed, or raise the score significantly, bool.
        dispensable_L: Which layers can be spared, bool.
    """
    delta_L, low_L, high_L = (100 * np.asarray(value_L, np.float64) for value_L in (delta_L, low_L, high_L))
    colours = verdict_colours(delta_L, significant_L, dispensable_L)
    with house_style():
        figure = new_figure(max(4.6, 0.45 * len(layers) + 1.4), 3.4, title)
        axes = figure.add_subplot()
        x_L = np.arange(len(layers))
        axes.bar(x_L, delta_L, color=colours, width=0.7)
        # A white rim keeps the line visible on a dark bar.
        axes.vlines(x_L, low_L, high_L, color="white", linewidth=3.4)
        axes.vlines(x_L, low_L, high_L, color="black", linewidth=1.4)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xticks(x_L, [str(layer) for layer in layers])
        axes.set_xlabel("layer (0 next to the input)")
        axes.set_axisbelow(True)
        axes.set_ylabel(POINTS)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        footnote(figure, f"lines: {level:.0%} interval; {VERDICT_KEY}; {sample_size(count)}")
    return figure


def cumulative_curve(
    sizes: ArrayLike,
    score_V: ArrayLike,
    low_V: ArrayLike,
    high_V: ArrayLike,
    *,
    baseline: float,
    title: str,
    count: ArrayLike,
    level: float = 0.95,
) -> Figure:
    """Score against the number of heads disabled together, with its interval.

    Args:
        sizes: Numbers of disabled heads.
        score_V, low_V, high_V: Score and confidence limits at each.
        baseline: Score with no head disabled.
    """
    order = np.argsort(np.asarray(sizes))
    size_V, middle_V, lower_V, upper_V = (
        np.asarray(value_V, np.float64)[order] for value_V in (sizes, score_V, low_V, high_V)
    )
    with house_style():
        figure = new_figure(5.6, 3.6, title)
        axes = figure.add_subplot()
        axes.fill_between(size_V, lower_V, upper_V, color=ACCENTS[0], alpha=0.2, linewidth=0)
        axes.plot(size_V, middle_V, "o-", color=ACCENTS[0], markersize=3)
        axes.axhline(baseline, color=QUIET, linewidth=0.8, linestyle="--")
        axes.text(size_V[-1], baseline, "no head disabled", ha="right", va="bottom", fontsize=SMALL, color=QUIET)
        axes.set_xlabel("heads disabled together")
        axes.set_ylabel("score")
        axes.grid(linewidth=0.4, alpha=0.5)
        footnote(figure, f"band: {level:.0%} interval of the change; {sample_size(count)}")
    return figure


def spared_curve(spared: Spared, *, title: str, count: ArrayLike) -> Figure:
    """How many heads lose less than each margin: those shown one by one, and a lower bound on their number.

    Args:
        spared: The counts.
    """
    margin_M, heads = 100 * np.asarray(spared.margins), spared.heads
    with house_style():
        figure = new_figure(5.6, 3.6, title)
        axes = figure.add_subplot()
        axes.fill_between(margin_M, 0, spared.at_least, color=COLOURS[DISPENSABLE][0], linewidth=0)
        axes.plot(margin_M, spared.at_least, color=MARKS[BETTER], label=f"at least ({spared.level:.0%} confidence)")
        rate = f"false discovery rate {spared.false_discovery_rate:.0%}"
        axes.plot(margin_M, spared.each, "--", color=QUIET, label=f"can each be spared ({rate})")
        axes.axvline(100 * spared.margin, color="black", linewidth=0.8, linestyle=":")
        anchor = (100 * spared.margin, 0.5 * heads)
        axes.annotate("judged margin", anchor, (3, 0), textcoords="offset points", fontsize=SMALL, color=QUIET)
        axes.set_xlim(0, margin_M[-1])
        axes.set_ylim(0, 1.03 * heads)
        axes.set_xlabel("margin (points)")
        axes.set_ylabel(f"heads of {heads} that lose less")
        axes.grid(linewidth=0.4, alpha=0.5)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
        footnote(figure, f"the bound holds at each margin by itself; {sample_size(count)}")
    return figure


def effect_trajectory(
    steps: Sequence[int], delta_TV: ArrayLike, names: Sequence[str], *, title: str, count: ArrayLike, named: int = 5
) -> Figure:
    """The effect of each variant over the course of training; those with the largest final effect in colour.

    Args:
        steps: T training steps.
        delta_TV: Change of the score at each step; NaN where a variant was not measured.
        names: Names of the variants.
        named: Number of variants to colour and name.
    """
    point_TV = 100 * np.asarray(delta_TV, np.float64)
    last_V = np.nan_to_num(np.abs(point_TV[-1]))
    largest = [int(i) for i in np.argsort(-last_V, kind="stable")[: min(named, len(ACCENTS), len(names))]]
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.8, title)
        axes = figure.add_subplot()
        for i in range(len(names)):
            if i not in largest:
                axes.plot(steps, point_TV[:, i], color="#d4d4d4", linewidth=0.6, zorder=1)
        for rank, i in enumerate(largest):
            axes.plot(steps, point_TV[:, i], "o-", color=ACCENTS[rank], markersize=4, label=names[i], zorder=2)
        axes.axhline(0, color="black", linewidth=0.6)
        step_axis(axes, steps)
        axes.set_ylabel(POINTS)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, title="largest at the end")
        footnote(figure, f"grey: the other {len(names) - len(largest)}; {sample_size(count)}")
    return figure


REDUNDANT = "redundant"
"""Verdict of a needed group whose heads can replace each other."""

FEWEST_OF_A_BAND = 39
"""Fewer random groups do not reach to both limits of 95 %."""


@dataclass(frozen=True)
class SimilarGroup:
    """Effects of disabling a group of heads with similar maps.

    Args:
        name: The heads of the group.
        alone: Change of the score with each head disabled alone.
        together: Change with all of them disabled.
        but_one: Changes with all but one disabled; empty for a pair.
        random: Changes with as many random heads of the same layers disabled.
        verdict: ``needed``, ``redundant``, ``dispensable`` or ``inconclusive``.
        interaction: The joint change beyond the sum of the single ones, and its limits; NaN where unknown.
    """

    name: str
    alone: Sequence[float]
    together: float
    but_one: Sequence[float]
    random: Sequence[float]
    verdict: str
    interaction: tuple[float, ...] = (math.nan, math.nan, math.nan)


def redundancy_chart(groups: Sequence[SimilarGroup], *, title: str, count: ArrayLike) -> Figure:
    """A row for each group: its heads alone, all but one, all together, and random groups from the same layers.

    Random groups have a band where there are enough of them for its limits, else a tick each.

    Raises:
        ValueError: If there is no group.
    """
    if not groups:
        raise ValueError("A figure of groups needs at least one group")
    with house_style():
        figure = new_figure(PAGE_WIDTH, 0.42 * len(groups) + 2.0, title)
        axes = figure.add_subplot()
        for row, group in enumerate(groups):
            if len(group.random) >= FEWEST_OF_A_BAND:
                low, high = 100 * np.quantile(group.random, [0.025, 0.975])
                axes.fill_betweenx([row - 0.38, row + 0.38], low, high, color="#e2e2e2", linewidth=0)
            else:
                axes.vlines(100 * np.asarray(group.random), row - 0.3, row + 0.3, color="#c8c8c8", linewidth=1.0)
            axes.plot(100 * np.asarray(group.alone), [row - 0.15] * len(group.alone), ".", color=ACCENTS[0])
            axes.plot(
                100 * np.asarray(group.but_one),
                [row + 0.15] * len(group.but_one),
                "x",
                color=ACCENTS[2],
                markersize=4,
            )
            axes.plot(100 * group.together, row, "D", color=ACCENTS[1], markersize=6)
            axes.text(
                1.01,
                row,
                WORDS.get(group.verdict, group.verdict),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=SMALL,
            )
        if any(len(group.random) >= FEWEST_OF_A_BAND for group in groups):
            axes.fill_betweenx([], [], [], color="#e2e2e2", label="random groups of the same layers (95 %)")
        if any(0 < len(group.random) < FEWEST_OF_A_BAND for group in groups):
            axes.plot([], [], "|", color="#c8c8c8", label="a random group of the same layers")
        axes.plot([], [], ".", color=ACCENTS[0], label="one head alone")
        axes.plot([], [], "x", color=ACCENTS[2], markersize=4, label="all but one")
        axes.plot([], [], "D", color=ACCENTS[1], markersize=6, label="all together")
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_yticks(range(len(groups)), [group.name for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlabel(POINTS)
        axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
        footnote(figure, f"{sample_size(count)}; names: layer-head, counted from 0")
    return figure
