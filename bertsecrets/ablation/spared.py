"""How many heads can be spared: at each margin, and at least."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.ablation.verdicts import Judging, change_limits, p_against_margin, p_against_margins
from bertsecrets.data.task import Task
from bertsecrets.results.components import HEAD
from bertsecrets.results.formatting import number
from bertsecrets.statistics.closed_testing import least_false
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.sequential import ONLY_LOOK, Look

SPARED = "spared"
"""``<SPARED>_<metric>_<mode>`` is the key of a :class:`Spared` among a run's checks."""

MARGINS = np.linspace(0.0025, 0.05, 20)
"""Margins of the curve: a quarter of a point to five points."""


@dataclass(frozen=True)
class Spared:
    """How many of the heads of a sweep can be spared.

    Args:
        metric, mode: The score, and how heads were disabled.
        margins: Losses that may matter, as differences of scores, increasing; one of them is ``margin``.
        each: At each, how many heads are shown one by one to lose less, at the false discovery rate.
        at_least: At each, a number of heads that lose less, which is too large with probability 1 - ``level`` at most.
        of_each: The same bound at ``margin`` for the heads that ``each`` counts there.
        heads: Number of heads.
        excluded: The smallest loss that is ruled out for every single head at once, with probability ``level``; None if a score is undefined.
        margin, level, false_discovery_rate: As judged.
    """

    metric: str
    mode: str
    margins: Sequence[float]
    each: Sequence[int]
    at_least: Sequence[int]
    of_each: int
    heads: int
    excluded: float | None
    margin: float
    level: float
    false_discovery_rate: float

    @property
    def at_margin(self) -> tuple[int, int]:
        """How many can each be spared at the judged margin, and how many lose less at least."""
        index = self.margins.index(self.margin)
        return self.each[index], self.at_least[index]


def spared_heads(
    outcomes: Outcomes, task: Task, judging: Judging, looks: Mapping[int, Look]
) -> dict[str, dict[str, Any]]:
    """How many heads can be spared by each metric of the task, as records by ``<SPARED>_<metric>_<mode>``.

    Empty unless two heads or more were disabled alone, on two examples or more.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        judging: How effects are judged.
        looks: Of a sweep that stops early, its looks by their numbers of examples; else empty.
    """
    heads = set(outcomes.plan.of_kind(HEAD))
    if len(heads) < 2 or len(outcomes.label_N) < 2:
        return {}
    parts = []
    for indices, part in outcomes.together():
        rows = [row for row, index in enumerate(indices) if index in heads]
        if rows:
            parts.append((part.predictions(task).of(rows), looks.get(len(part.label_N), ONLY_LOOK)))
    records = [_spared(metric, outcomes.plan.mode, parts, judging) for metric in judged_metrics(task)]
    return {f"{SPARED}_{record.metric}_{record.mode}": asdict(record) for record in records}


def _spared(metric: str, mode: str, parts: Sequence[tuple[PairedPredictions, Look]], judging: Judging) -> Spared:
    margin, level, rate = judging.margin, judging.level, judging.false_discovery_rate
    # The judged margin is a point of the curve: page and verdicts must agree there.
    margin_M = np.unique(np.append(MARGINS, margin))
    judged = int(np.searchsorted(margin_M, margin))
    p_parts, limit_parts = [], []
    for paired, look in parts:
        p_MV = p_against_margins(metric, paired, margin_M)
        # The verdicts' own p-values at their margin.
        p_MV[judged] = p_against_margin(metric, paired, margin)
        p_parts.append(look.one_sided(p_MV))
        # One-sided limits: those of twice the error. A level below one half has no such tail.
        tail = look.level(min(2 * (1 - level), 1 - 1e-9)) / 2
        limit_parts.append(change_limits(metric, paired)(np.full(p_MV.shape[1], tail))[0])
    p_MV, low_V = np.concatenate(p_parts, axis=1), np.concatenate(limit_parts)
    shown_MV = np.stack([corrected(p_V) <= rate for p_V in p_MV])
    return Spared(
        metric=metric,
        mode=mode,
        margins=tuple(margin_M.tolist()),
        each=tuple(shown_MV.sum(axis=1).tolist()),
        at_least=tuple(least_false(p_V, 1 - level) for p_V in p_MV),
        of_each=least_false(p_MV[judged], 1 - level, shown_MV[judged]),
        heads=p_MV.shape[1],
        excluded=None if np.isnan(low_V).any() else float(max(-low_V.min(), 0.0)),
        margin=margin,
        level=level,
        false_discovery_rate=rate,
    )


def spared_in_words(spared: Spared) -> str:
    """How many heads can be spared, and the loss that no head reaches; one or two sentences."""
    count, at_least = spared.at_margin
    loss = points(spared.margin)
    level, rate = (f"{share:.0%}".replace("%", " %") for share in (spared.level, spared.false_discovery_rate))
    may_lose_more = spared.false_discovery_rate * count
    about = number(may_lose_more, 0 if may_lose_more >= 1 else 1)
    parts = []
    if count:
        parts.append(
            f"of the {count} heads that can each be spared, about {about} may lose {loss} or more (false discovery rate {rate})"
        )
    if at_least:
        among = f", {spared.of_each} of the {count} among them" if spared.of_each < at_least and count else ""
        parts.append(f"with {level} confidence at least {at_least} of {spared.heads} lose less than {loss}{among}")
    sentence = f"{'; '.join(parts) or f'no head is shown to lose less than {loss}'}."
    if spared.excluded is not None:
        # Rounded up: a loss that is not ruled out must not be said to be.
        excluded = math.ceil(1000 * spared.excluded - 1e-9) / 1000
        sentence += f" With {level} confidence, no single head loses {points(excluded)} or more."
    return sentence[0].upper() + sentence[1:]


def points(loss: float) -> str:
    """A difference of scores in points.

    >>> points(0.01), points(0.023)
    ('1.0 point', '2.3 points')
    """
    text = number(100 * loss, 1)
    return f"{text} point{'s' * (text != '1.0')}"
