"""Removed heads on pages: the smallest model that passes its test, curves, and heads removed before fine-tuning."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.present.figures.pruning import CurvePoint, kept_scores, pruning_curves
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.grid import grid_section
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import FigureBlock, NextStep, Section, Table, block, table
from bertsecrets.pruning.rows import CONTROLS, KEPT, RANDOM, Group, Point, Pruned, Removed, Search, Timing
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import (
    MISSING,
    counted,
    level_text,
    listed,
    low_to_high,
    metric_label,
    number,
    p_value,
    percent,
    percentage,
    points,
    rounded_up,
)
from bertsecrets.results.run import Run
from bertsecrets.results.scores import INTERVALS, RunScores, score_interval
from bertsecrets.results.views import Comparison, MeasureView
from bertsecrets.statistics.replicates import Interval, mean_interval
from bertsecrets.task_heads import unit_of

KEPT_AXIS, CHANGE_OF = "pruning/heads_kept", "pruning/change_of_"
"""The x axis of the curves in W&B, and the prefix of their names."""

_OUT_OF_REACH = 100_000
"""Above this many examples, no number is given."""

_ORDERS = "Heads are removed from left to right, in the order of each score; random and reversed are controls."

_LEVEL = 0.95
_READABLE_BANDS = 5


def section(view: MeasureView) -> Section | None:
    """The test result as text, the curves and their table; None without a search."""
    pruned = Pruned.of(view)
    if pruned is None:
        return None
    search, chosen = pruned.search, pruned.chosen
    names = [f"“{label}”" for label in dict.fromkeys(point.label for point in pruned.points if point.from_table)]
    scores, come = ("scores", "come") if len(names) > 1 else ("score", "comes")
    source = (
        f"The {scores} {listed(names)} {come} from a head table. If a table was measured on the test examples, these "
        "also determined the order, and the test is not valid."
    )
    together = "Here heads, selected on training examples, are removed together; a run's page disables each alone."
    return Section(
        view.title,
        [f"{guarantee_in_words(pruned)} {together}"],
        [_how(pruned), *[source] * bool(names)],
        [_costs_table(pruned), _scores_table(pruned)],
        [
            block(
                "pruning",
                f"Change of {metric_label(search.metric)} by heads kept",
                pruning_curves,
                _ORDERS,
                points=[CurvePoint(point.label, point.kept, point.change, point.order) for point in pruned.points],
                metric=search.metric,
                margin=search.margin,
                marked=chosen.kept if chosen.holds else None,
                count=search.examples,
                level=search.confidence,
            ),
        ],
        summary=f"{answer_in_words(pruned)} {begins_in_words(pruned)}".strip(),
        steps=_steps(view.run, pruned),
    )


def scalars(view: MeasureView) -> Mapping[str, float]:
    """Number of heads of the smallest model that passed; all heads if none did."""
    pruned = Pruned.of(view)
    if pruned is None:
        return {}
    return {"heads_kept": float(pruned.chosen.kept if pruned.chosen.holds else pruned.search.heads)}


def curves(view: MeasureView) -> Mapping[str, Sequence[Mapping[str, float]]]:
    """The change of score, in points, in each score's order by number of heads kept; the mean for random orders."""
    pruned = Pruned.of(view)
    if pruned is None:
        return {}
    by_kept: dict[int, dict[str, float]] = {}
    for (score, kept), change in _means(pruned).items():
        if math.isfinite(change):
            by_kept.setdefault(kept, {})[f"{CHANGE_OF}{pruned.search.metric}/{score}"] = 100 * change
    return {KEPT_AXIS: [{KEPT_AXIS: float(kept), **by_kept[kept]} for kept in sorted(by_kept)]}


