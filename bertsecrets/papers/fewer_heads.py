"""What is left of a model with fewer heads, for pages: single heads of a layer, pruned models, gates, and agreement on
effects.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Any

import numpy as np
from scipy import stats

from bertsecrets.ablation.effects import Effects, effects
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import weighted_scores
from bertsecrets.ablation.seeds import RunSweep, read_sweep
from bertsecrets.ablation.verdicts import change_limits
from bertsecrets.measures.role_rows import PREVIOUS, VOITA_ROLES, voita_roles
from bertsecrets.papers.lines import Line
from bertsecrets.papers.models import Group, Model, Studied, callbacks_of_training
from bertsecrets.present.figures.pruning import CurvePoint, pruning_curves
from bertsecrets.present.pruning import curves_over_seeds, over_seeds
from bertsecrets.present.report.content import FigureBlock, Section
from bertsecrets.pruning.experiment import GATE, KEPT
from bertsecrets.pruning.rows import GateFits, PathPoint, Point, Pruned
from bertsecrets.pruning.scores import score_label
from bertsecrets.results.components import ALL_BUT_ONE, HEAD
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.views import Replicates
from bertsecrets.statistics.ranks import rank_correlation
from bertsecrets.statistics.replicates import Interval, interval_over_seeds, mean_interval
from bertsecrets.statistics.splits import choosing_units

_SPLITS, _TAIL = 50, 0.0125
"""Random splits, and the tail beyond either limit in each: the median of such limits covers at 95 %."""

_LEVEL, _MARGIN = 0.95, 0.01


def best_alone(models: Studied, one_head: Sequence[float]) -> Iterator[Line]:
    """Each layer with its best head alone: chosen on a third of the examples and tested on the others, over random
    splits.

    ``change`` is of the chosen heads, ``on_all`` of the head that is best on all examples, both in points and by seed.

    Args:
        models: The models.
        one_head: The paper's changes by layer, which stand beside models of as many layers.
    """
    for group in models.tuned:
        views, mode = group.sweeps(ALL_BUT_ONE.name, "zero")
        sweeps = [sweep for view in views if (sweep := read_sweep(view, ALL_BUT_ONE.name, mode)) is not None]
        by_seed = [_alone(sweep) for sweep in sweeps]
        for layer in sorted(by_seed[0]) if by_seed else ():
            heads, changes, on_all = zip(*(of_seed[layer] for of_seed in by_seed), strict=True)
            # Layers of a smaller model are not those of the paper's.
            paper = one_head[layer] if len(by_seed[0]) == len(one_head) else None
            line = {"task": group.name, "layer": layer, "heads": heads, "change": changes, "on_all": on_all}
            yield {**line, "paper": paper, "seeds": len(sweeps), "examples": max(sweep.count for sweep in sweeps)}


def _alone(sweep: RunSweep) -> dict[int, tuple[int, Estimate, float]]:
    """For each layer the head chosen most often, the change of score with the chosen heads, and that of the best on all
    examples.
    """
    chooses_SN = choosing_units(sweep.count, _SPLITS, seed=0)
    # An undefined score, such as the correlation of a constant answer, is never the best.
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
            limits = change_limits(sweep.metric, PairedPredictions(*(array[..., tests_N] for array in arrays)))
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
    """The effects of all single heads in a model by the evaluation set that they were measured on."""
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
    """The groups with pruned models, with what each run found."""
    for group in models.tuned:
        if runs := [run for view in group.views("pruning") if (run := Pruned.of(view)) is not None]:
            yield group, runs


def _shown(runs: Sequence[Pruned], order: str) -> str:
    """The score whose order is shown: the paper's if all runs have it, else what chose the first run's model."""
    return order if all(any(point.score == order for point in run.points) for run in runs) else runs[0].chosen.score


_NEAR = 2.5
"""Percent of the heads within which a published share is shown beside one of these runs."""


def pruning(models: Studied, order: str, scores: Mapping[str, Mapping[int, float]]) -> Iterator[Line]:
    """Changes of score by heads pruned, in the paper's order and those that it compares it with.

    Args:
        models: The models.
        order: The paper's order; where not all runs have it, the one that chose the first run's model.
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
        models, order, scores: As of :func:`pruning`.
        name, caption: Of the figures; ``{name}`` stands for the models.
    """
    paragraphs: list[str] = []
    blocks: list[FigureBlock] = []
    for group, runs in _pruned(models):
        search, shown = runs[0].search, _shown(runs, order)
        points = [point for point in runs[0].points if point.score == shown]
        when = "anew after each step" if search.iterative else "once"
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
    """Examples per second gained with about half of the heads, in percent, by seed and batch size.

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


