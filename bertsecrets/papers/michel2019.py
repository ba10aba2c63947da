"""Michel et al. 2019, *Are Sixteen Heads Really Better than One?*: figures and tables of its page.

Published numbers are of BERT (base, uncased) on MNLI; layers count from 0. Numbers of figures were read off the pictures of the
paper; their last digit may be wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.ablation.effects import Effects, effects
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import weighted_scores
from bertsecrets.ablation.seeds import RunSweep, read_sweep
from bertsecrets.ablation.verdicts import change_limits
from bertsecrets.importance.head_gradient import EXAMPLE, NORMALISED, HeadGradient
from bertsecrets.papers.models import Group, Model, Studied
from bertsecrets.papers.shows import by_layer, filled_table, published
from bertsecrets.present.figures.curves import trajectory
from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    footnote,
    house_style,
    panels_across,
    sample_size,
    seeds_in_words,
    titled_panels,
)
from bertsecrets.present.pruning import curves_over_seeds, over_seeds
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.pruning.rows import Point, Pruned
from bertsecrets.pruning.scores import EXACT, score_label
from bertsecrets.results.components import ALL_BUT_ONE, HEAD
from bertsecrets.results.formatting import MISSING, low_to_high, number, with_limits
from bertsecrets.results.views import Replicates
from bertsecrets.statistics.ranks import rank_correlation, spearman
from bertsecrets.statistics.replicates import Interval
from bertsecrets.statistics.splits import choosing_units

_THEIRS = published("michel2019")

_PAPERS = f"{HeadGradient.name}/{EXAMPLE}{NORMALISED}"
"""The paper's score I_h, normalised over the heads of each layer."""

_SPLITS, _TAIL = 50, 0.0125
"""Random splits, and the tail beyond either limit in each: the median of such limits covers at 95 %."""

_BINS = 20


def single_heads(models: Studied) -> Section | None:
    """Section 3.2, figure 1: how many heads have which score once they are disabled; None if no run disabled every head."""
    measured = models.effects("head", "zero")
    if not measured:
        return None
    title = "Heads by the score that is left without them"
    with house_style():
        figure, axes_N = titled_panels(
            [group.title for group, _ in measured],
            panels_across(len(measured)),
            (PAGE_WIDTH, 2.0),
            title,
            margin=0.8,
            shared=False,
        )
        for axes, (_, effect) in zip(axes_N, measured, strict=True):
            score_V = (effect.baseline_R[:, None, None] + effect.delta_RLH).mean(axis=0).ravel()
            edges = _bin_edges(score_V[np.isfinite(score_V)], len(effect.delta_RLH) * effect.count)
            axes.hist(score_V[np.isfinite(score_V)], bins=edges, color=ACCENTS[0], edgecolor="white", linewidth=0.4)
            axes.axvline(float(effect.baseline_R.mean()), color="black", linewidth=0.8, linestyle="--")
            axes.set_xlabel(effect.metric)
            axes.set_ylabel("heads")
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        footnote(
            figure,
            f"dashed: the whole model; {seeds_in_words([len(effect.delta_RLH) for _, effect in measured])}; "
            f"{sample_size([effect.count for _, effect in measured])}",
        )
    caption = (
        "Figure 1: heads by the score with their output alone set to zero. The paper's, of BERT on MNLI: most within 0.2 points of .836, "
        "all from .824 to .838."
    )
    group, effect = measured[0]
    score_LH = effect.baseline_R.mean() + effect.delta_RLH.mean(axis=0)
    ends = low_to_high(float(np.nanmin(score_LH)), float(np.nanmax(score_LH)))
    return Section(
        "",
        figures=[FigureBlock("michel_figure1", figure, caption, "Histograms of scores, one for each task.")],
        summary=f"{group.name}: {effect.metric} {number(effect.baseline_R.mean())}, with one head disabled {ends}",
    )


