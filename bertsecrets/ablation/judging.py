"""From the outcomes of a sweep to its results: tested rows, grids, and what else the outcomes tell."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from scipy import stats

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.predictions import PairedPredictions, judged_metrics
from bertsecrets.ablation.redundancy import redundancy
from bertsecrets.ablation.rows import Disabling, OverExamples, Selection, Spared, SparedAt, Sublayers
from bertsecrets.ablation.verdicts import (
    Judging,
    corrected_against_margin,
    judge,
    judge_rises,
    losses_ruled_out,
    p_against_margins,
    p_if_unchanged,
)
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.results.components import ALL_BUT_ONE, ATTENTION, COMPONENTS, FEED_FORWARD, HEAD, KINDS
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import metric_label
from bertsecrets.results.verdicts import INCONCLUSIVE
from bertsecrets.statistics.clusters import Clusters, numbered
from bertsecrets.statistics.corrections import corrected, least_false
from bertsecrets.statistics.replicates import intraclass_correlation
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
    paired, plan = outcomes.predictions(task), outcomes.plan
    means = _mean_changes(outcomes, task, judging)
    settings = {name: getattr(judging, name) for name in ("level", "false_discovery_rate", "correction", "margin")}
    described_V = [
        {
            "mode": plan.mode,
            "kind": variant.kind,
            "variant": variant.name,
            "heads": " ".join(f"{layer}-{head}" for layer, head in variant.heads),
            "num_heads": len(variant.heads),
            "count": paired.count,
            "layer": variant.layer,
            "head": variant.head,
            **identity,
            **settings,
        }
        for variant in plan.variants
    ]
    # Shares of the examples on which each variant was evaluated.
    evaluated_V = None if outcomes.weight_NV is None else (outcomes.weight_NV > 0).double().mean(0).tolist()
    rows = []
    for metric in judged_metrics(task):
        judged: list[dict[str, Any]] = []
        for kind in KINDS.values():
            variants = plan.of_kind(kind)
            if not variants:
                continue
            if paired.units < 2:
                rows += [{**described_V[index], "metric": metric.name, **_UNDEFINED} for index in variants]
                continue
            verdicts = judge(metric, paired.of(variants), judging)
            for row, index in enumerate(variants):
                numbers = {name: float(getattr(verdicts, name)[row]) for name in _JUDGED}
                if math.isnan(numbers["delta"]):
                    # Nothing was tested, and a p-value of 1 would look like a result.
                    numbers |= dict.fromkeys(_TESTED, math.nan)
                judged.append(
                    {
                        **described_V[index],
                        "metric": metric.name,
                        "baseline": float(verdicts.baseline[row]),
                        "significant": bool(verdicts.significant[row]),
                        **numbers,
                        "verdict": verdicts.verdict[row],
                        "sweep": "exact" if evaluated_V is None else "screened",
                        "evaluated": 1.0 if evaluated_V is None else evaluated_V[index],
                        **means[index],
                    }
                )
        groups = redundancy(judged, metric, paired, [variant.name for variant in plan.variants], judging)
        rows += [{**row, **groups.get(row["variant"], {})} for row in judged]
    return rows


def _mean_changes(outcomes: Outcomes, task: Task, judging: Judging) -> dict[int, dict[str, float]]:
    """The changes of the mean loss, with tests, and of the mean logit margin, with their limits, by the variant's index
    in the plan.
    """
    plan = outcomes.plan
    columns: dict[int, dict[str, float]] = {index: {} for index in range(len(plan.variants))}
    paired = outcomes.predictions(task)
    if paired.units < 2 or not task.head.has_losses(outcomes.clean_NC):
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
            for index, p, low, high in zip(variants, *rises, strict=True):
                simultaneous = {"loss_low_simultaneous": float(low), "loss_high_simultaneous": float(high)}
                columns[index].update(simultaneous, loss_baseline=baseline, p_loss_rise=float(p))
    return columns


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
    names = [outcomes.plan.variants[index].name for index in heads]
    checks = []
    for metric in judged_metrics(task):
        p_bh = {row["variant"]: row["p_bh"] for row in HEAD.of(rows) if row["metric"] == metric.name}
        check = selection_check(metric, paired, {name: p_bh[name] for name in names}, outcomes.plan.mode, seed=seed)
        # The score of every choice may be undefined on one of the halves.
        if math.isfinite(check.claimed):
            checks.append(check)
    return checks


def selection_check(
    metric: Metric, paired: PairedPredictions, p_of: Mapping[str, float], mode: str, *, seed: int
) -> Selection:
    """Repeatedly split examples (or groups) into two halves, choose the best variant on one, and score it on the other.

    The limits use the variance of R repeated splits that share examples, s^2 (1 / R + 1) for halves of equal size
    (Nadeau and Bengio 2003, equation 11). The choice survives if the lower limit is above 0 and its change is
    significant on all examples. The claim "disabling this head improves the model" needs that test too: all splits
    share the same examples.

    Args:
        metric: The metric.
        paired: The predictions.
        p_of: P-value of each variant's change of score on all examples, corrected for the number of variants, by name.
        mode: How heads were disabled.
        seed: Seed of the splits.

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
    best, p_value = list(p_of.items())[int(share_V.argmax())]
    return Selection(
        metric.name,
        mode,
        best,
        chosen=float(share_V.max()),
        claimed=float(claimed_R.mean()),
        kept=Estimate(kept, kept - error, kept + error, n=paired.count),
        positive=float((kept_R > 0).mean()),
        p_value=float(p_value),
        survives=bool(kept - error > 0 and p_value <= _SELECTION_LEVEL),
    )


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


