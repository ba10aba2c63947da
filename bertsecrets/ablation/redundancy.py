"""Redundant groups of heads: together they do harm that their heads alone do not add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import Array
from bertsecrets.ablation.significance import bootstrap_changes
from bertsecrets.ablation.verdicts import Judging
from bertsecrets.results.components import GROUP, GROUP_BUT_ONE, HEAD, RANDOM
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED
from bertsecrets.statistics.corrections import corrected

FEWEST_CONTROLS = 19
"""Fewer random groups cannot show at 5 % that a group is worse than they are."""

_CONTROL_LEVEL = 0.05

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Interactions:
    """The joint effects of G groups beyond the sum of their heads' single effects; negative is harm.

    Args:
        estimate, low, high: The interactions and their bootstrap limits.
        p_value: One-sided p-values of an interaction of 0 or more, corrected over the groups.
    """

    estimate: Array
    low: Array
    high: Array
    p_value: Array


def interactions(metric: str, paired: PairedPredictions, sizes: Sequence[int], judging: Judging) -> Interactions:
    """Joint effects less the sums of the single effects, by a bootstrap over examples.

    Args:
        metric: The metric.
        paired: Predictions with each group disabled, then with each head of the first group disabled alone, of the second, ...
        sizes: Number of heads of each group.
        judging: Level of the limits; number of resamples and their seed.
    """
    resampled_RV = bootstrap_changes(metric, paired, judging.resamples, np.random.default_rng([judging.seed, 0]))
    whole, groups = paired.changes(metric), len(sizes)
    ends = groups + np.cumsum([0, *sizes])
    estimate_G, resampled_RG = (
        np.stack(
            [change[..., g] - change[..., ends[g] : ends[g + 1]].sum(-1) for g in range(groups)],
            -1,
        )
        for change in (whole, resampled_RV)
    )
    tail = (1 - judging.level) / 2
    low_G, high_G = np.full(groups, np.nan), np.full(groups, np.nan)
    defined_G = np.isfinite(resampled_RG).any(0) & np.isfinite(estimate_G)
    low_G[defined_G], high_G[defined_G] = np.nanquantile(resampled_RG[:, defined_G], [tail, 1 - tail], axis=0)
    # An undefined resample counts against the interaction; so do rounding errors of sums that cancel.
    p_G = ((~(resampled_RG < -1e-12)).sum(0) + 1) / (judging.resamples + 1)
    return Interactions(estimate_G, low_G, high_G, corrected(np.where(defined_G, p_G, np.nan)))


def p_of_controls(together: float, controls: Sequence[float]) -> float:
    """Share of a group and its controls that do as much harm as the group; NaN with fewer than ``FEWEST_CONTROLS``."""
    if len(controls) < FEWEST_CONTROLS:
        return float("nan")
    # The group is one of its own controls: p is never 0. 1e-12: sums in another order.
    return (1 + sum(control <= together + 1e-12 for control in controls)) / (1 + len(controls))


def is_redundant(
    together: str, but_one: Sequence[str], p_interaction: float, p_controls: float, false_discovery_rate: float
) -> bool:
    """Whether the heads of a group can replace each other: the group is needed, and no head of it is.

    Args:
        together: Verdict of the whole group.
        but_one: Verdicts of the group without each of its heads; each must be shown to be dispensable.
        p_interaction: P-value of the joint effect being no worse than the sum of the single effects, corrected.
        p_controls: P-value of random groups from the same layers being as bad.
        false_discovery_rate: Largest significant ``p_interaction``.
    """
    return bool(
        together == NEEDED
        and but_one
        and all(verdict == DISPENSABLE for verdict in but_one)
        and p_interaction <= false_discovery_rate
        and p_controls <= _CONTROL_LEVEL
    )


def parts_of(group: Row, rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """A group's heads disabled alone, the group without each of its heads, and random groups from the same layers.

    Each list is empty unless complete: one row for every head of the group.

    Args:
        group: The row of a group of two heads or more.
        rows: All rows of its metric, mode, set and step.
    """
    heads = group["heads"].split(" ")
    single = {row["heads"]: row for row in HEAD.of(rows)}
    alone = [single[head] for head in heads if head in single]
    # Without one head of a pair the other remains: its row exists already.
    if len(heads) == 2:
        but_one = alone[::-1]
    else:
        rest = {row["heads"]: row for row in GROUP_BUT_ONE.of(rows)}
        without = [" ".join(other for other in heads if other != head) for head in heads]
        but_one = [rest[other] for other in without if other in rest]
    controls = [row for row in RANDOM.of(rows) if _layers(row) == _layers(group) and row["heads"] != group["heads"]]
    whole = [part if len(part) == len(heads) else [] for part in (alone, but_one)]
    return whole[0], whole[1], controls


def _layers(row: Row) -> list[str]:
    return sorted(head.split("-")[0] for head in row["heads"].split(" "))


def redundancy(
    rows: Sequence[Row], metric: str, paired: PairedPredictions, names: Sequence[str], judging: Judging
) -> dict[str, dict[str, Any]]:
    """The columns of an ablation table on redundancy, by name of the group; empty without groups of heads disabled alone.

    Args:
        rows: The judged rows of one metric.
        metric: The metric.
        paired: The predictions.
        names: The variants' names.
        judging: How effects are judged.
    """
    groups = [row for row in GROUP.of(rows) if row["num_heads"] > 1 and parts_of(row, rows)[0]]
    if not groups:
        return {}
    parts = [parts_of(row, rows) for row in groups]
    index_of = {name: index for index, name in enumerate(names)}
    disabled = [index_of[row["variant"]] for row in [*groups, *(row for alone, _, _ in parts for row in alone)]]
    joint = interactions(metric, paired.of(disabled), [len(alone) for alone, _, _ in parts], judging)
    columns = {}
    for index, (row, (_, but_one, controls)) in enumerate(zip(groups, parts, strict=True)):
        p_controls = p_of_controls(row["delta"], [control["delta"] for control in controls])
        p_interaction = float(joint.p_value[index])
        columns[row["variant"]] = {
            "interaction": float(joint.estimate[index]),
            "interaction_low": float(joint.low[index]),
            "interaction_high": float(joint.high[index]),
            "p_interaction": p_interaction,
            "p_controls": p_controls,
            "redundant": is_redundant(
                row["verdict"],
                [other["verdict"] for other in but_one],
                p_interaction,
                p_controls,
                judging.false_discovery_rate,
            ),
        }
    return columns