def _bin_edges(score_V: NDArray[np.float64], count: int) -> list[float]:
    """Ends of bars around the scores that the examples allow, so that a bar stands over its score; wider ones where there are many."""
    step = 1 / count
    step *= max(1, math.ceil(float(np.ptp(score_V)) / step / _BINS))
    bars = round(float(np.ptp(score_V)) / step) + 1
    return [float(score_V.min()) + step * (edge - 0.5) for edge in range(bars + 1)]


@dataclass(frozen=True)
class _Alone:
    """The best head of a layer, alone: chosen on a third of the examples and tested on the others, over random splits.

    Args:
        head: The head chosen most often.
        change, low, high: Change of score in points, and the limits of its 95 % interval.
        on_all: The change of the head that is best on all examples.
    """

    head: int
    change: float
    low: float
    high: float
    on_all: float


def all_but_one(models: Studied) -> Section | None:
    """Section 3.3: keeping one head of a layer; None if no run disabled all heads of layers but one."""
    rows = []
    counts: list[int] = []
    seeds = "one seed"
    changes: list[float] = []
    for group in models.tuned:
        views, mode = group.sweeps(ALL_BUT_ONE.name, "zero")
        sweeps = (read_sweep(view, ALL_BUT_ONE.name, mode) for view in views)
        measured = [sweep for sweep in sweeps if sweep is not None]
        runs = [_alone(sweep) for sweep in measured]
        changes = changes or [best.change for run in runs for best in run.values()]
        counts += [sweep.count for sweep in measured]
        seeds = "by seed" if len(runs) > 1 else seeds
        # Layers of a smaller model are not those of the paper's.
        theirs = _THEIRS["one_head"] if runs and len(runs[0]) == len(_THEIRS["one_head"]) else None
        for index, layer in enumerate(sorted(runs[0]) if runs else ()):
            heads = [run[layer] for run in runs]
            rows.append(
                [
                    group.name,
                    str(layer),
                    ", ".join(str(best.head) for best in heads),
                    "; ".join(with_limits(best.change, best.low, best.high, 1, signed=True) for best in heads),
                    ", ".join(number(best.on_all, 1, signed=True) for best in heads),
                    MISSING if theirs is None else number(theirs[index], 2, signed=True),
                ]
            )
    if not rows:
        return None
    if all(row[-1] == MISSING for row in rows):
        elsewhere, same = (by_layer(_THEIRS[name], signed=True) for name in ("one_head_elsewhere", "one_head"))
        rows.append(["paper: MNLI", "each of 12", MISSING, elsewhere, same, MISSING])
    header = [
        "task",
        "layer",
        "head chosen most often",
        "change, points (95 % interval), head chosen on other examples",
        "change, head chosen on the same examples",
        "paper (MNLI), same examples",
    ]
    return Section(
        "",
        paragraphs=[
            f"A layer's head is chosen on a third of the examples and tested on the others: medians over {_SPLITS} random splits, with "
            "intervals from the medians of 97.5 % limits. The paper's table 3 chooses and tests on the same examples, as the column "
            "“head chosen on the same examples” does; for its table 6 a head is chosen on training examples."
        ],
        tables=[
            filled_table(
                Table(
                    header,
                    rows,
                    f"Each layer with its best head alone, {seeds}. On other examples: chosen on a third, tested on the "
                    f"rest, median over {_SPLITS} splits; {sample_size(counts)}",
                )
            )
        ],
        summary=f"{rows[0][0]}: with one head of a layer left {low_to_high(min(changes), max(changes), 1, signed=True)} points",
    )


def _alone(sweep: RunSweep) -> dict[int, _Alone]:
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
        most = int(np.bincount(best_S).argmax())
        alone[layer] = _Alone(
            sweep.rows[most]["head"],
            *(100 * float(value) for value in (np.median(change_S), low, high, sweep.change_V[of_layer_V].max())),
        )
    return alone


