"""Effects of disabling heads, layers and sets of heads on the score, from tested rows of one kind, metric and mode.

``title`` is always the figure's title.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from bertsecrets.ablation.redundancy import Group
from bertsecrets.ablation.rows import Spared, SparedAt
from bertsecrets.present.figures.grids import draw_grid, fits, one_grid, write_in_cells
from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    SMALL,
    chart,
    colour_bar,
    effect_scale,
    footnote,
    house_style,
    sample_size,
    score_change,
    step_axis,
)
from bertsecrets.results.components import KINDS, Row
from bertsecrets.results.formatting import number
from bertsecrets.results.verdicts import (
    BETTER,
    COLOURS,
    DISPENSABLE,
    INCONCLUSIVE,
    MARKS,
    NEEDED,
    WORDS,
    joint_limits,
    shown_verdict,
)
from bertsecrets.task_heads import unit_of

Array = NDArray[np.float64]

_NAMED = 6
"""Number of labelled variants at each end."""


def _numbers(rows: Sequence[Row], *names: str) -> list[Array]:
    """Columns of the rows."""
    return [np.array([row[name] for row in rows], np.float64) for name in names]


def _axis(rows: Sequence[Row]) -> str:
    """What an axis of changes of the score shows; there may be no row."""
    return score_change(rows[0].get("metric", "") if rows else "")


def _points(rows: Sequence[Row]) -> list[Array]:
    """Changes of the score and their simultaneous limits, in points."""
    limits_V2 = np.array([joint_limits(row) for row in rows]).reshape(-1, 2)
    return [100 * number_V for number_V in (*_numbers(rows, "delta"), *limits_V2.T)]


def _labels(rows: Sequence[Row]) -> list[str]:
    return [KINDS[row["kind"]].label_of(row) for row in rows]


def _colours(rows: Sequence[Row]) -> NDArray[np.str_]:
    """The colour of each row's verdict."""
    return np.array([MARKS[shown_verdict(row)] for row in rows], np.str_)


def _count(rows: Sequence[Row]) -> str:
    """The numbers of examples, which differ in a sweep that stopped early."""
    return sample_size([row["count"] for row in rows])


def _within(margin: float | None) -> str:
    """Part of a footnote: the meaning of "can be spared"."""
    return "" if margin is None else f" (a loss of {number(100 * margin, 1)} points or more is ruled out)"


def disabling_heatmap(rows: Sequence[Row], *, title: str, smallest_effect: float) -> Figure:
    """A cell for each head: red if needed, darker for larger losses; blue if disabling it raises the score; pale blue
    if it can be spared; hatched if there are not enough examples to tell.

    Args:
        rows: Rows of a kind with a grid over layers and heads, or groups of neurons.
        smallest_effect: The smallest loss detected with 80 % power, as a difference of scores; NaN if unknown.
    """
    kind = KINDS[rows[0]["kind"]]
    column = kind.column
    point_LH = np.full([max(row[name] for row in rows) + 1 for name in ("layer", "head")], np.nan)
    code_LH = np.full(point_LH.shape, INCONCLUSIVE, object)
    for row in rows:
        point_LH[kind.cell(row)], code_LH[kind.cell(row)] = 100 * row["delta"], shown_verdict(row)
    defined_LH = np.isfinite(point_LH)
    certain_LH = ((code_LH == NEEDED) | (code_LH == BETTER)) & defined_LH
    spared_LH = (code_LH == DISPENSABLE) & defined_LH
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
        colour_bar(figure, mesh, axes, _axis(rows))
        reach = (
            f"a loss of {number(100 * smallest_effect, 1)} points is detected with 80 % power (median {column}); "
            if math.isfinite(smallest_effect)
            else ""
        )
        footnote(
            figure,
            f"red: {WORDS[NEEDED]}, blue: {WORDS[BETTER]} (corrected over all {column}s); pale blue: "
            f"{WORDS[DISPENSABLE]}{_within(rows[0]['margin'])}; hatched: {WORDS[INCONCLUSIVE]}; {reach}"
            f"{_count(rows)}; layers and {column}s count from 0",
        )
    return figure


def _cell_text(value: float, certain: bool, width: float) -> str:
    """The number in a cell, as precise as fits; empty if it would touch its neighbour."""
    text = number(value, 2 if certain and abs(value) < 0.1 else 1)
    # Significant numbers lose their decimals before they vanish.
    if certain and not fits(text, width, bold=True):
        text = number(value, 0)
    return text if fits(text, width, bold=certain) else ""


