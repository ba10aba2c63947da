"""Models with fewer heads, for pages: single heads of a layer, pruned models, gates, and agreement on effects."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from bertsecrets.ablation.predictions import PairedPredictions, weighted_scores
from bertsecrets.ablation.seeds import Effects, RunSweep, effects, read_sweep
from bertsecrets.ablation.verdicts import change_limits
from bertsecrets.measures.role_rows import PREVIOUS, VOITA_ROLES, voita_roles
from bertsecrets.papers.lines import Line
from bertsecrets.papers.models import Group, Model, Studied, callbacks_of_training
from bertsecrets.present.pruning import curves_over_seeds, over_seeds
from bertsecrets.present.report.content import FigureBlock, Section
from bertsecrets.pruning.rows import GATE, KEPT, GateFits, PathPoint, Point, Pruned
from bertsecrets.pruning.scores import score_label
from bertsecrets.results.components import ALL_BUT_ONE, HEAD
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.views import Replicates
from bertsecrets.statistics.ranks import rank_correlation
from bertsecrets.statistics.replicates import interval_over_seeds, mean_interval
from bertsecrets.statistics.splits import choosing_units

_SPLITS, _TAIL = 50, 0.0125
"""Number of random splits, and the tail beyond each limit: the median of such limits has 95 % coverage."""

_LEVEL = 0.95


def best_alone(models: Studied, one_head: Sequence[float]) -> Iterator[Line]:
    """Each layer with only its best head, chosen on a third of the examples and tested on the rest, over random splits.

    ``change`` is for the chosen heads, ``on_all`` for the best head on all examples, both in points and by seed.

    Args:
        models: The models.
        one_head: The paper's changes by layer, shown for models with the same number of layers.
    """
    for group in models.tuned:
        views, mode = group.sweeps(ALL_BUT_ONE.name, "zero")
        sweeps = [sweep for view in views if (sweep := read_sweep(view, ALL_BUT_ONE.name, mode)) is not None]
        by_seed = [_alone(sweep) for sweep in sweeps]
        for layer in sorted(by_seed[0]) if by_seed else ():
            heads, changes, on_all = zip(*(of_seed[layer] for of_seed in by_seed), strict=True)
            # Layers of a smaller model do not correspond to the paper's.
            paper = one_head[layer] if len(by_seed[0]) == len(one_head) else None
            line = {"task": group.name, "layer": layer, "heads": heads, "change": changes, "on_all": on_all}
            yield {**line, "paper": paper, "seeds": len(sweeps), "examples": max(sweep.count for sweep in sweeps)}


def _alone(sweep: RunSweep) -> dict[int, tuple[int, Estimate, float]]:
    """For each layer, the head chosen most often, the change of score with the chosen heads, and with the best head on
    all examples.
    """
    chooses_SN = choosing_units(sweep.units, _SPLITS, seed=0)
    if sweep.cluster_N is not None:
        chooses_SN = chooses_SN[:, sweep.cluster_N]
    # An undefined score, such as the correlation of a constant prediction, is never the best.
    choosing_SV, tested_SV = (
        np.nan_to_num(weighted_scores(sweep.metric, sweep.label_N, sweep.both_VN, weight_SN), nan=-np.inf)
        for weight_SN in (chooses_SN.astype(np.float64), (~chooses_SN).astype(np.float64))
    )
    layer_V = np.array([row["layer"] for row in sweep.rows])
    alone = {}
    for layer in sorted(set(layer_V.tolist())):
        of_layer_V = np.flatnonzero(layer_V == layer)
        best_S = of_layer_V[choosing_SV[:, 1 + of_layer_V].argmax(axis=1)]
        change_S = tested_SV[np.arange(_SPLITS), 1 + best_S] - tested_SV[:, 0]
        limits_S = []
        for tests_N, best in zip(~chooses_SN, best_S, strict=True):
            arrays = (sweep.label_N, sweep.clean_N, sweep.prediction_VN[[best]])
            group_N = None if sweep.group_N is None else sweep.group_N[tests_N]
            paired = PairedPredictions(*(array[..., tests_N] for array in arrays), group_N=group_N)
            limits = change_limits(sweep.metric, paired)
            limits_S.append([float(end[0]) for end in limits(np.array([_TAIL]))])
        low, high = np.median(limits_S, axis=0)
        head = sweep.rows[int(np.bincount(best_S).argmax())]["head"]
        change = Estimate(100 * float(np.median(change_S)), 100 * float(low), 100 * float(high))
        alone[layer] = (head, change, 100 * float(sweep.change_V[of_layer_V].max()))
    return alone


def agreements(models: Studied) -> Iterator[Line]:
    """Rank correlations of the effects of single heads on two evaluation sets of a task, and on two tasks."""
    for group in models.tuned:
        for model in group.models:
            for (first, effect), (second, other) in combinations(by_evaluation_set(model).items(), 2):
                names = {"first": f"{group.name}, seed {model.seed}: {first}", "second": second}
                yield names | _agreement(effect, other)
    for (group, effect), (other_group, other) in combinations(models.effects("head", "zero"), 2):
        if effect.delta_RLH.shape[1:] == other.delta_RLH.shape[1:]:
            yield {"first": group.name, "second": other_group.name} | _agreement(effect, other)


def by_evaluation_set(model: Model) -> dict[str, Effects]:
    """The effects of all single heads in a model, by evaluation set."""
    by_set: dict[str, Effects] = {}
    for part in model.parts:
        if "ablation" in part.experiments:
            view = part.experiments["ablation"][1]
            sets = {row["evaluation"] for row in view.run.ablation_table().rows() if row["mode"] == "zero"}
            effect = effects(Replicates([view]), HEAD.name, mode="zero") if len(sets) == 1 else None
            if effect is not None and np.isfinite(effect.delta_RLH).all():
                by_set.setdefault(f"{sets.pop()} ({effect.count:,} examples)", effect)
    return by_set


def _agreement(first: Effects, second: Effects) -> dict[str, Any]:
    first_LH, second_LH = (np.nanmean(effect.delta_RLH, axis=0) for effect in (first, second))
    ranks = rank_correlation(first_LH, second_LH)
    linear = float(stats.pearsonr(first_LH.ravel(), second_LH.ravel()).statistic)
    rho, within = (Estimate(part.rho, part.low, part.high) for part in (ranks, ranks.claim))
    return {"rho": rho, "within": within, "linear": linear}


def _pruned(models: Studied) -> Iterator[tuple[Group, list[Pruned]]]:
    """The groups with pruned models, with each run's results."""
    for group in models.tuned:
        if runs := [run for view in group.views("pruning") if (run := Pruned.of(view)) is not None]:
            yield group, runs


