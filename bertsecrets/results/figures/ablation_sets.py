"""Effects of disabling whole layers and sets of heads on the score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from bertsecrets.results.figures.ablation_heads import POINTS, VERDICT_KEY, verdict_colours
from bertsecrets.results.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    footnote,
    house_style,
    new_figure,
    sample_size,
    step_axis,
)
from bertsecrets.results.verdicts import WORDS


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
        title: What the figure shows.
        count: Number of examples.
        level: Level of the limits.
    """
    delta_L, low_L, high_L = (100 * np.asarray(each, np.float64) for each in (delta_L, low_L, high_L))
    colours = verdict_colours(delta_L, significant_L, dispensable_L)
    with house_style():
        figure = new_figure(max(4.6, 0.45 * len(layers) + 1.4), 3.4, title)
        axes = figure.add_subplot()
        places = np.arange(len(layers))
        axes.bar(places, delta_L, color=colours, width=0.7)
        # A white rim keeps the line visible on a dark bar.
        axes.vlines(places, low_L, high_L, color="white", linewidth=3.4)
        axes.vlines(places, low_L, high_L, color="black", linewidth=1.4)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xticks(places, [str(layer) for layer in layers])
        axes.set_xlabel("disabled layer (0 next to the input)")
        axes.set_axisbelow(True)
        axes.set_ylabel(POINTS)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        footnote(
            figure,
            f"lines: {level:.0%} interval; {VERDICT_KEY}; {sample_size(count)}",
        )
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
        title: What the figure shows.
        count: Number of examples.
        level: Level of the limits.
    """
    order = np.argsort(np.asarray(sizes))
    size_V, middle_V, lower_V, upper_V = (
        np.asarray(each, np.float64)[order] for each in (sizes, score_V, low_V, high_V)
    )
    with house_style():
        figure = new_figure(5.6, 3.6, title)
        axes = figure.add_subplot()
        axes.fill_between(size_V, lower_V, upper_V, color=ACCENTS[0], alpha=0.2, linewidth=0)
        axes.plot(size_V, middle_V, "o-", color=ACCENTS[0], markersize=3)
        axes.axhline(baseline, color=QUIET, linewidth=0.8, linestyle="--")
        axes.text(size_V[-1], baseline, "no head disabled", ha="right", va="bottom", fontsize=8.0, color=QUIET)
        axes.set_xlabel("heads disabled together")
        axes.set_ylabel("score")
        axes.grid(linewidth=0.4, alpha=0.5)
        footnote(figure, f"band: {level:.0%} interval of the change; {sample_size(count)}")
    return figure


def effect_trajectory(
    steps: Sequence[int], delta_TV: ArrayLike, names: Sequence[str], *, title: str, count: ArrayLike, named: int = 5
) -> Figure:
    """The effect of each variant over the course of training; those with the largest final effect in colour.

    Args:
        steps: T training steps.
        delta_TV: Change of the score at each step; NaN where a variant was not measured.
        names: Names of the variants.
        title: What the figure shows.
        count: Number of examples.
        named: Number of variants to colour and name.
    """
    point_TV = 100 * np.asarray(delta_TV, np.float64)
    last_V = np.nan_to_num(np.abs(point_TV[-1]))
    chosen = [int(i) for i in np.argsort(-last_V, kind="stable")[: min(named, len(ACCENTS), len(names))]]
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.8, title)
        axes = figure.add_subplot()
        for i in range(len(names)):
            if i not in chosen:
                axes.plot(steps, point_TV[:, i], color="#d4d4d4", linewidth=0.6, zorder=1)
        for place, i in enumerate(chosen):
            axes.plot(steps, point_TV[:, i], "o-", color=ACCENTS[place], markersize=4, label=names[i], zorder=2)
        axes.axhline(0, color="black", linewidth=0.6)
        step_axis(axes, steps)
        axes.set_ylabel(POINTS)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, title="largest at the end")
        footnote(figure, f"grey: the other {len(names) - len(chosen)}; {sample_size(count)}")
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
                low, high = (100 * float(each) for each in np.quantile(group.random, [0.025, 0.975]))
                axes.fill_betweenx([row - 0.38, row + 0.38], low, high, color="#e2e2e2", linewidth=0)
            else:
                axes.vlines([100 * each for each in group.random], row - 0.3, row + 0.3, color="#c8c8c8", linewidth=1.0)
            axes.plot([100 * each for each in group.alone], [row - 0.15] * len(group.alone), ".", color=ACCENTS[0])
            axes.plot(
                [100 * each for each in group.but_one],
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
                fontsize=8.0,
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
