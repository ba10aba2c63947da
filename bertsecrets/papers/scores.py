"""Scores by initialisation next to published ones: table 1 of Kovaleva et al. 2019."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.papers.lines import filled_table
from bertsecrets.papers.models import Group, Model, Studied
from bertsecrets.present.report.content import Section, Table
from bertsecrets.reporting.runs import constant_score
from bertsecrets.results.formatting import MISSING, number, with_limits
from bertsecrets.results.scores import score_interval

_PAPERS_COLUMN = (
    "The paper reports three models, with one run each and no intervals: pre-trained and fine-tuned, random and "
    "fine-tuned, and pre-trained without fine-tuning (untrained classifier). A score is marked as lower or higher "
    "than the paper's if its interval does not overlap with the interval of the paper's score on the whole "
    "development set."
)


@dataclass(frozen=True)
class Scores:
    """One metric of a task's first evaluation set, by initialisation.

    Args:
        task: Name of the group.
        metric: Name of the metric.
        pretrained, random: Each seed's score; NaN where undefined. ``random`` is empty without such a run.
        untrained: Scores of the pre-trained encoder with an untrained classifier; empty without such a run.
        constant: The majority baseline's score; NaN where undefined.
        published: The paper's scores in percent: untrained classifier, random, pre-trained; empty if there are none.
        count: Number of examples.
        papers_count: Number of examples of the paper's development set; 0 if there are no published scores.
    """

    task: str
    metric: str
    pretrained: list[float]
    random: list[float]
    untrained: list[float]
    constant: float
    published: Sequence[float]
    count: int
    papers_count: int


def initialisation(
    models: Studied, scores: Mapping[str, Mapping[str, Sequence[float]]], development: Mapping[str, int]
) -> Section | None:
    """Scores of each task by initialisation, next to the published ones; None without labelled runs.

    Args:
        models: The models.
        scores: The paper's by task and metric, in percent: untrained classifier, random, pre-trained.
        development: Examples of the development set of each task.
    """
    tasks = [metrics for group in models.tuned if (metrics := _scores(models, group, scores, development))]
    if not tasks:
        return None
    table = score_table(tasks)
    return Section(
        paragraphs=[
            "Scores in percent, mean over seeds with a 95 % interval over seeds and examples, clipped to the "
            "metric's range. With one seed the interval is over examples; intervals of F1 and Matthews' correlation "
            "are over seeds only.",
            *([_PAPERS_COLUMN] if table.header[-1] == "paper" else []),
        ],
        tables=[table],
    )


def score_table(tasks: Sequence[Sequence[Scores]]) -> Table:
    """Table 1 without empty columns; the last row is the mean gain of fine-tuning.

    Args:
        tasks: The metrics of each task.
    """
    header = ["task", "metric", "pre-trained, fine-tuned", "random, fine-tuned", "pre-trained, untrained classifier"]
    header += ["majority baseline", "against the paper, beyond both intervals", "paper"]
    rows = [
        [
            scores.task,
            scores.metric,
            _percent(scores, scores.pretrained),
            _percent(scores, scores.random) if scores.random else MISSING,
            _percent(scores, scores.untrained) if scores.untrained else MISSING,
            number(100 * scores.constant, 1),
            _beyond(scores),
            " / ".join(number(value, 1) for value in reversed(scores.published)) or MISSING,
        ]
        for metrics in tasks
        for scores in metrics
    ]
    return filled_table(Table(header, [*rows, *_gain(tasks)], "Table 1"))


def _beyond(scores: Scores) -> str:
    """The trained models whose interval does not overlap with the interval of the paper's score.

    An untrained classifier is a single random draw and is not compared.
    """
    differing, untested = [], False
    ours = {"fine-tuned": scores.pretrained, "random": scores.random}
    for (model, values), theirs in zip(ours.items(), reversed(scores.published), strict=False):
        if not values:
            continue
        here = score_interval(scores.metric, values, scores.count)
        there = score_interval(scores.metric, [theirs / 100], scores.papers_count)
        if np.isnan([here.low, there.low]).any():
            untested = True
        elif here.high < there.low or here.low > there.high:
            differing.append(f"{model} {'lower' if here.high < there.low else 'higher'}")
    return ", ".join(differing) or ("not tested" if untested else MISSING)


def _scores(
    models: Studied, group: Group, published: Mapping[str, Any], development: Mapping[str, int]
) -> list[Scores]:
    """The metrics of models that started from pre-trained weights, starting with the task's first metric."""
    random = models.of_random(group)
    untrained = [model for model in models.initial_of(group) if model.init != RANDOM_INIT]
    name, first = next(iter(group.models[0].scores.sets.items()))
    return [
        Scores(
            group.name,
            metric,
            _by_seed(group.models, metric),
            [] if random is None else _by_seed(random.models, metric),
            _by_seed(untrained, metric),
            constant_score(group.models, name, metric),
            published.get(group.task, {}).get(metric, ()),
            first.count,
            development.get(group.task, 0),
        )
        for metric in first.constant
    ]


def _gain(tasks: Sequence[Sequence[Scores]]) -> list[list[str]]:
    """A row of Table 1: the gain of fine-tuning over an untrained classifier, mean over the tasks that have both.

    Uses the first metric of each task, also for the paper.
    """
    firsts = [first for first, *_ in tasks if first.untrained]
    if not firsts:
        return []
    ours = [100 * (float(np.mean(first.pretrained)) - float(np.mean(first.untrained))) for first in firsts]
    theirs = [first.published[-1] - first.published[0] for first in firsts if first.published]
    what = f"mean gain over an untrained classifier, {len(firsts)} task{'s' * (len(firsts) != 1)}"
    means = [number(float(np.mean(gains)), 1, signed=True) if gains else MISSING for gains in (ours, theirs)]
    return [[what, MISSING, means[0], *[MISSING] * 4, means[1]]]


def _by_seed(models: Sequence[Model], metric: str) -> list[float]:
    return [model.first_set.model.get(metric, math.nan) for model in models]


def _percent(scores: Scores, values: list[float]) -> str:
    """The mean with its interval, in percent."""
    interval = score_interval(scores.metric, values, scores.count)
    return with_limits(100 * interval.mean, 100 * interval.low, 100 * interval.high, 1)