def _shown(runs: Sequence[Pruned], order: str) -> str:
    """The score whose order is shown: the paper's if all runs have it, else what chose the first run's model."""
    return order if all(any(point.score == order for point in run.points) for run in runs) else runs[0].chosen.score


_NEAR = 2.5
"""Largest difference, in percent of the heads, at which a published share is shown next to one of these runs."""


def pruning(models: Studied, order: str, scores: Mapping[str, Mapping[int, float]]) -> Iterator[Line]:
    """Changes of score by pruned heads, in the paper's order and the orders that it is compared with.

    Args:
        models: The models.
        order: The paper's order; if not all runs have it, the order that chose the first run's model.
        scores: The paper's scores by percent of the heads, for each order.
    """
    for group, runs in _pruned(models):
        intervals, shown, total = over_seeds(runs), _shown(runs, order), runs[0].search.heads
        for score in [shown, *(scores.keys() - {order} if shown == order else ())]:
            theirs = scores.get(score, scores[order])
            for kept, interval in intervals.get(score, {}).items():
                removed, random = total - kept, [change for run in runs for change in run.random(kept)]
                near = min(theirs, key=lambda share: abs(share - 100 * removed / total))
                yield {
                    "task": group.name,
                    "pruned": f"{removed} ({100 * removed / total:.0f} %)",
                    "order": score_label(score),
                    "heads": total,
                    "share": removed / total,
                    "change": 100 * interval.mean,
                    "low": 100 * interval.low,
                    "high": 100 * interval.high,
                    "random": 100 * random[0] if len(random) == 1 else None,
                    "least": 100 * min(random) if random else None,
                    "most": 100 * max(random) if random else None,
                    "near": near,
                    "paper": 100 * (theirs[near] - theirs[0]) if abs(near - 100 * removed / total) <= _NEAR else None,
                    "seeds": len(runs),
                    "examples": runs[0].search.examples,
                }