def other_data(models: Studied) -> Section | None:
    """Section 3.4, figure 2: whether the same heads matter on another evaluation set of the task, and on other tasks.

    None with fewer than two sets and fewer than two tasks that disabled heads.
    """
    rows = []
    for group in models.tuned:
        for model in group.models:
            for (first, first_effects), (second, second_effects) in combinations(by_evaluation_set(model).items(), 2):
                rows.append(
                    [f"{group.name}, seed {model.seed}: {first}", second, *_agreement(first_effects, second_effects)]
                )
    for (first_group, first_effects), (second_group, second_effects) in combinations(models.effects("head", "zero"), 2):
        if first_effects.delta_RLH.shape[1:] == second_effects.delta_RLH.shape[1:]:
            rows.append([first_group.name, second_group.name, *_agreement(first_effects, second_effects)])
    if not rows:
        return None
    rows.append(["paper: MNLI, matched", "MNLI, mismatched", MISSING, MISSING, number(_THEIRS["two_sets"], 2)])
    header = ["effects on", "and on", "Spearman's ρ (95 % interval)", "within layers", "Pearson's r"]
    return Section(
        "",
        paragraphs=[
            "The last row is the paper's figure 2, one model on two sets of one task. Noise in single effects lowers a "
            "correlation: with few examples it is low even where the same heads matter. That over all heads includes what both "
            "effects owe to depth."
        ],
        tables=[Table(header, rows, "Agreement of the heads' effects")],
    )


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


def _agreement(first: Effects, second: Effects) -> list[str]:
    first_LH, second_LH = (np.nanmean(effect.delta_RLH, axis=0) for effect in (first, second))
    ranks = rank_correlation(first_LH, second_LH)
    linear = stats.pearsonr(first_LH.ravel(), second_LH.ravel()).statistic
    total, within = (with_limits(part.rho, part.low, part.high, 2) for part in (ranks, ranks.claim))
    return [total, within, number(float(linear), 2)]


def curves(models: Studied) -> Section | None:
    """Section 4.1, figure 3: the score by heads pruned; None if no run was pruned."""
    pruned = _pruned(models)
    if not pruned:
        return None
    rows = []
    blocks: list[FigureBlock] = []
    for group, contents in pruned:
        score, intervals = _judged(contents), over_seeds(contents)
        rows += _rows(group, contents, intervals, score, _THEIRS["curve"])
        if score == _PAPERS and EXACT in intervals:
            rows += _rows(group, contents, intervals, EXACT, _THEIRS["single_effects"])
        figure = curves_over_seeds(group.name, contents, intervals, _published_lines(contents[0].search.heads))
        blocks.append(
            FigureBlock(
                f"michel_pruning_{len(blocks)}",
                figure,
                f"Figure 3 for {group.name}; crosses: the paper's curves, of accuracy on MNLI, at the same share of heads.",
                "Line chart of scores by heads kept.",
            )
        )
    counts = [content.search.examples for _, contents in pruned for content in contents]
    header = [
        "task",
        "heads pruned",
        "order",
        "change, points",
        "95 % interval over seeds",
        "random orders",
        "paper (MNLI)",
    ]
    return Section(
        "",
        paragraphs=list(dict.fromkeys(_how(contents) for _, contents in pruned)),
        tables=[
            filled_table(
                Table(
                    header,
                    rows,
                    f"Change of score by heads pruned, {seeds_in_words([len(contents) for _, contents in pruned])}. The paper's: "
                    f"accuracy of BERT-base on MNLI, in whole points, at the nearest share in its figure 3b; {sample_size(counts)}",
                )
            )
        ],
        figures=blocks,
        summary=_half_in_words(*pruned[0]),
    )


def _half_in_words(group: Group, contents: Sequence[Pruned]) -> str:
    """What about half of the heads cost, in the order that is shown."""
    intervals, total = over_seeds(contents).get(_judged(contents), {}), contents[0].search.heads
    if not intervals:
        return ""
    kept = min(intervals, key=lambda number: abs(number - total / 2))
    mean, low, high = (100 * end for end in (intervals[kept].mean, intervals[kept].low, intervals[kept].high))
    return (
        f"{group.name}: {total - kept} of {total} heads pruned, {with_limits(mean, low, high, 1, signed=True)} points"
    )