_FROZEN, _LEARNED, _ALONE = "of the frozen model", "learned in training", "open heads alone, from the start"
"""What the rows of gates are called; the last kind fine-tunes the heads that gates left open, without the others."""
_LEGEND = {_FROZEN: f"gates {_FROZEN}", _LEARNED: f"gates {_LEARNED}", _ALONE: _ALONE}


@dataclass(frozen=True)
class _Fitted:
    """Models of several seeds with gates, frozen or learned, or of whose heads some were left out from the start.

    Args:
        name: Name of the same models with all heads, or their own where there are none.
        how: Which of the three.
        penalty: The gates' penalty; None for the last kind.
        heads: Number of heads.
        kept_R, score_R: Heads kept and score, by seed.
        whole_R: Score with all heads of the same seeds; empty where some seed has none.
        change: Mean change of the score with the kept heads alone.
    """

    name: str
    how: str
    penalty: float | None
    heads: int
    kept_R: list[int]
    score_R: list[float]
    whole_R: list[float]
    change: Interval


def gates(models: Studied) -> Iterator[Line]:
    """Heads that gates leave open, and the score with these: all heads first, then gates of frozen models, then learned
    ones.
    """
    fits = [*(fitted for group in models.tuned for fitted in _path(group)), *_all_fitted(models)]
    # Gates of another penalty may have been learned with other seeds.
    most_seeds = {fitted.name: fitted for fitted in sorted(fits, key=lambda fitted: len(fitted.whole_R))}
    for name, whole in most_seeds.items():
        if whole.whole_R:
            yield {"task": name, "gates": "none", "kept": whole.heads, "heads": whole.heads, "score": whole.whole_R}
    for fitted in fits:
        yield {
            "task": fitted.name,
            "gates": fitted.how,
            "penalty": None if fitted.penalty is None else f"{fitted.penalty:g}",
            "kept": fitted.kept_R,
            "heads": fitted.heads,
            "score": fitted.score_R,
            **{name: 100 * getattr(fitted.change, name) for name in ("mean", "low", "high")},
        }


def gates_figures(
    models: Studied, pruned: Mapping[str, Sequence[float]], whole: float, heads: int, name: str, caption: str
) -> Section | None:
    """Changes of score by heads kept, with gates of frozen models and learned ones; None if no run fitted gates.

    Args:
        models: The models.
        pruned: The paper's heads that are kept, those of the encoder first, -> its scores with learned gates and the
            same heads alone.
        whole, heads: The paper's score with all heads, and its encoder's heads.
        name, caption: Of the figures; ``{name}`` stands for the models.
    """
    blocks: list[FigureBlock] = []
    learned = _all_fitted(models)
    for group in models.tuned:
        path = _path(group)
        if not path:
            continue
        fits = next(fits for view in group.views("causal_gates") if (fits := view.fact(GateFits)) is not None)
        of_group = [one for one in (*path, *learned) if one.name == group.name and np.isfinite(one.change.mean)]
        points = []
        for how, legend in _LEGEND.items():
            kept = [(float(np.mean(one.kept_R)), one.change) for one in of_group if one.how == how]
            in_order = sorted(kept, key=itemgetter(0))
            points += [CurvePoint(legend, number, Estimate(of.mean, of.low, of.high)) for number, of in in_order]
        published = {
            f"paper (BLEU), {_LEGEND[how]}": [
                (path[0].heads * int(kept.split("/")[0]) / heads, (scores[place] - whole) / 100)
                for kept, scores in pruned.items()
            ]
            for place, how in enumerate((_LEARNED, _ALONE))
        }
        figure = pruning_curves(
            points,
            margin=_MARGIN,
            title=f"{group.name}: change of {fits.metric} by heads kept",
            count=fits.examples,
            level=_LEVEL,
            over="seeds and examples" if max(len(one.kept_R) for one in path) > 1 else "examples",
            published=published,
        )
        told = caption.format(name=group.name)
        blocks.append(FigureBlock(f"{name}_{len(blocks)}", figure, told, "Line chart of scores by heads kept."))
    return Section(figures=blocks) if blocks else None