def sorted_effects(rows: Sequence[Row], *, title: str) -> Figure:
    """Every variant from most harmful to most helpful, with its interval, coloured by its verdict; both ends are
    labelled.

    Rows without a defined score are omitted and counted in the footnote.
    """
    delta_V = _points(rows)[0]
    # NaN sorts last, which would make an undefined score the best one.
    order = [rows[i] for i in np.argsort(delta_V, kind="stable")[: np.isfinite(delta_V).sum()]]
    few = len(rows) <= 40
    missing = len(rows) - len(order)
    undefined = f"; not drawn: {missing} without a defined score" if missing else ""
    note = (
        f"bars: simultaneous {rows[0]['level']:.0%} intervals; *: significant after correction; {_VERDICT_KEY}; "
        f"{_count(rows)}{undefined}"
    )
    height = max(2.4, 0.2 * len(rows) + 1.6) if few else 4.2
    labels = (_axis(order), "") if few else (f"{len(order)} variants, most harmful first", _axis(order))
    with chart(PAGE_WIDTH, height, title, *labels, note, grid="x" if few else "y") as (figure, axes):
        (_few_effects if few else _many_effects)(axes, order)
    return figure


_VERDICT_KEY = (
    f"red: {WORDS[NEEDED]}, dark blue: {WORDS[BETTER]}, pale blue: {WORDS[DISPENSABLE]}, grey: {WORDS[INCONCLUSIVE]}"
)
"""Part of a footnote: the meaning of the verdicts' colours."""


def _few_effects(axes: Axes, rows: Sequence[Row]) -> None:
    names = _labels(rows)
    for place, (delta, low, high, colour) in enumerate(zip(*_points(rows), _colours(rows), strict=True)):
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
        axes.plot(delta, place, "o", color=colour, markersize=5)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)


def _many_effects(axes: Axes, rows: Sequence[Row]) -> None:
    (delta_V, low_V, high_V), colour_V = _points(rows), _colours(rows)
    for code, width in ((INCONCLUSIVE, 0.8), (DISPENSABLE, 0.8), (NEEDED, 1.4), (BETTER, 1.4)):
        colour = MARKS[code]
        ranks = np.flatnonzero(colour_V == colour)
        axes.vlines(ranks, low_V[ranks], high_V[ranks], color=colour, linewidth=width)
        axes.plot(ranks, delta_V[ranks], "o", color=colour, markersize=3)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks([])
    axes.margins(x=0.02)
    # Names stand next to the panel, so that they do not cover the data.
    for start, alignment, heading, listed in (
        (1.0, "top", "most harmful", rows[:_NAMED]),
        (0.0, "bottom", "most helpful", rows[-_NAMED:]),
    ):
        stars = ["*" if shown_verdict(row) in (NEEDED, BETTER) else "" for row in listed]
        lines = [
            f"{name} {number(100 * row['delta'], 1)}{star}"
            for name, row, star in zip(_labels(listed), listed, stars, strict=True)
        ]
        axes.text(1.02, start, "\n".join([heading, *lines]), transform=axes.transAxes, va=alignment, fontsize=SMALL)


def layer_bars(rows: Sequence[Row], *, title: str) -> Figure:
    """A bar with its interval for each layer, coloured by its verdict."""
    delta_L, low_L, high_L = _points(rows)
    x_L = np.arange(len(rows))
    width, labels = max(4.6, 0.45 * len(rows) + 1.4), ("layer (0 next to the input)", _axis(rows))
    note = f"lines: simultaneous {rows[0]['level']:.0%} intervals; {_VERDICT_KEY}; {_count(rows)}"
    with chart(width, 3.4, title, *labels, note, grid="y") as (figure, axes):
        axes.bar(x_L, delta_L, color=_colours(rows), width=0.7)
        # A white rim keeps the line visible on a dark bar.
        axes.vlines(x_L, low_L, high_L, color="white", linewidth=3.4)
        axes.vlines(x_L, low_L, high_L, color="black", linewidth=1.4)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xticks(x_L, [str(row["layer"]) for row in rows])
        axes.set_axisbelow(True)
    return figure


def spared_curve(spared: Spared, curve: Sequence[SparedAt], *, title: str, count: ArrayLike) -> Figure:
    """The number of heads that lose less than each margin, individually tested, and a lower bound on it.

    Args:
        spared: The counts at the tested margin.
        curve: The counts at each margin.
        count: Numbers of examples.
    """
    margin_M, at_least_M, each_M = (
        np.array([getattr(point, name) for point in curve]) for name in ("margin", "at_least", "each")
    )
    margin_M, heads = 100 * margin_M, spared.heads
    labels = f"margin ({unit_of(spared.metric)})", f"heads of {heads} that lose less"
    note = f"the bound is pointwise for each margin; {sample_size(count)}"
    with chart(5.6, 3.6, title, *labels, note) as (figure, axes):
        axes.fill_between(margin_M, 0, at_least_M, color=COLOURS[DISPENSABLE][0], linewidth=0)
        axes.plot(margin_M, at_least_M, color=MARKS[BETTER], label=f"at least ({spared.level:.0%} confidence)")
        axes.plot(margin_M, each_M, "--", color=QUIET, label="can each be spared")
        if spared.margin is not None:
            axes.axvline(100 * spared.margin, color="black", linewidth=0.8, linestyle=":")
            anchor = (100 * spared.margin, 0.5 * heads)
            axes.annotate("judged margin", anchor, (3, 0), textcoords="offset points", fontsize=SMALL, color=QUIET)
        axes.set_xlim(0, margin_M[-1])
        axes.set_ylim(0, 1.03 * heads)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
    return figure