def efficiency(models: Studied) -> Section | None:
    """Section 4.2: latency with half of the heads; None if no run measured it."""
    rows = []
    for group, contents in _pruned(models):
        timed = [(half, content) for content in contents for half in [_half(content)] if content.timed(half)]
        for place, first in enumerate(timed[0][1].timed(timed[0][0]) if timed else ()):
            gains = [100 * (content.timed(half)[place].speedup - 1) for half, content in timed]
            rows.append(
                [
                    group.name,
                    f"{timed[0][0].kept} of {contents[0].search.heads}",
                    str(first.batch),
                    ", ".join(number(gain, 0, signed=True) for gain in gains),
                    f"+{_THEIRS['speed_up']}" if first.batch >= 16 else MISSING,
                ]
            )
    if not rows:
        return None
    header = ["task", "heads kept", "batch size", "more examples per second, %, by seed", "paper, %"]
    return Section(tables=[Table(header, rows, "Speed with about half of the heads")])


_LARGE_SHARE = 0.2
"""Share of the heads whose part in the importance of all says how concentrated it is."""


def during_training(models: Studied) -> Section | None:
    """Section 5, figure 5: when the important heads become so; None if no run measured importance during training."""
    rows = []
    blocks: list[FigureBlock] = []
    for group in models.tuned:
        histories = [view.history(EXAMPLE) for view in group.views(HeadGradient.name)]
        histories = [history for history in histories if len(history) > 1]
        for steps in {tuple(step for step, _ in history) for history in histories}:
            value_RSLH = np.array(
                [
                    [value for _, value in history]
                    for history in histories
                    if steps == tuple(step for step, _ in history)
                ]
            )
            epochs = float((group.config.get("trainer") or {}).get("max_epochs") or np.nan)
            for index, step in enumerate(steps):
                now_RN, last_RN = (value_RSLH[:, at].reshape(len(value_RSLH), -1) for at in (index, -1))
                shares = [_concentration(now_N) for now_N in now_RN]
                order = [spearman(now_N, last_N) for now_N, last_N in zip(now_RN, last_RN, strict=True)]
                rows.append(
                    [
                        group.name,
                        str(step),
                        number(epochs * step / steps[-1], 2),
                        ", ".join(number(100 * share, 0) for share in shares),
                        ", ".join(number(rho, 2) for rho in order),
                    ]
                )
            figure = trajectory(
                steps,
                value_RSLH.mean(axis=0),
                title=f"{group.name}: importance I_h of heads during training",
                unit="mean |∂loss/∂gate|",
                count=group.views(HeadGradient.name)[0].count(EXAMPLE),
            )
            caption = f"Figure 5 for {group.name}, {seeds_in_words([len(value_RSLH)])}."
            blocks.append(FigureBlock(f"michel_training_{len(blocks)}", figure, caption, "Lines of heads by step."))
    if not rows:
        return None
    header = [
        "task",
        "step",
        "epoch",
        "share of the first fifth of heads, %, by seed",
        "Spearman's ρ with the last, by seed",
    ]
    return Section(
        "",
        paragraphs=[
            "The paper prunes a translation model after each epoch: at first every share of heads that is pruned costs alike; from "
            "about the tenth epoch 40 % of the heads can go at 85 to 90 % of the score. Here is the importance itself, before "
            "the normalisation by layer: what part of its sum the most important fifth of all heads have (20 % if all were "
            "equal), and whether the order of heads is already that of the end."
        ],
        tables=[Table(header, rows, "Importance of heads at each validation")],
        figures=blocks,
        summary=_change_of_concentration(rows),
    )


def _change_of_concentration(rows: Sequence[Sequence[str]]) -> str:
    """The first task's first and last validation, in words."""
    first, *_, last = [row for row in rows if row[0] == rows[0][0]]
    return f"{first[0]}: a fifth of the heads has {first[3]} % of the importance at step {first[1]}, {last[3]} % at step {last[1]}"