def kept_classes(name: str) -> Callable[[MeasureView], Mapping[str, Sequence[Sequence[str]]]]:
    """Text ``kept`` or ``removed`` for each head, under a name; empty without the column :data:`KEPT`."""
    words = {1.0: "kept", 0.0: "removed"}

    def classes(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        if not view.has(KEPT):
            return {}
        return {name: [[words.get(value, MISSING) for value in row] for row in view.value(KEPT).tolist()]}

    return classes


def answer_in_words(pruned: Pruned) -> str:
    """The outcome in a few words, as the title of the page: the loss that is excluded, or its upper bound."""
    search, chosen, unit = pruned.search, pruned.chosen, unit_of(pruned.search.metric)
    verdict = (
        f"a loss of {metric_label(search.metric)} of {points(search.margin, unit)} or more {_verdict(pruned)}"
        f"{lost_most_in_words(pruned.groups)}."
    )
    removed = f"{search.heads - chosen.kept} of {search.heads} heads"
    if chosen.holds and not chosen.asked:
        return f"{removed} can be removed together, without training: {verdict}"
    at_most = f"{metric_label(search.metric)} loses at most {number(rounded_up(chosen.bound), 1)} {unit}"
    start = f"With {chosen.kept} of {search.heads} heads"
    if not chosen.asked:
        start = f"With {removed} removed together and no training"
    if chosen.bound >= search.margin:
        return f"{start}, {at_most}{lost_most_in_words(pruned.groups)}."
    return f"{start}, {verdict}"


def guarantee_in_words(pruned: Pruned) -> str:
    """The outcome as a sentence, with the number of examples."""
    search, chosen = pruned.search, pruned.chosen
    examples = counted(search.examples, "example") + (
        " (if the head table is of others)"
        if any(point.from_table for point in pruned.order)
        else " that chose neither the heads nor their order"
    )
    kept = f"{chosen.kept} of {search.heads} heads"
    removed = (
        f"{search.heads - chosen.kept} of {search.heads} heads can be removed together: with the other {chosen.kept}"
    )
    return (
        f"{removed if chosen.holds and not chosen.asked else f'With {kept}'}, a loss of "
        f"{metric_label(search.metric)} of {points(search.margin, unit_of(search.metric))} or more "
        f"{_verdict(pruned)}, at {level_text(search.confidence)} confidence on {examples} "
        f"(observed change {percent(chosen.change)}, a loss above {number(rounded_up(chosen.bound), 1)} ruled out)"
        f"{_needed(pruned)}{lost_most_in_words(pruned.groups)}."
    )


def _verdict(pruned: Pruned) -> str:
    """Whether the loss of the shown model, and within classes if tested, is excluded."""
    search, chosen = pruned.search, pruned.chosen
    # A class may fail although the score passes; if the score fails, classes are not told.
    scored = chosen.holds or (search.class_margin is not None and chosen.bound < search.margin)
    return ruled_out_in_words(scored, search.class_margin, chosen.holds if scored else None)


def ruled_out_in_words(ruled_out: bool, class_margin: float | None, in_classes: bool | None, bound: str = "") -> str:
    """Whether a loss of the score is excluded, with the bound that is, and one within classes if that was tested.

    >>> ruled_out_in_words(False, None, None), ruled_out_in_words(True, 0.02, False)
    ('is not ruled out', 'is ruled out, one of 2.0 points of accuracy within a class is not')
    """
    text = f"is {'' if ruled_out else 'not '}ruled out{bound}"
    if class_margin is None or in_classes is None:
        return text
    within = f"one of {points(class_margin)} of accuracy within a class"
    if in_classes == ruled_out:
        return f"{text}, {'as is' if ruled_out else 'nor is'} {within}"
    return f"{text}, {within} is{'' if in_classes else ' not'}"


def _needed(pruned: Pruned) -> str:
    chosen = pruned.chosen
    if chosen.holds or (chosen.needed is None and not chosen.hopeless):
        return ""
    if chosen.hopeless or chosen.needed is None:
        return "; the observed loss is the margin or more, so more examples would not help if it stays so"
    if chosen.needed > _OUT_OF_REACH:
        return f"; the observed loss is so close to the margin that it would take more than {_OUT_OF_REACH:,} examples"
    return f"; about {chosen.needed:,} examples would show it with 80 % power if loss and variance stay as observed"


def lost_most_in_words(groups: Sequence[Group], by: str = "class") -> str:
    """The group with the largest loss, with its limits, as the end of a sentence; empty if none loses."""
    worst = min((group for group in groups if group.by == by), key=lambda group: group.change.value, default=None)
    if worst is None or worst.change.value >= 0:
        return ""
    return f"; {worst.group} loses most, {number(worst.whole)} → {number(worst.smaller)}, {worst.change:points}"


def search_in_words(search: Search) -> str:
    """The number of the search on these examples and its error rate; empty for results of earlier versions."""
    if not search.number:
        return ""
    return (
        f"This is search {search.number} for a smaller model on these "
        f"examples{'' if search.counted else ' as far as is known'}; each search spends two thirds of the remaining "
        f"error rate, so that all searches have a joint confidence of {level_text(search.confidence)}: this one is "
        f"tested at {level_text(search.level)}."
    )


def _steps(run: Run, pruned: Pruned) -> list[NextStep]:
    """The loss that is ruled out, where the one that was asked for is not."""
    chosen = pruned.chosen
    if chosen.holds or chosen.bound < pruned.search.margin:
        return []
    loss, unit = rounded_up(chosen.bound), unit_of(pruned.search.metric)
    needed = (
        ""
        if chosen.needed is None or chosen.hopeless or chosen.needed > _OUT_OF_REACH
        else (f" ({chosen.needed:,} examples could rule out {points(pruned.search.margin, unit)})")
    )
    return [
        NextStep(
            f"How many heads can be removed if a loss of {number(loss, 1)} {unit} is acceptable?{needed}",
            f"{run.analyze_command} analysis=prune prune.max_loss={loss:g}",
            "a few minutes",
        )
    ]


def begins_in_words(pruned: Pruned) -> str:
    """Where the loss of the chosen order begins: from there on, the interval of every smaller model lies below 0; empty
    without a curve.
    """
    points = sorted(
        (point for point in pruned.order if math.isfinite(point.change.value)), key=lambda point: -point.kept
    )
    if not points:
        return ""
    start = len(points)
    while start and points[start - 1].change.high < 0:
        start -= 1
    if start == len(points):
        return f"No loss is significant down to {points[-1].kept} heads kept."
    if start == 0:
        return f"The score falls from the first step on, at {points[0].kept} heads kept."
    return f"The loss begins between {points[start - 1].kept} and {points[start].kept} heads kept."


def _how(pruned: Pruned) -> str:
    search = pruned.search
    when = "after each step" if search.iterative else "once, on the intact model"
    computed = (
        "The"
        if all(point.from_table for point in pruned.points if point.score not in CONTROLS)
        else f"Scores are computed {when}, on {search.choosing:,} training examples; the"
    )
    return (
        f"{computed} lowest-ranked head is removed first, and a removed head's output is zero. Models are "
        "tested from largest to smallest, up to the first failure, so that the stated confidence applies to all that "
        f"passed. {search_in_words(search)}"
    ).strip()


def _costs_table(pruned: Pruned) -> Table:
    """The models of the chosen order: their cost and score."""
    search = pruned.search
    batches = dict.fromkeys(timing.batch for timing in pruned.timings)
    times = {(timing.attempt, timing.batch): timing for timing in pruned.timings}

    def time(timing: Timing) -> str:
        return f"{number(timing.smaller, 1)} ({percentage(timing.smaller / timing.whole)})"

    columns: dict[str, Callable[[Point], str]] = {
        "heads kept": lambda point: str(point.kept),
        "parameters": lambda point: f"{percentage(point.parameters / search.parameters, 1)}",
        "FLOPs": lambda point: f"{percentage(point.flops / search.flops, 1)}",
        **{
            f"ms at batch {batch}": lambda point, batch=batch: time(times[point.attempt, batch])  # type: ignore[misc]
            for batch in batches
        },
        f"change, {unit_of(search.metric)}": lambda point: percent(point.change.value),
        f"{level_text(search.confidence)} interval": lambda point: low_to_high(
            100 * point.change.low, 100 * point.change.high, 1
        ),
        "loss": lambda point: number(point.loss),
    }
    threads = f" with {counted(search.threads, 'thread')}" if search.device == "cpu" else ""
    timed = (
        f"; latency on {search.device}{threads}, in parentheses the share of the original model's" if batches else ""
    )
    return table(
        pruned.order,
        columns,
        f"Heads removed by {pruned.order[0].label}: parameters and FLOPs (one example of {search.length} tokens) as "
        f"shares of the original model's {search.parameters:,} and {search.flops:,}{timed}; "
        f"{metric_label(search.metric)} {number(search.score)}, loss {number(search.loss)} with all heads; "
        f"p-value of the test of {pruned.chosen.kept} heads {p_value(pruned.chosen.p_margin)}",
    )


def _scores_table(pruned: Pruned) -> Table:
    """Change of score by heads kept, a column for each score."""
    by_score: dict[str, dict[int, list[Point]]] = {}
    for point in sorted(pruned.points, key=lambda point: point.score in CONTROLS):
        by_score.setdefault(point.label, {}).setdefault(point.kept, []).append(point)

    def cell(points: Sequence[Point]) -> str:
        changes = [point.change.value for point in points]
        if len(points) == 1:
            return f"{points[0].change:%}"
        return f"{percent(float(np.mean(changes)))} [{percent(min(changes))} to {percent(max(changes))}]"

    sizes = dict.fromkeys(point.kept for point in pruned.points)
    rows = [[str(kept), *(cell(by_kept[kept]) for by_kept in by_score.values())] for kept in sizes]
    orders = len({point.order for point in pruned.points if point.score == RANDOM})
    random = f"; for random, the mean of {orders} orders, with their range in brackets" if orders > 1 else ""
    return Table(
        ["heads kept", *by_score],
        rows,
        f"Change of {metric_label(pruned.search.metric)} in {unit_of(pruned.search.metric)} by score, in parentheses "
        f"its {level_text(pruned.search.confidence)} interval{random}",
    )


def comparison(compared: Comparison) -> Section | None:
    """Mean curves over seeds by condition, and the number of removable heads per seed; None if no run was pruned."""
    findings, rows, unit = [], [], ""
    blocks: list[FigureBlock] = []
    for condition, replicates in compared.replicates.items():
        runs = [pruned for view in replicates.views if (pruned := Pruned.of(view)) is not None]
        if not runs:
            continue
        search, unit = runs[0].search, unit_of(runs[0].search.metric)
        removed = [str(run.search.heads - run.chosen.kept if run.chosen.holds else 0) for run in runs]
        examples = counted(search.examples, "example")
        if not any(point.from_table for run in runs for point in run.order):
            examples += " not used for choosing them"
        findings.append(
            f"{condition}: {listed(removed)} of {search.heads} heads can be removed in "
            f"{f'the {len(runs)} seeds' if len(runs) > 1 else 'the only seed'} with a loss of "
            f"{metric_label(search.metric)} of {points(search.margin, unit)} or more ruled out at "
            f"{level_text(search.confidence)} confidence on {examples}{' (0: none)' if '0' in removed else ''}."
        )
        intervals, labels = over_seeds(runs), {point.score: point.label for point in runs[0].points}
        sizes = [kept for points in intervals.values() for kept in points] or [point.kept for point in runs[0].points]
        half = min(sizes, key=lambda kept: abs(kept - runs[0].search.heads / 2))
        for score, of_score in intervals.items():
            point = of_score.get(half)
            cells = (
                [MISSING] * 2
                if point is None
                else [percent(point.mean), low_to_high(100 * point.low, 100 * point.high, 1)]
            )
            rows.append([condition, labels[score], str(len(runs)), str(half), *cells])
        if len(runs) > 1:
            alt = f"Line chart: mean change of {metric_label(runs[0].search.metric)} by number of heads kept."
            name = f"pruning_{len(blocks)}"
            blocks.append(FigureBlock(name, curves_over_seeds(condition, runs, intervals), _ORDERS, alt))
    if not findings:
        return None
    header = ["condition", "score", "seeds", "heads kept", f"mean change, {unit}", "95 % interval over seeds"]
    return Section(
        "Pruned heads",
        findings,
        [
            "Intervals over seeds use Student's t; a run's random orders are averaged. The test of each seed is over "
            "examples, in that run's own report."
        ],
        [Table(header, rows, "Change of score with half of the heads")],
        blocks,
    )


def over_seeds(runs: Sequence[Pruned]) -> dict[str, dict[int, Interval]]:
    """Score -> heads kept -> mean change of score over runs with its interval, for entries common to all runs."""
    means = [_means(run) for run in runs]
    intervals: dict[str, dict[int, Interval]] = {}
    for score, kept in means[0]:
        values = [mean.get((score, kept), math.nan) for mean in means]
        if np.isfinite(values).all():
            intervals.setdefault(score, {})[kept] = mean_interval(values, _LEVEL)
    return dict(sorted(intervals.items(), key=lambda item: item[0] in CONTROLS))


def _means(pruned: Pruned) -> dict[tuple[str, int], float]:
    """Score and heads kept -> change of score, the mean over random orders."""
    values: dict[tuple[str, int], list[float]] = {}
    for point in pruned.points:
        values.setdefault((point.score, point.kept), []).append(point.change.value)
    return {key: float(np.mean(changes)) for key, changes in values.items()}


def curves_over_seeds(
    name: str,
    runs: Sequence[Pruned],
    intervals: Mapping[str, Mapping[int, Interval]],
    published: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
) -> Figure:
    """Mean curves over seeds of all scores, with their intervals if there are few.

    Args:
        published: Points of published curves: heads kept and change of the score.
    """
    search, labels = runs[0].search, {point.score: point.label for point in runs[0].points}
    return pruning_curves(
        [
            CurvePoint(labels[score], kept, Estimate(point.mean, point.low, point.high))
            for score, points in intervals.items()
            for kept, point in points.items()
        ],
        metric=search.metric,
        margin=search.margin,
        title=f"{name}: change of {metric_label(search.metric)} by heads kept, {seeds_in_words(len(runs))}",
        count=search.examples,
        level=_LEVEL,
        over="seeds",
        bands=len(runs) > 1 and len(intervals) <= _READABLE_BANDS,
        published=published,
    )


PRESENTER = Presenter(section, comparison, kept_classes("pruning"), scalars, curves)


def _first_section(view: MeasureView) -> Section | None:
    """The number of heads kept in fine-tuning, and which."""
    section, removed = grid_section(view), view.fact(Removed)
    if section is None or removed is None:
        return None
    gone = removed.heads - removed.kept
    finding = f"The model was fine-tuned with all {removed.heads} heads."
    if gone:
        finding = (
            f"The model was fine-tuned with {removed.kept} of {removed.heads} heads; the {gone} removed before were "
            f"chosen by {removed.label}."
        )
    how = "A sweep over callbacks.prune.keep and seed shows the cost of the removal on its comparison page."
    return replace(section, findings=[finding], paragraphs=[how], tables=[], descriptive=False, head=None)


def _first_comparison(compared: Comparison) -> Section | None:
    """The score by heads kept: mean over seeds with its interval."""
    lines: dict[str, dict[int, Interval]] = {}
    rows, seeds, metric = [], [], ""
    for condition, replicates in compared.replicates.items():
        found = [(view, removed) for view in replicates.views if (removed := view.fact(Removed)) is not None]
        if not found:
            continue
        view, first = found[0]
        metric = first.metric
        paths = [(view.run.scores_path, removed.evaluation) for view, removed in found]
        sets = [RunScores.read(path).sets.get(name) if path.is_file() else None for path, name in paths]
        values = [math.nan if scores is None else scores.model.get(metric, math.nan) for scores in sets]
        interval = score_interval(metric, values, max((scores.count for scores in sets if scores), default=0))
        lines.setdefault(f"{view.run.task} · {first.label}", {})[first.kept] = interval
        cells = [number(interval.mean), low_to_high(interval.low, interval.high)]
        rows.append([condition, first.label, str(first.kept), str(len(values)), *cells])
        seeds.append(len(values))
    if not rows:
        return None
    title = next(iter(compared.replicates.values())).title
    drawn = {name: points for name, points in lines.items() if len(points) > 1}
    figure = block(
        "pruned_first",
        f"{metric} by heads kept before fine-tuning",
        kept_scores,
        f"{seeds_in_words(seeds).capitalize()}.",
        lines=drawn,
        metric=metric,
        note=f"bars: {INTERVALS}",
    )
    return Section(
        title,
        [
            f"{name}: mean {metric} {number(points[most].mean)} with {most} heads, {number(points[fewest].mean)} with "
            f"{fewest} ({counted(points[fewest].count, 'seed')})."
            for name, points in drawn.items()
            for most, fewest in [(max(points), min(points))]
        ],
        [
            "Intervals are over seeds of fine-tuning and, of an accuracy or Pearson's or Spearman's correlation, over "
            "examples."
        ],
        [Table(["condition", "score", "heads kept", "seeds", metric, "95 % interval"], rows, title)],
        [figure] if drawn else [],
    )


FIRST = Presenter(
    _first_section,
    _first_comparison,
    kept_classes("pruned_first"),
    lambda view: {"heads_kept": float(view.value(KEPT).sum())} if view.has(KEPT) else {},
)
