"""How many heads can be spared: the number at each margin, and lower bounds."""

import numpy as np

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.rows import Spared, SparedAt
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
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.simultaneous import least_false
from bertsecrets.task_heads.metric import Metric

MARGINS = np.linspace(0.0025, 0.05, 20)
"""Margins of the curve: a quarter of a point to five points."""


def spared_heads(outcomes: Outcomes, task: Task, judging: Judging) -> list[Spared | SparedAt]:
    """How many heads can be spared for each metric of the task, at the margin of the tests and at each of
    :data:`MARGINS`.

    Empty unless two or more heads were disabled alone, on two or more examples.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        judging: How effects are tested.
    """
    heads = outcomes.plan.of_kind(HEAD)
    if len(heads) < 2 or len(outcomes.label_N) < 2:
        return []
    paired = outcomes.predictions(task).of(heads)
    rows = [_spared(metric, outcomes.plan.mode, paired, judging) for metric in judged_metrics(task)]
    return [row for of_metric in rows for row in of_metric]


def _spared(metric: Metric, mode: str, paired: PairedPredictions, judging: Judging) -> list[Spared | SparedAt]:
    margin, level, rate = judging.margin, judging.level, judging.false_discovery_rate
    # The margin of the tests is a point of the curve, where the page and the verdicts must agree.
    margin_M = MARGINS if margin is None else np.unique(np.append(MARGINS, margin))
    heads = len(paired.prediction_VN)
    p_MV, unchanged_MV = p_against_margins(metric, paired, margin_M), p_if_unchanged(metric, paired, margin_M)
    # One-sided limits. A level below one half has no such tail.
    loss_V = losses_ruled_out(metric, paired, min(1 - level, (1 - 1e-9) / 2))
    unchanged = np.flatnonzero(~paired.moved(metric).any(-1)).tolist()
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
    each_M, at_least_M = shown_MV.sum(axis=1).tolist(), [least_false(p_V, 1 - level) for p_V in p_MV]
    each, at_least, of_each, falsely = 0, 0, 0, 0.0
    if margin is not None:
        judged = int(np.searchsorted(margin_M, margin))
        each, at_least = each_M[judged], at_least_M[judged]
        of_each = least_false(p_MV[judged], 1 - level, shown_MV[judged])
        # The false discovery rate times the heads that it spares, or the number of unchanged heads to expect if all V
        # heads lose the margin, whichever is larger.
        unchanged_V = unchanged_MV[judged]
        falsely = float(max(rate * (corrected(p_MV[judged]) <= rate).sum(), unchanged_V[unchanged_V <= rate].sum()))
    curve = [SparedAt(metric.name, mode, *point) for point in zip(margin_M.tolist(), each_M, at_least_M, strict=True)]
    return [
        Spared(
            metric.name,
            mode,
            margin,
            level,
            rate,
            heads,
            each,
            at_least,
            of_each,
            excluded=None if np.isnan(loss_V).any() else float(max(loss_V.max(), 0.0)),
            falsely=falsely,
            unchanged=len(unchanged),
            excluded_unchanged=float(of_unchanged.max()) if unchanged and np.isfinite(of_unchanged).all() else None,
        ),
        *curve,
    ]
