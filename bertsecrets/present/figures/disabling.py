"""Effects of disabling heads, layers and sets of heads on the score, from tested rows of one kind, metric and mode.

``title`` is always the figure's title.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
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
from bertsecrets.results.formatting import level_text, number
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

_NAMED, _COLOURED = 6, 5
"""Number of labelled variants at each end, and of coloured ones during training."""


def _axis(rows: Sequence[Row]) -> str:
    """What an axis of changes of the score shows; there may be no row."""
    return score_change(rows[0].get("metric", "") if rows else "")


def _points(rows: Sequence[Row]) -> list[Array]:
    """Changes of the score and their simultaneous limits, in points."""
    return list(100 * np.array([(row["delta"], *joint_limits(row)) for row in rows], np.float64).reshape(-1, 3).T)


def _labels(rows: Sequence[Row]) -> list[str]:
    return [KINDS[row["kind"]].label_of(row) for row in rows]


def _count(rows: Sequence[Row]) -> str:
    """The numbers of examples, which differ in a sweep that stopped early."""
    return sample_size([row["count"] for row in rows])


def disabling_heatmap(rows: Sequence[Row], *, title: str) -> Figure:
    """A cell for each head: red if needed, darker for larger losses; blue if disabling it raises the score; pale blue
    if it can be spared; hatched if there are not enough examples to tell.

    Args:
        rows: Rows of a kind with a grid over layers and heads, or groups of neurons.
    """
    kind, margin = KINDS[rows[0]["kind"]], rows[0]["margin"]
    point_LH = np.full([max(row[name] for row in rows) + 1 for name in ("layer", "head")], np.nan)
    verdicts = {kind.cell(row): shown_verdict(row) for row in rows if math.isfinite(row["delta"])}
    for row in rows:
        point_LH[kind.cell(row)] = 100 * row["delta"]
    certain = {cell for cell, verdict in verdicts.items() if verdict in (NEEDED, BETTER)}
    certain_LH = np.zeros(point_LH.shape, bool)
    certain_LH[tuple(np.array(sorted(certain), int).reshape(-1, 2).T)] = True
    looks: dict[str, dict[str, Any]] = {
        DISPENSABLE: {"facecolor": COLOURS[DISPENSABLE][0], "edgecolor": "white"},
        INCONCLUSIVE: {"fill": False, "edgecolor": COLOURS[INCONCLUSIVE][0], "hatch": "///", "linewidth": 0},
    }
    with house_style():
        figure, axes, width = one_grid(title, *point_LH.shape, least_width=5.2, extra=1.8)
        axes.set_xlabel(kind.column)
        norm, colours = effect_scale(np.where(certain_LH, point_LH, 0.0) if certain else point_LH)
        mesh = draw_grid(axes, point_LH, norm, colours, coloured_RC=certain_LH)
        texts = {}
        for (layer, head), verdict in verdicts.items():
            if verdict in looks:
                axes.add_patch(Rectangle((head, layer), 1, 1, **looks[verdict]))
            else:
                axes.add_patch(Rectangle((head + 0.03, layer + 0.03), 0.94, 0.94, fill=False, edgecolor="black"))
            # As precise as fits; significant numbers lose their decimals before they vanish.
            value, bold = float(point_LH[layer, head]), verdict not in looks
            digits = (2 if abs(value) < 0.1 else 1, 0) if bold else (1,)
            fitting = [text for text in (number(value, count) for count in digits) if fits(text, width, bold=bold)]
            texts[layer, head] = next(iter(fitting), "")
        write_in_cells(axes, mesh, texts, bold=certain)
        colour_bar(figure, mesh, axes, _axis(rows))
        ruled_out = "" if margin is None else f" (a loss of {number(100 * margin, 1)} points or more is ruled out)"
        footnote(
            figure,
            f"red: {WORDS[NEEDED]}, blue: {WORDS[BETTER]} (corrected over all {kind.column}s); pale blue: "
            f"{WORDS[DISPENSABLE]}{ruled_out}; hatched: {WORDS[INCONCLUSIVE]}; {_count(rows)}; layers and "
            f"{kind.column}s count from 0",
        )
    return figure


def effects_in_order(rows: Sequence[Row], *, title: str) -> Figure:
    """Every variant with its interval, coloured by its verdict: the most harmful first, layers in their own order.
    Of many variants, both ends are labelled.

    Rows without a defined score are omitted and counted in the footnote.
    """
    order = [row for row in rows if math.isfinite(row["delta"])]
    if KINDS[rows[0]["kind"]].axes != ("layer",):
        order.sort(key=lambda row: float(row["delta"]))
    few = len(rows) <= 40
    missing = len(rows) - len(order)
    undefined = f"; not drawn: {missing} without a defined score" if missing else ""
    note = (
        f"bars: simultaneous {level_text(rows[0]['level'])} intervals; red: {WORDS[NEEDED]}, dark blue: "
        f"{WORDS[BETTER]}, pale blue: {WORDS[DISPENSABLE]}, grey: {WORDS[INCONCLUSIVE]}; {_count(rows)}{undefined}"
    )
    height = max(2.4, 0.2 * len(rows) + 1.6) if few else 4.2
    labels = (_axis(order), "") if few else (f"{len(order)} variants, most harmful first", _axis(order))
    with chart(PAGE_WIDTH, height, title, *labels, note, grid="x" if few else "y") as (figure, axes):
        (delta_V, low_V, high_V), verdicts = _points(order), [shown_verdict(row) for row in order]
        place_V = np.arange(len(order))
        # Significant ones are drawn last, over the others.
        for code, width in ((INCONCLUSIVE, 0.8), (DISPENSABLE, 0.8), (NEEDED, 1.4), (BETTER, 1.4)):
            of_code = [verdict == code for verdict in verdicts]
            place_N, delta_N, limits = place_V[of_code], delta_V[of_code], (low_V[of_code], high_V[of_code])
            if few:
                axes.hlines(place_N, *limits, color=MARKS[code], linewidth=1.6)
                axes.plot(delta_N, place_N, "o", color=MARKS[code], markersize=5)
            else:
                axes.vlines(place_N, *limits, color=MARKS[code], linewidth=width)
                axes.plot(place_N, delta_N, "o", color=MARKS[code], markersize=3)
        if few:
            axes.axvline(0, color="black", linewidth=0.6)
            axes.set_yticks(place_V, _labels(order))
            axes.set_ylim(max(len(order), 1) - 0.5, -0.5)
            return figure
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xticks([])
        axes.margins(x=0.02)
        # Names stand next to the panel, so that they do not cover the data.
        for start, alignment, heading, ends in (
            (1.0, "top", "most harmful", order[:_NAMED]),
            (0.0, "bottom", "most helpful", order[-_NAMED:]),
        ):
            lines = [f"{label} {number(100 * row['delta'], 1)}" for label, row in zip(_labels(ends), ends, strict=True)]
            axes.text(1.02, start, "\n".join([heading, *lines]), transform=axes.transAxes, va=alignment, fontsize=SMALL)
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
        axes.plot(margin_M, at_least_M, color=MARKS[BETTER], label=f"at least ({level_text(spared.level)} confidence)")
        axes.plot(margin_M, each_M, "--", color=QUIET, label="can each be spared")
        if spared.margin is not None:
            axes.axvline(100 * spared.margin, color="black", linewidth=0.8, linestyle=":")
            anchor = (100 * spared.margin, 0.5 * heads)
            axes.annotate("judged margin", anchor, (3, 0), textcoords="offset points", fontsize=SMALL, color=QUIET)
        axes.set_xlim(0, margin_M[-1])
        axes.set_ylim(0, 1.03 * heads)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
    return figure


def effect_trajectory(rows: Sequence[Row], history: Sequence[Row], *, title: str) -> Figure:
    """The effect of each variant during training; variants with the largest final effect are coloured.

    Args:
        rows: The variants.
        history: Their rows at the training steps, possibly with other variants.
    """
    steps, names = sorted({row["step"] for row in history}), _labels(rows)
    variants = [row["variant"] for row in rows]
    point_TV = np.full((len(steps), len(rows)), np.nan)
    for row in history:
        if row["variant"] in variants:
            point_TV[steps.index(row["step"]), variants.index(row["variant"])] = 100 * row["delta"]
    last_V = np.nan_to_num(np.abs(point_TV[-1]))
    largest = [int(i) for i in np.argsort(-last_V, kind="stable")[:_COLOURED]]
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


def redundancy_chart(groups: Sequence[Group], *, title: str) -> Figure:
    """A row for each group: its single heads, all but one, the whole group, and random groups from the same layers."""
    rows = [group.row for group in groups]
    note = f"{_count(rows)}; names: layer-head, counted from 0"
    looks: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("a random group of the same layers", "|", {"color": "#c8c8c8", "markersize": 12}),
        ("one head alone", ".", {"color": ACCENTS[0]}),
        ("all but one", "x", {"color": ACCENTS[2], "markersize": 4}),
        ("all together", "D", {"color": ACCENTS[1], "markersize": 6}),
    )
    with chart(PAGE_WIDTH, 0.42 * len(groups) + 2.0, title, _axis(rows), "", note, grid="x") as (figure, axes):
        labelled: set[str] = set()
        for place, group in enumerate(groups):
            # In a pair, "all but one" is the other single head.
            but_one = group.but_one if len(group.alone) > 2 else ()
            parts = zip(looks, (group.controls, group.alone, but_one, [group.row]), (0, -0.15, 0.15, 0), strict=True)
            for (label, marker, look), variants, shift in parts:
                if variants:
                    point_V = _points(variants)[0]
                    shown = None if label in labelled else label
                    axes.plot(point_V, [place + shift] * len(point_V), marker, linestyle="none", label=shown, **look)
                    labelled.add(label)
            axes.text(
                1.01,
                place,
                WORDS.get(group.verdict, group.verdict),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=SMALL,
            )
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_yticks(range(len(groups)), _labels(rows))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, borderaxespad=0.0)
    return figure
