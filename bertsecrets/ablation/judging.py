"""Judge the outcomes of a sweep: every variant by every metric of the task."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch

from bertsecrets.ablation.experiment import Disabling
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.redundancy import redundancy
from bertsecrets.ablation.scoring import Array, judged_metrics
from bertsecrets.ablation.selection import selection_check
from bertsecrets.ablation.verdicts import (
    Effects,
    JointErrors,
    Judging,
    Verdicts,
    effects_of,
    judge_rises,
    judge_together,
)
from bertsecrets.data.task import Task
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.results.components import ALL_BUT_ONE, COMPONENTS, HEAD, KINDS, Kind
from bertsecrets.results.verdicts import INCONCLUSIVE
from bertsecrets.statistics.sequential import ONLY_LOOK, Look
from bertsecrets.statistics.student import mean_limits

_TESTED = ("p_value", "p_bh", "p_needed", "smallest_effect", "p_margin")
_LIMITS = ("low", "high", "low_simultaneous", "high_simultaneous")
_JUDGED = ("score", "delta", "stderr", *_LIMITS, "flips", *_TESTED)

_UNDEFINED = {**dict.fromkeys(("baseline", *_JUDGED), math.nan), "significant": False, "verdict": INCONCLUSIVE}
"""The columns of a variant whose effect cannot be judged: a single example has no spread."""


def judged_rows(
    outcomes: Outcomes,
    task: Task,
    identity: Mapping[str, Any],
    judging: Judging,
    looks: Mapping[int, Look],
) -> list[dict[str, Any]]:
    """One row of an ablation table for every metric of the task and every variant.

    P-values are corrected over all variants of one kind. Rows of groups whose heads were also disabled alone have the
    columns on redundancy (:mod:`bertsecrets.ablation.redundancy`).

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        identity: The columns run, model, task, init, stage, step and evaluation.
        judging: How effects are judged.
        looks: Of a sweep that stops early, its looks by their numbers of examples; else empty.
    """
    together = outcomes.together()
    parts = [(indices, part.predictions(task)) for indices, part in together]
    means = _mean_changes(outcomes.plan, together, task, looks, judging)
    settings = {name: getattr(judging, name) for name in ("level", "false_discovery_rate", "correction", "margin")}
    rows = []
    for metric in judged_metrics(task):
        judged: list[dict[str, Any]] = []
        for kind in KINDS.values():
            variants = outcomes.plan.of_kind(kind)
            if not variants:
                continue
            if len(outcomes.label_N) < 2:
                described = {**identity, **settings, "metric": metric}
                rows += [{**_described(outcomes.plan, index, 1), **described, **_UNDEFINED} for index in variants]
                continue
            tested, verdicts = _verdicts(metric, parts, set(variants), looks, judging)
            # In the order of the plan, whatever the order in which variants stopped.
            for row, (index, count) in sorted(enumerate(tested), key=lambda item: item[1]):
                numbers = {name: float(getattr(verdicts, name)[row]) for name in _JUDGED}
                if math.isnan(numbers["delta"]):
                    # Nothing was tested: a p-value of 1 would look like a result.
                    numbers |= dict.fromkeys(_TESTED, math.nan)
                judged.append(
                    {
                        **_described(outcomes.plan, index, count),
                        **identity,
                        **settings,
                        "metric": metric,
                        "baseline": float(verdicts.baseline[row]),
                        "significant": bool(verdicts.significant[row]),
                        **numbers,
                        "verdict": verdicts.verdict[row],
                        **_evaluated(outcomes, index),
                        **means[index],
                    }
                )
        # Groups are compared with their heads on the same examples, which a sweep in looks does not have.
        if len(parts) == 1:
            names = [variant.name for variant in outcomes.plan.variants]
            groups = redundancy(judged, metric, parts[0][1], names, judging)
            judged = [{**row, **groups.get(row["variant"], {})} for row in judged]
        rows += judged
    return rows


def _verdicts(
    metric: str,
    parts: Sequence[tuple[Sequence[int], PairedPredictions]],
    variants: Set[int],
    looks: Mapping[int, Look],
    judging: Judging,
) -> tuple[list[tuple[int, int]], Verdicts]:
    """Indices and numbers of examples of variants that are corrected together, and their verdicts."""
    tested: list[tuple[int, int]] = []
    effects: list[tuple[Effects, JointErrors]] = []
    for indices, paired in parts:
        rows = [row for row, index in enumerate(indices) if index in variants]
        if rows:
            look = looks.get(paired.count, ONLY_LOOK)
            effects.append(effects_of(metric, paired.of(rows), judging, look, family=len(variants)))
            tested += [(indices[row], paired.count) for row in rows]
    return tested, judge_together(effects, judging)


def _mean_changes(
    plan: Plan,
    parts: Sequence[tuple[Sequence[int], Outcomes]],
    task: Task,
    looks: Mapping[int, Look],
    judging: Judging,
) -> dict[int, dict[str, float]]:
    """The changes of the mean loss, judged, and of the mean logit margin, with their limits, by a variant's index in the plan."""
    columns: dict[int, dict[str, float]] = {}
    loss_changes: list[tuple[Sequence[int], Array, Look]] = []
    for indices, part in parts:
        count = len(part.label_N)
        if count < 2:
            continue
        look = looks.get(count, ONLY_LOOK)
        numbers = {"loss": part.losses(task)}
        if not task.is_regression:
            numbers["logit_margin"] = part.logit_margins()
        for name, (clean_N, value_NV) in numbers.items():
            change_NV = value_NV.double().numpy() - clean_N.double().numpy()[:, None]
            limits = mean_limits(change_NV, look.level(1 - judging.level))
            for row, index in enumerate(indices):
                mean, low, high = (float(value_V[row]) for value_V in limits)
                columns.setdefault(index, {}).update({f"{name}_change": mean, f"{name}_low": low, f"{name}_high": high})
            if name == "loss":
                loss_changes.append((indices, change_NV, look))
                for index in indices:
                    columns[index]["loss_baseline"] = float(clean_N.double().mean())
    for kind in KINDS.values():
        variants = set(plan.of_kind(kind))
        tested, parts_of_kind = [], []
        for indices, change_NV, look in loss_changes:
            rows = [row for row, index in enumerate(indices) if index in variants]
            if rows:
                tested += [indices[row] for row in rows]
                parts_of_kind.append((change_NV[:, rows], look))
        if tested:
            rises = judge_rises(parts_of_kind, judging)
            for index, p, low, high in zip(
                tested, rises.p_rise, rises.low_simultaneous, rises.high_simultaneous, strict=True
            ):
                simultaneous = {"loss_low_simultaneous": float(low), "loss_high_simultaneous": float(high)}
                columns[index].update(simultaneous, p_loss_rise=float(p))
    return columns