def judged_grids(plan: Plan, rows: Sequence[dict[str, Any]], *, tracked: bool = False) -> list[HeadGrid]:
    """The changes of score for single heads, and for all heads of a layer but one, as grids for the head table.

    Args:
        plan: What was disabled.
        rows: From :func:`judged_rows`.
        tracked: For W&B instead, where the mode is in the run's configuration: also those of layers and their parts.
    """
    kinds, mode = (COMPONENTS, "") if tracked else ((HEAD, ALL_BUT_ONE), f"_{plan.mode}")
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
    return [row for metric in judged_metrics(task) for row in _spared(metric, outcomes.plan.mode, paired, judging)]


def _spared(metric: Metric, mode: str, paired: PairedPredictions, judging: Judging) -> list[Spared | SparedAt]:
    margin, level, rate = judging.margin, judging.level, judging.false_discovery_rate
    # The margin of the tests is a point of the curve, where the page and the verdicts must agree.
    margin_M = MARGINS if margin is None else np.unique(np.append(MARGINS, margin))
    heads, tail = len(paired.prediction_VN), min(1 - level, (1 - 1e-9) / 2)
    p_MV, unchanged_MV = p_against_margins(metric, paired, margin_M), p_if_unchanged(metric, paired, margin_M)
    # One-sided limits. A level below one half has no such tail.
    loss_V = losses_ruled_out(metric, paired, tail)
    unchanged = np.flatnonzero(~paired.moved(metric).any(-1)).tolist()
    of_unchanged = losses_ruled_out(metric, paired.of(unchanged), tail / heads) if unchanged else np.array([])
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


_BLOCKS = 20


def over_examples(outcomes: Outcomes, task: Task, level: float) -> list[OverExamples]:
    """The share of the variance of heads' effects on the losses of single examples that is due to examples.

    Empty with fewer than two heads, with fewer than two examples per block of the jackknife, without losses, if nothing
    varies, and for a screened sweep, whose losses are partly estimates.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task.
        level: Level of the interval.
    """
    heads = outcomes.plan.of_kind(HEAD)
    cluster_N = None if outcomes.group_N is None else numbered(outcomes.group_N)
    units = len(outcomes.index_N) if cluster_N is None else int(cluster_N.max()) + 1
    screened = outcomes.weight_NV is not None
    if len(heads) < 2 or units < 2 * _BLOCKS or screened or not task.head.has_losses(outcomes.clean_NC):
        return []
    clean_N, loss_NV = outcomes.losses(task)
    share, stderr = share_over_examples((loss_NV[:, heads] - clean_N[:, None]).T.double().numpy(), cluster_N)
    if not math.isfinite(stderr):
        return []
    reach = float(stats.t.ppf((1 + level) / 2, _BLOCKS - 1)) * stderr
    interval = Estimate(share, max(0.0, share - reach), min(1.0, share + reach), stderr, len(clean_N))
    return [OverExamples(outcomes.plan.mode, interval, level, len(heads), len(clean_N))]


def share_over_examples(effect_HN: Array, cluster_N: Clusters | None = None) -> tuple[float, float]:
    """Share of the variance of effects that is due to examples, with its standard error; NaN if undefined.

    An effect is the sum of a mean, a head term, an example term, and a remainder, which is the interaction of both. The
    share is that of the last two variances (Shrout and Fleiss 1979: 1 - ICC(2,1)). The standard error comes from a
    jackknife over blocks of examples.

    Args:
        effect_HN: Effects ``[heads, examples]``, e.g. increases of the loss.
        cluster_N: The group of each example; blocks keep groups together. None if examples are independent.
    """
    unit_N = np.arange(effect_HN.shape[1]) if cluster_N is None else cluster_N
    share = 1 - intraclass_correlation(effect_HN)
    without_B = np.array(
        [1 - intraclass_correlation(effect_HN[:, unit_N % _BLOCKS != block]) for block in range(_BLOCKS)]
    )
    # Noise may make the variance between heads negative.
    return min(1.0, share), float(np.sqrt((_BLOCKS - 1) * without_B.var()))


class CosineChange(Experiment):
    """Mean absolute change of the cosine of two sentences' embeddings when a head is disabled in both."""

    name = "cosine_change"
    title = "How much disabling a head changes the cosine similarity"
    shown = Shown(
        about="Each sentence is embedded separately, and the prediction for a pair is the cosine of the two "
        "embeddings; a head is disabled in both sentences. Gold similarities are scaled to 0..1, which affects "
        "only the loss.",
    )
    columns = (Column("mean_change", "mean absolute change of the cosine", "change of cosine", keep="high"),)


def cosine_change(outcomes: Outcomes) -> HeadGrid | None:
    """Mean absolute change over pairs, with its standard error, for each head disabled alone; None without such heads.

    Args:
        outcomes: A sweep over pairs, with cosines as logits.
    """
    plan = outcomes.plan
    value_LHC = torch.full((plan.num_layers, plan.num_heads, 1), math.nan, dtype=torch.float64)
    stderr_LHC, count_LHC = value_LHC.clone(), torch.zeros(value_LHC.shape, dtype=torch.int64)
    # float64, as changes of a cosine are small differences of numbers near 1.
    clean_N = outcomes.clean_NC[:, 0].double()
    for index in plan.of_kind(HEAD):
        change_N = (outcomes.logits_NVC[:, index, 0].double() - clean_N).abs()
        at = (plan.variants[index].layer, plan.variants[index].head, 0)
        value_LHC[at], count_LHC[at] = change_N.mean(), len(change_N)
        stderr_LHC[at] = change_N.std() / math.sqrt(len(change_N)) if len(change_N) > 1 else math.nan
    if not bool(count_LHC.any()):
        return None
    return HeadGrid(CosineChange.name, CosineChange.columns, value_LHC, stderr_LHC, count_LHC)
