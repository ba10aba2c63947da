"""The answer of a run in three sentences: which heads changed, which are needed, and how the two relate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.rows import Power, found, only
from bertsecrets.present.disabling import (
    most_lost,
    points_in_words,
    ruled_out_in_words,
    settling_in_words,
)
from bertsecrets.present.grid import correlation_in_words
from bertsecrets.present.ranking import picked
from bertsecrets.present.report.content import Section
from bertsecrets.reporting.overview import DisabledHeads
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.components import HEAD, LAYER, Row
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.formatting import are, counted, have, head_label, metric_label, number
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED, tally
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.ranks import RankCorrelation, rank_correlation
from bertsecrets.task_heads import unit_of

_NAMED = 3
"""Heads that a sentence names."""


@dataclass(frozen=True)
class ChangedAndNeeded:
    """Drift and effect of every head with both numbers.

    Args:
        drift_N: 1 − cosine with the maps before fine-tuning.
        effect_N: Change of the score without the head, in points; or the rise of the mean loss.
        by_loss: Whether ``effect_N`` is the loss, used if more than half of the changes of score are equal.
        rows: The heads' rows of the ablation table.
        correlation: Rank correlation of the two, overall and within layers.
    """

    drift_N: NDArray[np.float64]
    effect_N: NDArray[np.float64]
    by_loss: bool
    rows: Sequence[Row]
    correlation: RankCorrelation

    @property
    def in_words(self) -> str:
        """Whether heads that changed more are needed more, with the correlation."""
        correlation = self.correlation
        if not correlation.judged:
            relation = "Too few heads to link how much a head changed with how much it is needed"
        elif not correlation.significant:
            relation = "No clear link, beyond depth, between how much a head changed and how much it is needed"
        elif (correlation.claim.rho > 0) == self.by_loss:
            relation = "Heads that changed more are needed more"
        else:
            relation = "Heads that changed more are needed less"
        effect, sign = ("rise of the loss", "positive") if self.by_loss else ("change of score", "negative")
        why = " (used because the score changes equally for more than half of the heads)" if self.by_loss else ""
        return (
            f"{relation}: over {len(self.rows)} heads, the rank correlation of drift with the {effect} without the "
            f"head{why} is {correlation_in_words(correlation)}; {sign} if heads that changed more are needed more."
        )


def changed_and_needed(views: Mapping[str, MeasureView]) -> ChangedAndNeeded | None:
    """Drift against the effect of disabling, head by head; None unless both are known and differ between heads."""
    if "drift" not in views or "ablation" not in views or not views["drift"].has("cosine"):
        return None
    cosine_LH = views["drift"].value("cosine")
    rows = rows_of(HEAD, views["ablation"].run.ablation_table())
    if len(rows) != cosine_LH.size:
        return None
    # Changes of a score are multiples of one example, but for rounding.
    ties = np.unique(np.round([row["delta"] for row in rows], 9), return_counts=True)[1].max()
    by_loss = 2 * ties > len(rows) and all(row["loss_change"] is not None for row in rows)
    effect_LH = np.full(cosine_LH.shape, np.nan)
    for row in rows:
        effect_LH[row["layer"], row["head"]] = row["loss_change"] if by_loss else 100 * row["delta"]
    correlation = rank_correlation(1 - cosine_LH, effect_LH)
    defined_LH = np.isfinite(cosine_LH) & np.isfinite(effect_LH)
    rows = [row for row in rows if defined_LH[row["layer"], row["head"]]]
    drift_N, effect_N = (
        np.array([value_LH[row["layer"], row["head"]] for row in rows]) for value_LH in (1 - cosine_LH, effect_LH)
    )
    if not rows or not np.ptp(drift_N) or not np.ptp(effect_N):
        return None
    return ChangedAndNeeded(drift_N, effect_N, by_loss, rows, correlation)


def answers(
    views: Mapping[str, MeasureView], sections: Mapping[str, Section], disabled: DisabledHeads | None
) -> list[tuple[str, str]]:
    """Headings and sentences; empty unless drift was measured and heads were disabled.

    Args:
        views: The run's experiments by name.
        sections: Their sections.
        disabled: The run's disabled heads.
    """
    if "drift" not in sections or "ablation" not in sections or not views["drift"].has("cosine"):
        return []
    table = views["ablation"].run.ablation_table()
    if disabled is None:
        return []
    rows = disabled.first
    related = changed_and_needed(views)
    why = (
        "not all heads were disabled"
        if len(rows) != views["drift"].value("cosine").size
        else "disabling any head changes the score equally, or not at all"
        if len({row["delta"] for row in rows}) == 1
        else "drift is the same for all heads"
    )
    relation = f"Whether the heads that changed are needed is unknown: {why}." if related is None else related.in_words
    power = only(found(views["ablation"].run, Power), Power, mode=rows[0]["mode"], metric=rows[0]["metric"])
    needed = [
        _needed_in_words(disabled, power),
        disabled.rises,
        layers_in_words(table),
        disabled.one_sided,
        disabled.disagreement,
    ]
    return [
        ("Changed", _changed_in_words(views["drift"], sections["drift"])),
        ("Needed", " ".join(filter(None, needed))),
        ("Changed and needed", relation),
    ]


def _changed_in_words(view: MeasureView, section: Section) -> str:
    value_LH, stderr_LH, count_LH = view.grid("cosine")
    if section.highlights is None:
        return f"No change of attention beyond rounding is known for any of {value_LH.size} heads."
    named = []
    for line in section.highlights.heads[:_NAMED]:
        head = line.layer, line.head
        named.append(f"{head_label(*head)}, {picked(head, value_LH, stderr_LH, count_LH, bounds=(0.0, 1.0))}")
    defined = [layer for layer, value_H in enumerate(value_LH) if np.isfinite(value_H).any()]
    mean_L = {layer: float(np.nanmean(value_LH[layer])) for layer in defined}
    most, least = min(defined, key=lambda layer: mean_L[layer]), max(defined, key=lambda layer: mean_L[layer])
    layers = (
        f" By layer, attention changed most in layer {most} (mean {number(mean_L[most])}) and least in layer {least} "
        f"({number(mean_L[least])})."
        if number(mean_L[most]) != number(mean_L[least])
        else ""
    )
    return (
        f"Heads that changed most (of {int(np.isfinite(value_LH).sum())}), by the cosine of their maps before and "
        f"after fine-tuning (1: unchanged; simultaneous 95 % intervals): {'; '.join(named)}.{layers}"
    )


def _needed_in_words(disabled: DisabledHeads, power: Power | None) -> str:
    rows, verdicts = disabled.first, disabled.verdicts
    needed, spared, unknown = tally(verdicts.values())
    metric = metric_label(rows[0]["metric"])
    ordered = sorted((row for row in rows if np.isfinite(row["delta"])), key=lambda row: float(row["delta"]))
    certain = [row for row in ordered if verdicts[row["layer"], row["head"]] == NEEDED]
    if certain:
        which = "most of all " if len(certain) > _NAMED else ""
        falls = f"change of {metric}: " if len(disabled.heads) > 1 else ""
        named = "; ".join(f"{HEAD.label_of(row)}, {points_in_words(row)}" for row in certain[:_NAMED])
        first = f"{needed} of {disabled.judged} {are(needed)} needed ({falls}{which}{named})."
    else:
        most = disabled.most_lost
        none = f"None of {disabled.judged}" if disabled.partial else "No single head"
        first = (
            f"{none} is needed."
            if most is None
            else f"{none} costs more than {most} {unit_of(rows[0]['metric'])} of {metric}."
        )
        if ordered and ordered[0]["delta"] < 0:
            worst = ordered[0]
            chance = (
                "significant by itself but not after correction"
                if worst["significant"]
                else "not significant after correction"
            )
            chance = "within the margin" if worst["verdict"] == DISPENSABLE else chance
            first += f" The largest loss, without {HEAD.label_of(worst)}, is {points_in_words(worst)}, {chance}."
    parts = [f"{spared} can be spared ({ruled_out_in_words(rows[0])})"] if spared else []
    parts += [f"{unknown} {have(unknown)} no verdict"] if unknown else []
    first = f"{first} {'; '.join(parts)}."
    if not unknown:
        return first
    # By the first metric alone, each head may have a verdict.
    open_by_first = any(row["verdict"] == INCONCLUSIVE for row in ordered)
    settling = f" {settling_in_words(power)}" if power is not None and open_by_first else ""
    return f"{first}{settling}"


def layers_in_words(table: AblationTable) -> str:
    """How many layers are needed by the first metric, and the most needed one; empty if none was disabled."""
    rows = rows_of(LAYER, table)
    defined = [row for row in rows if np.isfinite(row["delta"])]
    if not defined:
        return ""
    needed = sum(row["verdict"] == NEEDED for row in defined)
    worst = min(defined, key=lambda row: float(row["delta"]))
    if not needed:
        most = most_lost(rows)
        bound = "is needed" if most is None else f"costs more than {most} {unit_of(rows[0]['metric'])}"
        return f"None of {counted(len(rows), LAYER.singular, LAYER.plural)} {bound}."
    return (
        f"{needed} of {counted(len(rows), LAYER.singular, LAYER.plural)} {are(needed)} needed, "
        f"{'most of all ' * (needed > 1)}layer {worst['layer']}: {points_in_words(worst)}."
    )
