"""Test the outcomes of a sweep: every variant with every metric of the task."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bertsecrets.ablation.experiment import Disabling
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.redundancy import redundancy
from bertsecrets.ablation.rows import Selection
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.ablation.selection import selection_check
from bertsecrets.ablation.verdicts import Judging, judge, judge_rises
from bertsecrets.data.task import Task
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.results.components import ALL_BUT_ONE, COMPONENTS, HEAD, KINDS, Kind
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import metric_label
from bertsecrets.results.verdicts import INCONCLUSIVE
from bertsecrets.statistics.student import mean_limits

_TESTED = ("p_value", "p_bh", "p_needed", "smallest_effect", "p_margin")
_LIMITS = ("low", "high", "low_simultaneous", "high_simultaneous")
_JUDGED = ("score", "delta", "stderr", *_LIMITS, "flips", *_TESTED)

_UNDEFINED = {**dict.fromkeys(("baseline", *_JUDGED), math.nan), "significant": False, "verdict": INCONCLUSIVE}
"""The columns of a variant whose effect cannot be tested, because a single example has no spread."""


def judged_rows(outcomes: Outcomes, task: Task, identity: Mapping[str, Any], judging: Judging) -> list[dict[str, Any]]:
    """One row of an ablation table for every metric of the task and every variant.

    P-values are corrected for the number of variants of one kind. Rows of groups whose heads were also disabled one by
    one have the columns on redundancy (:mod:`bertsecrets.ablation.redundancy`).

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        identity: The columns run, model, task, init, stage, step and evaluation.
        judging: How effects are tested.
    """
    paired = outcomes.predictions(task)
    count = paired.count
    means = _mean_changes(outcomes, task, judging)
    settings = {name: getattr(judging, name) for name in ("level", "false_discovery_rate", "correction", "margin")}
    rows = []
    for metric in judged_metrics(task):
        judged: list[dict[str, Any]] = []
        for kind in KINDS.values():
            variants = outcomes.plan.of_kind(kind)
            if not variants:
                continue
            if paired.units < 2:
                described = {**identity, **settings, "metric": metric.name}
                rows += [{**_described(outcomes.plan, index, count), **described, **_UNDEFINED} for index in variants]
                continue
            verdicts = judge(metric, paired.of(variants), judging)
            for row, index in enumerate(variants):
                numbers = {name: float(getattr(verdicts, name)[row]) for name in _JUDGED}
                if math.isnan(numbers["delta"]):
                    # Nothing was tested, and a p-value of 1 would look like a result.
                    numbers |= dict.fromkeys(_TESTED, math.nan)
                judged.append(
                    {
                        **_described(outcomes.plan, index, count),
                        **identity,
                        **settings,
                        "metric": metric.name,
                        "baseline": float(verdicts.baseline[row]),
                        "significant": bool(verdicts.significant[row]),
                        **numbers,
                        "verdict": verdicts.verdict[row],
                        **_evaluated(outcomes, index),
                        **means[index],
                    }
                )
        groups = redundancy(judged, metric, paired, [variant.name for variant in outcomes.plan.variants], judging)
        rows += [{**row, **groups.get(row["variant"], {})} for row in judged]
    return rows


def _mean_changes(outcomes: Outcomes, task: Task, judging: Judging) -> dict[int, dict[str, float]]:
    """The changes of the mean loss, with tests, and of the mean logit margin, with their limits, by the variant's index
    in the plan.
    """
    plan = outcomes.plan
    columns: dict[int, dict[str, float]] = {index: {} for index in range(len(plan.variants))}
    paired = outcomes.predictions(task)
    if paired.units < 2 or not outcomes.have_losses(task):
        return columns
    numbers = {"loss": outcomes.losses(task)}
    if task.head.kind == "sequence":
        numbers["logit_margin"] = outcomes.logit_margins()
    for name, (clean_N, value_NV) in numbers.items():
        change_NV = value_NV.double().numpy() - clean_N.double().numpy()[:, None]
        change_UV = paired.by_unit(change_NV.T).T
        for index, (mean, low, high) in enumerate(zip(*mean_limits(change_UV, 1 - judging.level), strict=True)):
            change = {f"{name}_change": float(mean), f"{name}_low": float(low), f"{name}_high": float(high)}
            columns[index].update(change)
        if name != "loss":
            continue
        baseline = float(clean_N.double().mean())
        for kind in KINDS.values():
            variants = plan.of_kind(kind)
            if not variants:
                continue
            rises = judge_rises(change_UV[:, variants], judging)
            for index, p, low, high in zip(
                variants, rises.p_rise, rises.low_simultaneous, rises.high_simultaneous, strict=True
            ):
                simultaneous = {"loss_low_simultaneous": float(low), "loss_high_simultaneous": float(high)}
                columns[index].update(simultaneous, loss_baseline=baseline, p_loss_rise=float(p))
    return columns


def _evaluated(outcomes: Outcomes, index: int) -> dict[str, Any]:
    """The columns of a row that describe how its predictions were computed."""
    if outcomes.weight_NV is None:
        return {"sweep": "exact", "evaluated": 1.0}
    return {"sweep": "screened", "evaluated": float((outcomes.weight_NV[:, index] > 0).double().mean())}


def _described(plan: Plan, index: int, count: int) -> dict[str, Any]:
    """The columns of a row that identify its variant."""
    variant = plan.variants[index]
    return {
        "mode": plan.mode,
        "kind": variant.kind,
        "variant": variant.name,
        "heads": " ".join(f"{layer}-{head}" for layer, head in variant.heads),
        "num_heads": len(variant.heads),
        "count": count,
        "layer": variant.layer,
        "head": variant.head,
    }


def selection_checks(outcomes: Outcomes, task: Task, rows: Sequence[dict[str, Any]], seed: int) -> list[Selection]:
    """The selection check over single heads with each metric.

    Empty if fewer than two heads were disabled one by one.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        rows: Its tested rows.
        seed: Seed of the splits.
    """
    heads = outcomes.plan.of_kind(HEAD)
    paired = outcomes.predictions(task).of(heads)
    # Two halves with two examples each.
    if len(heads) < 2 or paired.units < 4:
        return []
    checks = []
    for metric in judged_metrics(task):
        p_bh = {row["variant"]: row["p_bh"] for row in HEAD.of(rows) if row["metric"] == metric.name}
        p_V = np.array([p_bh[outcomes.plan.variants[index].name] for index in heads])
        check = selection_check(metric, paired, p_V, seed=seed)
        # The score of every choice may be undefined on one of the halves.
        if math.isfinite(check["claimed"]):
            check["best"] = outcomes.plan.variants[heads[check["best"]]].name
            check["kept"] = Estimate(check["kept"], check.pop("low"), check.pop("high"), n=paired.count)
            checks.append(Selection(metric.name, outcomes.plan.mode, **check))
    return checks


def judged_grids(plan: Plan, rows: Sequence[dict[str, Any]]) -> list[HeadGrid]:
    """The changes of score for single heads, and for all heads of a layer but one, as grids for the head table."""
    return _grids(plan, rows, (HEAD, ALL_BUT_ONE), f"_{plan.mode}")


def tracked_grids(plan: Plan, rows: Sequence[dict[str, Any]]) -> list[HeadGrid]:
    """The same changes of score, and those for layers and their parts, as grids for W&B, where the mode is in the run's
    configuration.
    """
    return _grids(plan, rows, COMPONENTS)


def _grids(plan: Plan, rows: Sequence[dict[str, Any]], kinds: Sequence[Kind], mode: str = "") -> list[HeadGrid]:
    """A grid for each kind of variant, with a column for each metric.

    Args:
        plan: What was disabled.
        rows: From :func:`judged_rows`.
        kinds: Kinds with axes.
        mode: The suffix of the metric in the names of the columns.
    """
    grids = []
    for kind in kinds:
        rows_of_kind = kind.of(rows)
        metrics = list(dict.fromkeys(row["metric"] for row in rows_of_kind))
        if not metrics:
            continue
        shape = (*kind.size(plan.num_layers, plan.num_heads), len(metrics))
        value_LHC = torch.full(shape, math.nan, dtype=torch.float64)
        stderr_LHC = value_LHC.clone()
        count_LHC = torch.zeros(shape, dtype=torch.int64)
        for row in rows_of_kind:
            cell = (*kind.cell(row), metrics.index(row["metric"]))
            value_LHC[cell], stderr_LHC[cell], count_LHC[cell] = row["delta"], row["stderr"], row["count"]
        columns = [
            Column(
                f"{metric}{mode}{kind.suffix}",
                f"change of {metric_label(metric)} without {kind.without} ({plan.mode})",
                f"change of {metric_label(metric)}",
            )
            for metric in metrics
        ]
        grids.append(HeadGrid(Disabling.name, columns, value_LHC, stderr_LHC, count_LHC, "head" not in kind.axes))
    return grids