def effect_trajectory(rows: Sequence[Row], history: Sequence[Row], *, title: str, named: int = 5) -> Figure:
    """The effect of each variant during training; variants with the largest final effect are coloured.

    Args:
        rows: The variants.
        history: Their rows at the training steps, possibly with other variants.
        named: Number of variants to colour and label.
    """
    steps, names = sorted({row["step"] for row in history}), _labels(rows)
    variants = [row["variant"] for row in rows]
    point_TV = np.full((len(steps), len(rows)), np.nan)
    for row in history:
        if row["variant"] in variants:
            point_TV[steps.index(row["step"]), variants.index(row["variant"])] = 100 * row["delta"]
    last_V = np.nan_to_num(np.abs(point_TV[-1]))
    largest = [int(i) for i in np.argsort(-last_V, kind="stable")[: min(named, len(ACCENTS), len(names))]]
    note = f"grey: the other {len(names) - len(largest)}; {_count(rows)}"
    with chart(PAGE_WIDTH, 3.8, title, "", _axis(rows), note, grid="y") as (figure, axes):
        for i in range(len(names)):
            if i not in largest:
                axes.plot(steps, point_TV[:, i], color="#d4d4d4", linewidth=0.6, zorder=1)
        for rank, i in enumerate(largest):
            axes.plot(steps, point_TV[:, i], "o-", color=ACCENTS[rank], markersize=4, label=names[i], zorder=2)
        axes.axhline(0, color="black", linewidth=0.6)
        step_axis(axes, steps)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, title="largest at the end")
    return figure


FEWEST_OF_A_BAND = 39
"""Least number of random groups for 95 % limits."""


def redundancy_chart(groups: Sequence[Group], *, title: str) -> Figure:
    """A row for each group: its single heads, all but one, the whole group, and random groups from the same layers.

    Random groups have a band if there are enough of them for its limits, else a tick each.
    """
    rows = [group.row for group in groups]
    note = f"{_count(rows)}; names: layer-head, counted from 0"
    with chart(PAGE_WIDTH, 0.42 * len(groups) + 2.0, title, _axis(rows), "", note, grid="x") as (figure, axes):
        for place, group in enumerate(groups):
            together, alone_V, but_one_V, random_V = (
                _points(some)[0] for some in ([group.row], group.alone, group.but_one, group.controls)
            )
            if len(random_V) >= FEWEST_OF_A_BAND:
                low, high = np.quantile(random_V, [0.025, 0.975])
                axes.fill_betweenx([place - 0.38, place + 0.38], low, high, color="#e2e2e2", linewidth=0)
            else:
                axes.vlines(random_V, place - 0.3, place + 0.3, color="#c8c8c8", linewidth=1.0)
            axes.plot(alone_V, [place - 0.15] * len(alone_V), ".", color=ACCENTS[0])
            # In a pair, "all but one" is the other single head.
            rest_V = but_one_V if len(alone_V) > 2 else but_one_V[:0]
            axes.plot(rest_V, [place + 0.15] * len(rest_V), "x", color=ACCENTS[2], markersize=4)
            axes.plot(together, place, "D", color=ACCENTS[1], markersize=6)
            axes.text(
                1.01,
                place,
                WORDS.get(group.verdict, group.verdict),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=SMALL,
            )
        if any(len(group.controls) >= FEWEST_OF_A_BAND for group in groups):
            axes.fill_betweenx([], [], [], color="#e2e2e2", label="random groups of the same layers (95 %)")
        if any(0 < len(group.controls) < FEWEST_OF_A_BAND for group in groups):
            axes.plot([], [], "|", color="#c8c8c8", label="a random group of the same layers")
        axes.plot([], [], ".", color=ACCENTS[0], label="one head alone")
        if any(len(group.alone) > 2 for group in groups):
            axes.plot([], [], "x", color=ACCENTS[2], markersize=4, label="all but one")
        axes.plot([], [], "D", color=ACCENTS[1], markersize=6, label="all together")
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_yticks(range(len(groups)), _labels(rows))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
    return figure
