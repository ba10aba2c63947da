"""Redundant groups of heads: disabling them together does more harm than the sum of their heads' effects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.significance import bootstrap_changes
from bertsecrets.ablation.verdicts import Judging
from bertsecrets.results.components import GROUP, GROUP_BUT_ONE, HEAD, RANDOM
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED
from bertsecrets.statistics.corrections import corrected
from bertsecrets.task_heads.metric import Array, Metric

FEWEST_CONTROLS = 19
"""With fewer random groups, a group cannot be shown at 5 % to be worse than they are."""

_CONTROL_LEVEL = 0.05

REDUNDANT = "redundant"
"""Verdict of a needed group whose heads can replace each other."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """The tested row of a group of heads, and the rows that it is compared with.

    Args:
        row: All of its heads disabled together.
        alone: Each head disabled alone.
        but_one: The group without each of its heads; empty if incomplete.
        controls: As many random heads of the same layers disabled.
    """

    row: Row
    alone: Sequence[Row]
    but_one: Sequence[Row]
    controls: Sequence[Row]

    @property
    def verdict(self) -> str:
        """The verdict of the row, or that the group is redundant."""
        return REDUNDANT if self.row["redundant"] else str(self.row["verdict"])


def interactions(
    metric: Metric, paired: PairedPredictions, sizes: Sequence[int], judging: Judging
) -> tuple[Array, Array, Array, Array]:
    """Joint effects of G groups minus the sums of their heads' single effects, by a bootstrap over examples; negative
    means harm.

    Args:
        metric: The metric.
        paired: Predictions with each group disabled, then with each head of the first group disabled alone, of the
            second, ...
        sizes: Number of heads of each group.
        judging: Level of the limits; number of resamples and their seed.

    Returns:
        The interactions, their lower and upper limits, and the one-sided p-values of an interaction of 0 or more,
        corrected over the groups, ``[G]`` each.
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
    # An undefined resample counts against the interaction, as do rounding errors of sums that cancel.
    p_G = ((~(resampled_RG < -1e-12)).sum(0) + 1) / (judging.resamples + 1)
    return estimate_G, low_G, high_G, corrected(np.where(defined_G, p_G, np.nan))


def p_of_controls(together: float, controls: Sequence[float]) -> float:
    """Share of a group and its controls that do at least as much harm as the group; NaN with fewer than
    ``FEWEST_CONTROLS``.
    """
    if len(controls) < FEWEST_CONTROLS:
        return float("nan")
    # The group is one of its own controls, so p is never 0. 1e-12: sums in a different order.
    return (1 + sum(control <= together + 1e-12 for control in controls)) / (1 + len(controls))


def is_redundant(
    together: str, but_one: Sequence[str], p_interaction: float, p_controls: float, false_discovery_rate: float
) -> bool:
    """Whether the heads of a group can replace each other: the group is needed, but none of its heads is.

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


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """The groups of two or more heads whose heads were also disabled alone.

    Args:
        rows: All rows of one metric, mode, set and step.
    """
    single, rest = ({row["heads"]: row for row in kind.of(rows)} for kind in (HEAD, GROUP_BUT_ONE))
    groups = []
    for row in GROUP.of(rows):
        heads = row["heads"].split(" ")
        if len(heads) < 2 or not all(head in single for head in heads):
            continue
        # A pair without one of its heads is the other head, whose row exists already.
        of_others = rest if len(heads) > 2 else single
        others = [" ".join(other for other in heads if other != head) for head in heads]
        but_one = [of_others[other] for other in others] if all(other in of_others for other in others) else []
        controls = [
            other for other in RANDOM.of(rows) if _layers(other) == _layers(row) and other["heads"] != row["heads"]
        ]
        groups.append(Group(row, [single[head] for head in heads], but_one, controls))
    return groups


def _layers(row: Row) -> list[str]:
    return sorted(head.split("-")[0] for head in row["heads"].split(" "))


def redundancy(
    rows: Sequence[Row], metric: Metric, paired: PairedPredictions, names: Sequence[str], judging: Judging
) -> dict[str, dict[str, Any]]:
    """The columns of an ablation table on redundancy, by name of the group; empty without groups of heads disabled
    alone.

    Args:
        rows: The tested rows of one metric.
        metric: The metric.
        paired: The predictions.
        names: The variants' names.
        judging: How effects are tested.
    """
    groups = groups_of(rows)
    if not groups:
        return {}
    index_of = {name: index for index, name in enumerate(names)}
    disabled = [*(group.row for group in groups), *(row for group in groups for row in group.alone)]
    paired = paired.of([index_of[row["variant"]] for row in disabled])
    joint = zip(*interactions(metric, paired, [len(group.alone) for group in groups], judging), strict=True)
    columns = {}
    for group, numbers in zip(groups, joint, strict=True):
        estimate, low, high, p_interaction = map(float, numbers)
        p_controls = p_of_controls(group.row["delta"], [control["delta"] for control in group.controls])
        columns[group.row["variant"]] = {
            "interaction": estimate,
            "interaction_low": low,
            "interaction_high": high,
            "p_interaction": p_interaction,
            "p_controls": p_controls,
            "redundant": is_redundant(
                group.row["verdict"],
                [other["verdict"] for other in group.but_one],
                p_interaction,
                p_controls,
                judging.false_discovery_rate,
            ),
        }
    return columns
