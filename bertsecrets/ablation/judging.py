"""Test the outcomes of a sweep: every variant with every metric of the task, choices of the best one, and kinds of
sublayers.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from bertsecrets.ablation.experiment import Disabling
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.redundancy import redundancy
from bertsecrets.ablation.rows import Selection, Sublayers
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.ablation.verdicts import Judging, judge, judge_rises
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.results.components import ALL_BUT_ONE, ATTENTION, COMPONENTS, FEED_FORWARD, HEAD, KINDS, Kind
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import metric_label
from bertsecrets.results.verdicts import INCONCLUSIVE
from bertsecrets.statistics.student import mean_limits
from bertsecrets.task_heads.metric import Array, Metric

_SPLITS, _SELECTION_LEVEL = 200, 0.05
"""Number of random halves of the selection check, and the level of its test on all examples."""

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


def selection_check(metric: Metric, paired: PairedPredictions, p_V: Array, *, seed: int) -> dict[str, Any]:
    """Repeatedly split examples (or groups) into two halves, choose the best variant on one, and score it on the other.

    The limits use the variance of R repeated splits that share examples, s^2 (1 / R + 1) for halves of equal size
    (Nadeau and Bengio 2003, equation 11).

    Args:
        metric: The metric.
        paired: The predictions.
        p_V: P-values of each variant's change of score on all examples, corrected for the number of variants.
        seed: Seed of the splits.

    Returns:
        ``best``: index of the variant chosen most often. ``chosen``: share of the splits in which it was chosen.
            ``claimed``, ``kept``: mean improvement of the chosen variant on the half that chose it, and on the other
            half; ``low``, ``high``: 95 % limits of the latter.
        ``positive``: share of the splits in which the score on the other half improved. ``p_value``: of ``best`` on all
            examples (McNemar's exact test, or random swaps), corrected for the number of variants. ``survives``:
            whether ``low`` is above 0 and ``p_value`` at most 0.05, which the claim "disabling this head improves the
            model" requires: the halves share their examples with all other splits, but the test does not.

    Raises:
        UserError: If there are fewer than four examples.
    """
    units = paired.units
    if units < 4:
        what = "examples" if paired.group_N is None else "groups of examples"
        raise UserError(f"{units} {what} are too few for a selection check; at least four are needed.")
    generator = np.random.default_rng([seed, 2])
    # Weights of 0 and 1 select the halves, so one call scores all splits.
    half_RU = np.zeros((_SPLITS, units), np.int8)
    for row_U in half_RU:
        row_U[generator.permutation(units)[: units // 2]] = 1
    half_RN = half_RU if paired.cluster_N is None else half_RU[:, paired.cluster_N]
    # -inf: an undefined score is never the best one.
    change_RV, other_RV = (
        np.nan_to_num(paired.weighted_changes(metric, weight_RN), nan=-np.inf) for weight_RN in (half_RN, 1 - half_RN)
    )
    best_R = change_RV.argmax(-1)
    claimed_R, kept_R = (array_RV[np.arange(_SPLITS), best_R] for array_RV in (change_RV, other_RV))
    kept_R = np.where(np.isfinite(kept_R), kept_R, 0)
    share_V = np.bincount(best_R, minlength=len(paired.prediction_VN)) / _SPLITS
    kept = float(kept_R.mean())
    error = math.sqrt(float(kept_R.var(ddof=1)) * (1 / _SPLITS + 1)) * NormalDist().inv_cdf(0.975)
    best = int(share_V.argmax())
    return {
        "best": best,
        "chosen": float(share_V[best]),
        "claimed": float(claimed_R.mean()),
        "kept": kept,
        "low": kept - error,
        "high": kept + error,
        "positive": float((kept_R > 0).mean()),
        "p_value": float(p_V[best]),
        "survives": bool(kept - error > 0 and p_V[best] <= _SELECTION_LEVEL),
    }


def sublayer_differences(outcomes: Outcomes, task: Task, level: float) -> list[Sublayers]:
    """The mean change of score over layers without each kind of sublayer, and the interval of the difference.

    The interval is over examples: Student's t interval of an example's mean influence on the differences of all layers.
    For accuracy this is the t interval of the difference in correct predictions, averaged over layers (Hampel 1974 for
    other scores).

    One row per metric; none unless both kinds were left out in the same layers.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        level: Level of the interval.
    """
    plan = outcomes.plan
    attention, feed_forward = (
        {plan.variants[index].layer: index for index in plan.of_kind(kind)} for kind in (ATTENTION, FEED_FORWARD)
    )
    if not attention or attention.keys() != feed_forward.keys():
        return []
    paired = outcomes.predictions(task).of([*attention.values(), *feed_forward.values()])
    if paired.count < 2:
        return []
    # A weighted sum of changes, whose influences are the same sum of the changes' influences.
    sign_V = np.repeat([1.0, -1.0], len(attention)) / len(attention)
    rows = []
    for metric in judged_metrics(task):
        change_V, influence_N = paired.changes(metric), sign_V @ paired.influences(metric)
        difference = float(sign_V @ change_V)
        _, low, high = mean_limits(difference + influence_N, 1 - level)
        if not low < high:
            # Undefined, or the same for every example.
            continue
        means = float(change_V[: len(attention)].mean()), float(change_V[len(attention) :].mean())
        interval = Estimate(difference, float(low), float(high), n=paired.count)
        rows.append(Sublayers(metric.name, plan.mode, len(attention), *means, interval, level))
    return rows


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