def _concentration(value_N: NDArray[np.float64]) -> float:
    largest_N = np.sort(value_N)[::-1]
    return float(largest_N[: round(_LARGE_SHARE * len(largest_N))].sum() / largest_N.sum())


def _pruned(models: Studied) -> list[tuple[Group, list[Pruned]]]:
    """The groups with pruned models, with what each run found."""
    pruned = []
    for group in models.tuned:
        if runs := [run for view in group.views("pruning") if (run := Pruned.of(view)) is not None]:
            pruned.append((group, runs))
    return pruned


def _judged(contents: Sequence[Pruned]) -> str:
    """The score whose order is shown: the paper's if all runs have it, else what chose the first run's model."""
    if all(any(point.score == _PAPERS for point in content.points) for content in contents):
        return _PAPERS
    return contents[0].chosen.score


def _half(content: Pruned) -> Point:
    """The point of the chosen score's order with about half of the heads gone."""
    return min(content.order, key=lambda point: abs(point.kept - content.search.heads / 2))


def _rows(
    group: Group,
    contents: Sequence[Pruned],
    intervals: Mapping[str, Mapping[int, Interval]],
    score: str,
    published_curve: Mapping[int, float],
) -> list[list[str]]:
    total = contents[0].search.heads
    rows = []
    for kept, interval in intervals.get(score, {}).items():
        random = [change for content in contents for change in content.random(kept)]
        percent = 100 * (total - kept) / total
        rows.append(
            [
                group.name,
                f"{total - kept} ({percent:.0f} %)",
                score_label(score),
                number(100 * interval.mean, 1),
                low_to_high(100 * interval.low, 100 * interval.high, 1),
                _least_to_most(random),
                _published(published_curve, percent),
            ]
        )
    return rows


def _least_to_most(changes: Sequence[float]) -> str:
    """Points of the least and the largest of several changes, of a single one, or a dash."""
    if len(changes) == 1:
        return number(100 * changes[0], 1)
    return low_to_high(100 * min(changes), 100 * max(changes), 1) if changes else MISSING


_NEAR = 2.5
"""Percent of the heads within which a published share is shown beside one of these runs."""


def _published(curve: Mapping[int, float], percent: float) -> str:
    """The paper's change at the nearest share that was read off its figure, in whole points, with the share; a dash if none is near."""
    nearest = min(curve, key=lambda share: abs(share - percent))
    if abs(nearest - percent) > _NEAR:
        return MISSING
    return f"{number(100 * (curve[nearest] - curve[0]), 0)} ({nearest} %)"


def _published_lines(total: int) -> dict[str, list[tuple[float, float]]]:
    """The paper's curves: heads kept of as many as ours, and change of accuracy."""
    curves = {"paper, I_h": _THEIRS["curve"], "paper, single effects": _THEIRS["single_effects"]}
    return {
        name: [(total * (1 - percent / 100), score - curve[0]) for percent, score in curve.items()]
        for name, curve in curves.items()
    }


def _how(contents: Sequence[Pruned]) -> str:
    """Which order is shown, and where its numbers come from."""
    content, score = contents[0], _judged(contents)
    when = "anew after each step" if content.search.iterative else "once"
    source = (
        "read from a head table"
        if any(point.from_table for point in content.points if point.score == score)
        else f"computed {when} on {content.search.choosing:,} training examples"
    )
    theirs = (
        "This is I_h of the paper: the mean absolute derivative of the loss with respect to a gate on the head, divided by the norm over "
        "the layer's heads. The paper computes it once, on all training examples."
        if score == _PAPERS
        else "The paper's order is that of I_h, the mean absolute derivative of the loss with respect to a gate on the head: "
        f"prune.scores=[{_PAPERS},exact]."
    )
    return f"Heads are removed in the order of {score_label(score)} (prune.scores=[{score}]), {source}. {theirs}"