def _path(group: Group) -> list[_Fitted]:
    """The models on the path of gates of the frozen model, by penalty."""
    views = group.views("causal_gates", "pushed_shut", ready=lambda view: bool(view.lines("pathpoint")))
    by_penalty: dict[float, list[tuple[float, PathPoint]]] = {}
    for view in views:
        for point in view.found(PathPoint):
            by_penalty.setdefault(point.penalty, []).append((view.found(GateFits)[0].score, point))
    path = []
    for penalty, of_seeds in by_penalty.items():
        defined = [(whole, point.change) for whole, point in of_seeds if np.isfinite(point.change.value)]
        limits = [[change.value, change.low, change.high] for _, change in defined]
        path.append(
            _Fitted(
                group.name,
                _FROZEN,
                penalty,
                views[0].value("pushed_shut").size,
                [point.kept for _, point in of_seeds],
                [whole + change.value for whole, change in defined],
                [whole for whole, _ in defined],
                interval_over_seeds(limits, _LEVEL, symmetric=True),
            )
        )
    return path


def _all_fitted(models: Studied) -> list[_Fitted]:
    """The models that were fine-tuned with gates, or without some heads."""
    fits = []
    for group in models.tuned:
        how, open_, fitted = "", [], []
        for model in group.models:
            for name, experiment, column in ((_LEARNED, "gates", GATE), (_ALONE, "pruned_first", KEPT)):
                view = model.view(experiment, lambda view, column=column: view.has(column))  # type: ignore[misc]
                if view is not None:
                    how = name
                    open_.append(view.value(column) >= 0.5)
                    fitted.append(model)
                    break
        if fitted:
            usual = models.as_usual(group)
            whole = {} if usual is None else {model.seed: _score(model) for model in usual.models}
            score_R = [_score(model) for model in fitted]
            whole_R = [whole[model.seed] for model in fitted] if all(model.seed in whole for model in fitted) else []
            change = mean_interval(np.subtract(score_R, whole_R) if whole_R else [], _LEVEL)
            kept_R, name = [int(open_LH.sum()) for open_LH in open_], group.name if usual is None else usual.name
            fits.append(_Fitted(name, how, _penalty(fitted[0]), open_[0].size, kept_R, score_R, whole_R, change))
    return fits


def _score(model: Model) -> float:
    return next(iter(model.first_set.model.values()))


def _penalty(model: Model) -> float | None:
    callbacks = callbacks_of_training(model.parts[0]).values()
    return next((settings["penalty"] for settings in callbacks if "penalty" in settings), None)


def kept_by_role(models: Studied) -> Iterator[Line]:
    """How many heads with each role of Voita et al. (2019) are left when gates shut others, for each model with
    both.
    """
    for group in models.tuned:
        for model in group.models:
            roles = model.view("voita_roles", lambda view: view.has(PREVIOUS))
            shut = model.view("causal_gates", lambda view: view.has("pushed_shut"))
            learned = model.view("gates", lambda view: view.has(GATE))
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
                else f"{_LEARNED}, penalty {'–' if penalty is None else f'{penalty:g}'}",
                **dict.fromkeys(role.replace(" ", "_") for role in VOITA_ROLES),
                **counts,
            }
