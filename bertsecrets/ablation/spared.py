"""How many heads can be spared: at each margin, and at least."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.ablation.verdicts import (
    Judging,
    corrected_against_margin,
    losses_ruled_out,
    p_against_margins,
    p_if_unchanged,
)
from bertsecrets.data.task import Task
from bertsecrets.results.components import HEAD
from bertsecrets.results.formatting import number, rounded_up
from bertsecrets.statistics.closed_testing import least_false
from bertsecrets.statistics.corrections import corrected

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
        falsely: How many heads that lose ``margin`` or more such a sweep counts in ``each`` there, on average and at most; None in
            records of earlier versions, as are the next two.
        unchanged: Number of heads without which no prediction changes.
        excluded_unchanged: The smallest loss that is ruled out for all of these at once, although they were picked for changing nothing,
            with probability ``level``: it depends on no other head but on how many there are. None without any.
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
    falsely: float | None = None
    unchanged: int | None = None
    excluded_unchanged: float | None = None

    @property
    def at_margin(self) -> tuple[int, int]:
        """How many can each be spared at the judged margin, and how many lose less at least."""
        index = self.margins.index(self.margin)
        return self.each[index], self.at_least[index]


def spared_heads(outcomes: Outcomes, task: Task, judging: Judging) -> dict[str, dict[str, Any]]:
    """How many heads can be spared by each metric of the task, as records by ``<SPARED>_<metric>_<mode>``.

    Empty unless two heads or more were disabled alone, on two examples or more.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        judging: How effects are judged.
    """
    heads = outcomes.plan.of_kind(HEAD)
    if len(heads) < 2 or len(outcomes.label_N) < 2:
        return {}
    paired = outcomes.predictions(task).of(heads)
    records = [_spared(metric, outcomes.plan.mode, paired, judging) for metric in judged_metrics(task)]
    return {f"{SPARED}_{record.metric}_{record.mode}": asdict(record) for record in records}


def _spared(metric: str, mode: str, paired: PairedPredictions, judging: Judging) -> Spared:
    margin, level, rate = judging.margin, judging.level, judging.false_discovery_rate
    # The judged margin is a point of the curve: page and verdicts must agree there.
    margin_M = np.unique(np.append(MARGINS, margin))
    judged = int(np.searchsorted(margin_M, margin))
    heads = len(paired.prediction_VN)
    p_MV, unchanged_MV = p_against_margins(metric, paired, margin_M), p_if_unchanged(metric, paired, margin_M)
    # One-sided limits. A level below one half has no such tail.
    loss_V = losses_ruled_out(metric, paired, min(1 - level, (1 - 1e-9) / 2))
    unchanged = np.flatnonzero((paired.prediction_VN == paired.clean_N).all(-1)).tolist()
    of_unchanged = (
        losses_ruled_out(metric, paired.of(unchanged), min(1 - level, (1 - 1e-9) / 2) / heads)
        if unchanged
        else np.array([])
    )
    shown_MV = np.stack(
        [
            corrected_against_margin(p_V, unchanged_V) <= rate
            for p_V, unchanged_V in zip(p_MV, unchanged_MV, strict=True)
        ]
    )
    # A share of those that the false discovery rate spares; of all V heads, if they lose the margin, so many look as if unchanged.
    unchanged_V = unchanged_MV[judged]
    falsely = max(rate * (corrected(p_MV[judged]) <= rate).sum(), unchanged_V[unchanged_V <= rate].sum())
    return Spared(
        metric=metric,
        mode=mode,
        margins=tuple(margin_M.tolist()),
        each=tuple(shown_MV.sum(axis=1).tolist()),
        at_least=tuple(least_false(p_V, 1 - level) for p_V in p_MV),
        of_each=least_false(p_MV[judged], 1 - level, shown_MV[judged]),
        heads=heads,
        excluded=None if np.isnan(loss_V).any() else float(max(loss_V.max(), 0.0)),
        margin=margin,
        level=level,
        false_discovery_rate=rate,
        falsely=float(falsely),
        unchanged=len(unchanged),
        excluded_unchanged=float(of_unchanged.max()) if unchanged and np.isfinite(of_unchanged).all() else None,
    )


def spared_in_words(spared: Spared) -> str:
    """How many heads can be spared, and the loss that no head reaches; one or two sentences."""
    count, at_least = spared.at_margin
    loss = points(spared.margin)
    level = f"{spared.level:.0%}".replace("%", " %")
    parts = []
    if count:
        falsely = spared.false_discovery_rate * count if spared.falsely is None else spared.falsely
        parts.append(
            f"{count} of {spared.heads} heads can each be spared; on average, such a sweep spares at most about {number(falsely, 1)} that "
            f"lose {loss} or more"
        )
    if at_least:
        among = f", {spared.of_each} of the {count} among them" if spared.of_each < at_least and count else ""
        parts.append(f"with {level} confidence at least {at_least} of {spared.heads} lose less than {loss}{among}")
    sentence = f"{'; '.join(parts) or f'no head is shown to lose less than {loss}'}."
    if spared.excluded is not None:
        excluded = rounded_up(spared.excluded)
        sentence += f" With {level} confidence (one-sided), no single head loses {points(excluded / 100)} or more"
        if spared.excluded_unchanged is not None and (of_these := rounded_up(spared.excluded_unchanged)) < excluded:
            sentence += f", and none of the {spared.unchanged} that change no prediction {number(of_these, 1)}"
        sentence += "."
    return sentence[0].upper() + sentence[1:]


def points(loss: float) -> str:
    """A difference of scores in points.

    >>> points(0.01), points(0.023)
    ('1.0 point', '2.3 points')
    """
    text = number(100 * loss, 1)
    return f"{text} point{'s' * (text != '1.0')}"