def pruning_figures(
    models: Studied, order: str, scores: Mapping[str, Mapping[int, float]], name: str, caption: str
) -> Section | None:
    """The curves of every order, with the paper's at the same share of heads; None if no run was pruned.

    Args:
        models, order, scores: As in :func:`pruning`.
        name, caption: Of the figures; ``{name}`` is replaced by the models.
    """
    paragraphs: list[str] = []
    blocks: list[FigureBlock] = []
    for group, runs in _pruned(models):
        search, shown = runs[0].search, _shown(runs, order)
        points = [point for point in runs[0].points if point.score == shown]
        when = "again after each step" if search.iterative else "once"
        computed = f"computed {when} on {search.choosing:,} training examples"
        source = "read from a head table" if any(point.from_table for point in points) else computed
        paragraphs.append(f"Heads are removed in the order of {score_label(shown)} (prune.scores=[{shown}]), {source}.")
        published = {
            f"paper, {of_order}": [(search.heads * (1 - percent / 100), score - of[0]) for percent, score in of.items()]
            for of_order, of in scores.items()
        }
        figure = curves_over_seeds(group.name, runs, over_seeds(runs), published)
        blocks.append(
            FigureBlock(f"{name}_{len(blocks)}", figure, caption.format(name=group.name), "Line chart of scores.")
        )
    return Section(paragraphs=list(dict.fromkeys(paragraphs)), figures=blocks) if blocks else None


def speed(models: Studied, gain: float, from_batch: int) -> Iterator[Line]:
    """Throughput gained with about half of the heads, in percent, by seed and batch size.

    Args:
        models: The models.
        gain: The paper's, at batch sizes from ``from_batch``.
    """

    def half(run: Pruned) -> Point:
        return min(run.order, key=lambda point: abs(point.kept - run.search.heads / 2))

    for group, runs in _pruned(models):
        timed = [run for run in runs if run.timed(half(run))]
        for place, first in enumerate(timed[0].timed(half(timed[0])) if timed else ()):
            yield {
                "task": group.name,
                "kept": half(timed[0]).kept,
                "heads": runs[0].search.heads,
                "batch": first.batch,
                "gain": [100 * (run.timed(half(run))[place].speedup - 1) for run in timed],
                "paper": gain if first.batch >= from_batch else None,
            }


_FROZEN = "of the frozen model"
_LEARNED = {"gates": ("learned in training", GATE), "pruned_first": ("open heads only, from the start", KEPT)}
"""Experiments of fine-tuning with gates, or without the heads that gates closed -> their label, and the column of kept
heads.
"""


def gates(models: Studied) -> Iterator[Line]:
    """Heads left open by gates, and the score with these: first all heads, then gates of frozen models, then learned
    gates, with the change from the same seeds with all heads.
    """
    frozen = [line for group in models.tuned for line in _path(group)]
    learned = [line for group in models.tuned for line in _fine_tuned(models, group)]
    whole = {line["task"]: line for line in sorted([*frozen, *learned], key=lambda line: len(line["whole"]))}
    for name, line in whole.items():
        if line["whole"]:
            all_heads = {"task": name, "gates": "none", "kept": line["heads"], "heads": line["heads"]}
            yield {**all_heads, "score": line["whole"]}
    yield from frozen
    yield from learned


