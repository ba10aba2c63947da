"""Scores by initialisation next to published ones: table 1 of Kovaleva et al. 2019."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.papers.lines import Line
from bertsecrets.papers.models import Studied
from bertsecrets.reporting.runs import constant_score
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.scores import score_interval


def initialisation(
    models: Studied, scores: Mapping[str, Mapping[str, Sequence[float]]], development: Mapping[str, int]
) -> Iterator[Line]:
    """Each metric of a task's first evaluation set by initialisation, then the mean gain of fine-tuning.

    Args:
        models: The models.
        scores: The paper's by task and metric, in percent: untrained classifier, random, pre-trained.
        development: Examples of the development set of each task.
    """
    lines = []
    for group in models.tuned:
        random = models.of_random(group)
        by_start = {
            "pretrained": group.models,
            "random": () if random is None else random.models,
            "untrained": [model for model in models.initial_of(group) if model.init != RANDOM_INIT],
        }
        name, first = next(iter(group.models[0].scores.sets.items()))
        for metric in first.constant:
            values = {
                start: [model.first_set.model.get(metric, math.nan) for model in started]
                for start, started in by_start.items()
            }
            theirs = scores.get(group.task, {}).get(metric, ())
            line = score_line(metric, values, first.count, theirs, development.get(group.task, 0))
            constant = constant_score(group.models, name, metric)
            lines.append({"task": group.name, "metric": metric, "constant": constant, **line})
    yield from lines
    yield from mean_gain(lines)


def score_line(
    metric: str, values: Mapping[str, Sequence[float]], count: int, theirs: Sequence[float], papers_count: int
) -> dict[str, Any]:
    """One metric by initialisation, next to the paper's.

    ``against`` lists the trained models whose interval does not overlap with that of the paper's score; an untrained
    classifier is a single random draw and is not compared.

    Args:
        metric: The metric.
        values: Each seed's score by initialisation: ``pretrained``, ``random`` and ``untrained``; NaN where undefined.
        count: Number of examples.
        theirs: The paper's scores in percent: untrained classifier, random, pre-trained; empty without any.
        papers_count: Number of examples of the paper's development set.
    """
    ours = {start: score_interval(metric, of_seeds, count) for start, of_seeds in values.items() if of_seeds}
    against, untested = [], False
    for start, name, published in zip(("pretrained", "random"), ("fine-tuned", "random"), theirs[:0:-1], strict=False):
        if start in ours:
            here, there = ours[start], score_interval(metric, [published / 100], papers_count)
            untested |= bool(np.isnan([here.low, there.low]).any())
            if here.high < there.low or here.low > there.high:
                against.append(f"{name} {'lower' if here.high < there.low else 'higher'}")
    return {
        **dict.fromkeys((*values, "gain", "papers_gain")),
        **{start: Estimate(score.mean, score.low, score.high) for start, score in ours.items()},
        "against": ", ".join(against) or ("not tested" if untested else None),
        "paper": theirs or None,
    }


def mean_gain(lines: Sequence[Line]) -> Iterator[Line]:
    """The gain of fine-tuning over an untrained classifier in the first metric, a mean over the tasks that have both;
    none without any.
    """
    by_task = {line["task"]: line for line in reversed(lines)}
    firsts = [line for line in by_task.values() if line["untrained"] is not None]
    if firsts:
        theirs = [line["paper"][-1] - line["paper"][0] for line in firsts if line["paper"]]
        yield {
            "task": f"mean gain over an untrained classifier, {len(firsts)} task{'s' * (len(firsts) != 1)}",
            "gain": 100 * float(np.mean([line["pretrained"].value - line["untrained"].value for line in firsts])),
            "papers_gain": float(np.mean(theirs)) if theirs else None,
        }