def _evaluated(outcomes: Outcomes, index: int) -> dict[str, Any]:
    """The columns of a row that say how its predictions came about."""
    if outcomes.weight_NV is None:
        taken_NV = outcomes.taken_NV
        return {"sweep": "exact", "evaluated": 1.0 if taken_NV is None else float(taken_NV[:, index].double().mean())}
    return {"sweep": "screened", "evaluated": float((outcomes.weight_NV[:, index] > 0).double().mean())}


def _described(plan: Plan, index: int, count: int) -> dict[str, Any]:
    """The columns of a row that say which variant it is about."""
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


def selection_checks(
    outcomes: Outcomes, task: Task, rows: Sequence[dict[str, Any]], seed: int
) -> dict[str, dict[str, Any]]:
    """The selection check over single heads, by ``<metric>_<mode>``.

    Empty if fewer than two heads were disabled alone, or the sweep stopped early for some.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        rows: Its judged rows.
        seed: Seed of the splits.
    """
    heads = outcomes.plan.of_kind(HEAD)
    # Two halves with two examples each.
    if len(heads) < 2 or len(outcomes.label_N) < 4 or outcomes.taken_NV is not None:
        return {}
    paired = outcomes.predictions(task).of(heads)
    checks = {}
    for metric in judged_metrics(task):
        p_bh = {row["variant"]: row["p_bh"] for row in HEAD.of(rows) if row["metric"] == metric}
        p_V = np.array([p_bh[outcomes.plan.variants[index].name] for index in heads])
        check = selection_check(metric, paired, p_V, seed=seed)
        # The score may be undefined for every choice on some half.
        if math.isfinite(check["claimed"]):
            best = outcomes.plan.variants[heads[check["best"]]].name
            checks[f"{metric}_{outcomes.plan.mode}"] = {**check, "best": best}
    return checks


def judged_grids(plan: Plan, rows: Sequence[dict[str, Any]]) -> list[HeadGrid]:
    """The changes of score of single heads, and of all heads of a layer but one, as grids for the head table."""
    return _grids(plan, rows, (HEAD, ALL_BUT_ONE), f"_{plan.mode}")


def tracked_grids(plan: Plan, rows: Sequence[dict[str, Any]]) -> list[HeadGrid]:
    """The same changes of score and those of layers and their parts, as grids for W&B, where the mode is in the run's configuration."""
    return _grids(plan, rows, COMPONENTS)


def _grids(plan: Plan, rows: Sequence[dict[str, Any]], kinds: Sequence[Kind], mode: str = "") -> list[HeadGrid]:
    """A grid for each kind of variant that was disabled, with a column for each metric.

    Args:
        plan: What was disabled.
        rows: From :func:`judged_rows`.
        kinds: Kinds with axes.
        mode: What follows the metric in the names of the columns.
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
                f"change of {metric} without {kind.without} ({plan.mode})",
                f"change of {metric}",
            )
            for metric in metrics
        ]
        grids.append(HeadGrid(Disabling.name, columns, value_LHC, stderr_LHC, count_LHC, "head" not in kind.axes))
    return grids
