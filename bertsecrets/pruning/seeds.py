"""Pruning over seeds of fine-tuning: the section of a page that compares runs."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.pruning.figures import pruning_curves
from bertsecrets.pruning.scores import CONTROLS, from_table, score_label
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.views import Comparison
from bertsecrets.statistics.replicates import Interval, mean_interval

_LEVEL = 0.95
_READABLE_BANDS = 5


def compare_pruning(comparison: Comparison) -> Section | None:
    """Mean curves over seeds by condition, and how many heads can go in each seed; None if no run was pruned."""
    findings, rows = [], []
    blocks: list[FigureBlock] = []
    for label, replicates in comparison.replicates.items():
        contents = [view.extras for view in replicates.views if view.extras]
        if not contents:
            continue
        removed = [_removed(content) for content in contents]
        findings.append(_in_words(label, contents, removed))
        intervals = over_seeds(contents)
        half = _half(contents[0], intervals)
        for score, points in intervals.items():
            rows.append([label, score_label(score), str(len(contents)), str(half), *_cells(points.get(half))])
        if len(contents) > 1:
            blocks.append(
                FigureBlock(
                    f"pruning_{len(blocks)}",
                    curves_over_seeds(label, contents, intervals),
                    "Heads are removed from left to right, in the order of each score; random and reversed are controls.",
                    f"Line chart: mean change of {contents[0]['metric']} by number of heads kept.",
                )
            )
    if not findings:
        return None
    header = ["condition", "score", "seeds", "heads kept", "mean change, points", "95 % interval over seeds"]
    return Section(
        "Pruned heads",
        findings,
        [
            "Intervals over seeds are Student's t; a run's random orders count as one, their mean. The guarantee of each seed is "
            "a test over examples, in that run's own report."
        ],
        [Table(header, rows, "Change of score with half of the heads")],
        blocks,
    )


def over_seeds(contents: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Interval]]:
    """Score -> heads kept -> mean change of score over runs with its interval, for what all runs have.

    Args:
        contents: What :func:`bertsecrets.pruning.search.as_extras` wrote, of each run.
    """
    runs = [_means(content) for content in contents]
    shared = [key for key in runs[0] if all(key in run for run in runs)]
    intervals: dict[str, dict[int, Interval]] = {}
    for score, kept in shared:
        values = [run[score, kept] for run in runs]
        if np.isfinite(values).all():
            intervals.setdefault(score, {})[kept] = mean_interval(values, _LEVEL)
    return dict(sorted(intervals.items(), key=lambda item: item[0] in CONTROLS))


def _means(content: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """Score and heads kept -> change of score, the mean over random orders."""
    values: dict[tuple[str, int], list[float]] = {}
    for row in content["curves"]:
        change = np.nan if row["change"] is None else row["change"]
        values.setdefault((row["score"], row["kept"]), []).append(change)
    return {key: float(np.mean(changes)) for key, changes in values.items()}


def _removed(content: Mapping[str, Any]) -> int:
    selected = content["chosen"]
    return int(content["total"] - selected["kept"]) if selected["holds"] else 0


def _in_words(label: str, contents: Sequence[Mapping[str, Any]], removed: Sequence[int]) -> str:
    first = contents[0]
    seeds = f"the {len(contents)} seeds" if len(contents) > 1 else "the only seed"
    *most, last = map(str, removed)
    shares = f"{', '.join(most)} and {last}" if most else last
    examples = f"{first['examples']:,} examples"
    if not any(from_table(content, content["chosen"]["score"]) for content in contents):
        examples += " that did not choose them"
    return (
        f"{label}: {shares} of {first['total']} heads can go in {seeds} with a loss of {first['metric']} of "
        f"{100 * first['margin']:g} point{'s' * (first['margin'] != 0.01)} or more ruled out at {first['confidence']:.0%} confidence on "
        f"{examples}{' (0: none shown)' if 0 in removed else ''}."
    )


def _half(content: Mapping[str, Any], intervals: Mapping[str, Mapping[int, Interval]]) -> int:
    kept = [kept for points in intervals.values() for kept in points] or [row["kept"] for row in content["curves"]]
    return int(min(kept, key=lambda number: abs(number - content["total"] / 2)))


def _cells(interval: Interval | None) -> list[str]:
    if interval is None:
        return [MISSING, MISSING]
    mean, low, high = (number(100 * value, 1) for value in (interval.mean, interval.low, interval.high))
    return [mean, f"{low} to {high}" if interval.count > 1 else MISSING]


def curves_over_seeds(
    name: str,
    contents: Sequence[Mapping[str, Any]],
    intervals: Mapping[str, Mapping[int, Interval]],
    published: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
) -> Figure:
    """Mean curves over seeds of all scores, with their intervals where there are few.

    Args:
        name: Name of the condition, in the title.
        contents: What :func:`bertsecrets.pruning.search.as_extras` wrote, of each run.
        intervals: From :func:`over_seeds`.
        published: Points of other people's curves: heads kept and change of the score.
    """
    first, seeds = contents[0], len(contents)
    rows = [
        {"score": score, "seed": 0, "kept": kept, "change": point.mean, "low": point.low, "high": point.high}
        for score, points in intervals.items()
        for kept, point in points.items()
    ]
    return pruning_curves(
        rows,
        margin=first["margin"],
        title=f"{name}: change of {first['metric']} by heads kept, {seeds_in_words(seeds)}",
        count=first["examples"],
        level=_LEVEL,
        over="seeds",
        bands=seeds > 1 and len(intervals) <= _READABLE_BANDS,
        controls=CONTROLS,
        published=published,
    )