def _path(group: Group) -> Iterator[Line]:
    """The models on the path of gates of the frozen model, by penalty."""
    views = group.views("causal_gates", "pushed_shut", ready=lambda view: bool(view.lines("pathpoint")))
    by_penalty: dict[float, list[tuple[float, PathPoint]]] = {}
    for view in views:
        for point in view.found(PathPoint):
            by_penalty.setdefault(point.penalty, []).append((view.found(GateFits)[0].score, point))
    for penalty, of_seeds in by_penalty.items():
        defined = [(whole, point.change) for whole, point in of_seeds if np.isfinite(point.change.value)]
        limits = [[change.value, change.low, change.high] for _, change in defined]
        change = interval_over_seeds(limits, _LEVEL, symmetric=True)
        yield {
            "task": group.name,
            "gates": _FROZEN,
            "penalty": f"{penalty:g}",
            "kept": [point.kept for _, point in of_seeds],
            "heads": views[0].value("pushed_shut").size,
            "score": [whole + change.value for whole, change in defined],
            "whole": [whole for whole, _ in defined],
            **{name: 100 * getattr(change, name) for name in ("mean", "low", "high")},
        }


def _fine_tuned(models: Studied, group: Group) -> Iterator[Line]:
    """The models of a group fine-tuned with gates, or without some heads."""
    for experiment, (how, column) in _LEARNED.items():
        views = {
            model.seed: (model, view) for model in group.models if (view := model.view(experiment, column)) is not None
        }
        if not views:
            continue
        usual = models.as_usual(group)
        scores = {} if usual is None else {model.seed: _score(model) for model in usual.models}
        whole = [scores[seed] for seed in views] if views.keys() <= scores.keys() else []
        score = [_score(model) for model, _ in views.values()]
        change = mean_interval(np.subtract(score, whole) if whole else [], _LEVEL)
        penalty = _penalty(next(iter(views.values()))[0])
        yield {
            "task": group.name if usual is None else usual.name,
            "gates": how,
            "penalty": None if penalty is None else f"{penalty:g}",
            "kept": [int((view.value(column) >= 0.5).sum()) for _, view in views.values()],
            "heads": next(iter(views.values()))[1].value(column).size,
            "score": score,
            "whole": whole,
            **{name: 100 * getattr(change, name) for name in ("mean", "low", "high")},
        }


def _score(model: Model) -> float:
    return next(iter(model.first_set.model.values()))


def _penalty(model: Model) -> float | None:
    callbacks = callbacks_of_training(model.parts[0]).values()
    return next((settings["penalty"] for settings in callbacks if "penalty" in settings), None)


def kept_by_role(models: Studied) -> Iterator[Line]:
    """How many heads with each role of Voita et al. (2019) remain when gates close others, for each model with both."""
    for group in models.tuned:
        for model in group.models:
            roles = model.view("voita_roles", PREVIOUS)
            shut = model.view("causal_gates", "pushed_shut")
            learned = model.view("gates", GATE)
            gates_of = [view.value(name) for view, name in ((shut, "pushed_shut"), (learned, GATE)) if view is not None]
            if roles is None or not gates_of:
                continue
            kept_LH, by_role = gates_of[0] >= 0.5, voita_roles(roles)
            by_role["no role"] = ~np.logical_or.reduce(list(by_role.values()))
            counts = {
                role.replace(" ", "_"): f"{int((role_LH & kept_LH).sum())} of {int(role_LH.sum())}"
                for role, role_LH in by_role.items()
            }
            penalty = _penalty(model)
            yield {
                "task": (models.as_usual(group) or group).name,
                "seed": model.seed,
                "gates": f"{_FROZEN}, pushed shut"
                if shut is not None
                else f"{_LEARNED['gates'][0]}, penalty {'–' if penalty is None else f'{penalty:g}'}",
                **dict.fromkeys(role.replace(" ", "_") for role in VOITA_ROLES),
                **counts,
            }
