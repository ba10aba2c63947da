"""Lines of plain values for a page's tables, from rows of findings and from grids."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.frame_relations.rows import Links
from bertsecrets.measures.linguistic.columns import BEYOND, CLS_TO, MEAN, RANDOM, UNIFORM, feature_label, pair_label
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
from bertsecrets.measures.role_rows import (
    FROM_HEAD,
    PREVIOUS,
    distances,
    judged_relations,
    voita_roles,
)
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.papers.lines import Line
from bertsecrets.papers.models import Studied
from bertsecrets.patterns.classes import NAMES
from bertsecrets.present.frame_relations import OPEN, RELATION, by_weight, relation_heads
from bertsecrets.present.grid import highest
from bertsecrets.reporting.runs import constant_score
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import head_label, number
from bertsecrets.results.run import INITIAL
from bertsecrets.results.scores import score_interval
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.ranks import rank_correlation, spearman

BEFORE, FINE_TUNED = "before fine-tuning", "fine-tuned"
"""The states of a model, used as suffixes of its name."""

Array = NDArray[np.float64]

_LISTED = 3
"""Fields of a row that refer to heads."""


@dataclass(frozen=True)
class State:
    """One experiment in one state of a model.

    Args:
        name: The model and its state, as shown on the page.
        view: The numbers.
        task: The task.
        pretrained: Whether it is the model before fine-tuning.
    """

    name: str
    view: MeasureView
    task: str
    pretrained: bool


def states(models: Studied, experiment: str) -> list[State]:
    """The states with an experiment: for each group, the model before fine-tuning, then the fine-tuned model of its
    first seed.
    """
    before = models.before(experiment)
    measured: list[State] = []
    for group in models.tuned:
        if (group.model, group.task) in before:
            measured.append(State(f"{group.name}, {BEFORE}", before[group.model, group.task], group.task, True))
        tuned = group.views(experiment, ready=lambda view: view.step is not None)
        measured += [State(f"{group.name}, {FINE_TUNED}", view, group.task, False) for view in tuned[:1]]
    # Without fine-tuned models of its task, a model is labelled by task, and by its own name if there are several.
    tuned_on = {(group.model, group.task) for group in models.tuned}
    several = len({model for model, _ in before.keys() | tuned_on}) > 1
    for (model, task), view in before.items():
        if (model, task) not in tuned_on:
            measured.append(State(f"{task}{f' · {model}' * several}, {BEFORE}", view, task, True))
    return measured


def rows(
    models: Studied, experiment: str, rows: str, where: Sequence[Line] = (), words: Mapping[str, Line] | None = None
) -> Iterator[Line]:
    """An experiment's rows of one kind, for every state; ``at`` is the head of a row.

    Args:
        models: The models.
        experiment, rows: The experiment, and its kind of rows.
        where: Alternative sets of field values that rows must have; empty for all rows.
        words: Field -> labels of its values.
    """
    for state in states(models, experiment):
        for line in state.view.lines(rows):
            if where and not any(all(line.get(name) == value for name, value in fits.items()) for fits in where):
                continue
            told = {name: values.get(line[name], line[name]) for name, values in (words or {}).items()}
            at = {"at": (line["layer"], line["head"])} if {"layer", "head"} <= line.keys() else {}
            yield {**line, **at, **{f"{name}_in_words": text for name, text in told.items()}, "model": state.name}


def heads(models: Studied, heads: Mapping[str, Mapping[str, Any]], above: float) -> Iterator[Line]:
    """The highest head of each column in every state, and the heads above a number.

    Args:
        models: The models.
        heads: Column, ``measure/column``, -> its ``label``, and the paper's heads (``published``).
        above: The number.
    """
    for column, about in heads.items():
        measure, _, name = column.partition("/")
        for state in states(models, measure):
            if state.view.has(name):
                value_LH = state.view.value(name)
                at = highest(value_LH)
                yield {
                    "label": about["label"],
                    "model": state.name,
                    "at": at,
                    "value": float(value_LH[at]),
                    "above": np.argwhere(value_LH > above),
                    "paper": about.get("published", []),
                    "examples": state.view.count(name),
                }


def patterns(models: Studied) -> Iterator[Line]:
    """Shares of the attention patterns of fine-tuned models, over seeds."""
    for group in models.tuned:
        if {*NAMES} <= {*group.columns("patterns")}:
            shares = {name: float(np.nanmean(group.mean("patterns", name))) for name in NAMES}
            yield {"task": group.task, "name": group.name, **shares}


def changes(models: Studied, measure: str) -> Iterator[Line]:
    """Means over heads of a measure's columns before and after fine-tuning, and the number of significantly changed
    heads.
    """
    for group in models.tuned:
        compared = [view.compared[INITIAL] for view in group.views(measure) if INITIAL in view.compared]
        for column in dict.fromkeys(chain(*compared)):
            changed = [of_seed[column] for of_seed in compared if column in of_seed]
            uniform = group.grids(measure, column + UNIFORM)
            up, down = (np.mean([getattr(change, way) for change in changed]) for way in ("risen", "fallen"))
            yield {
                "task": group.task,
                "name": group.name,
                "column": column,
                "label": feature_label(column),
                "seeds": len(changed),
                "before": float(np.nanmean([change.other_LH for change in changed])),
                "after": float(np.nanmean([change.model_LH for change in changed])),
                "uniform": None if uniform is None else float(np.nanmean(uniform.value_RLH)),
                "up": number(float(up), 0),
                "down": number(float(down), 0),
            }


def last_layer_of_cls(models: Studied) -> Iterator[Line]:
    """The targets of [CLS]'s attention in the last layer of fine-tuned models, in descending order."""
    for group in models.tuned:
        means: dict[str, float] = {}
        for name in group.columns(TokenToToken.name):
            kind = name.removeprefix(CLS_TO)
            # Exclude [CLS] itself and the total of all separators.
            if kind in (name, "cls", "sep_total") or name.endswith(RANDOM):
                continue
            mean_H = group.mean(TokenToToken.name, name)[-1]
            if np.isfinite(mean_H).any():
                means[feature_label(kind)] = float(np.nanmean(mean_H))
        if means:
            seeds = len(group.views(TokenToToken.name))
            attended = {kind: means[kind] for kind in sorted(means, key=means.__getitem__, reverse=True)}
            yield {"task": group.task, "name": group.name, "seeds": seeds, "attended": attended}


def linked_words(models: Studied) -> Iterator[Line]:
    """The head that attends most to each kind of linked words, and its attention beyond position."""
    for group in models.tuned:
        names = group.columns(TokenToToken.name)
        for pair in (name.removesuffix(BEYOND) for name in names if name.endswith(BEYOND)):
            fields = {"weight": pair, "mean": pair + MEAN, "beyond": pair + BEYOND}
            values = {field: group.mean(TokenToToken.name, name) for field, name in fields.items() if name in names}
            if len(values) == len(fields) and np.isfinite(values["weight"]).any():
                at = highest(values["weight"])
                yield {
                    "task": group.task,
                    "name": group.name,
                    "pair": pair,
                    "label": pair_label(pair),
                    "at": at,
                    **{field: float(value_LH[at]) for field, value_LH in values.items()},
                    "seeds": len(group.views(TokenToToken.name)),
                }


def frame_relations(models: Studied) -> Iterator[Line]:
    """The heads' weights on annotated relations before fine-tuning, for each set of sentences."""
    views = models.before("frame_relations", lambda view: view.has("weight"))
    several = len({model for model, _ in views}) > 1
    taken: list[tuple[str, Array]] = []
    for (model, task), view in sorted(views.items(), key=lambda item: item[0][::-1]):
        links, weight_LH = view.fact(Links), view.value("weight")
        source = task if links is None else links.source
        name = f"{model} · {source}" if several else source
        # Runs on FrameNet's own sentences start from the same model for every task and have the same numbers.
        if any(other == name and np.allclose(weight_LH, other_LH, equal_nan=True) for other, other_LH in taken):
            continue
        taken.append((name, weight_LH))
        heads, relation_LH = by_weight(view), relation_heads(view)
        verdicts = [
            "" if relation_LH is None else f" ({RELATION if relation_LH[head] else OPEN})" for head in heads[:_LISTED]
        ]
        yield {
            "source": name,
            "examples": view.count("weight"),
            "highest": "; ".join(
                f"{head_label(*head)}: {number(weight_LH[head])}{verdict}"
                for head, verdict in zip(heads, verdicts, strict=False)
            ),
            "beyond": float(view.value("over_position")[heads[0]]),
            "follow": None if relation_LH is None else int(relation_LH.sum()),
            "heads": len(heads),
            "mean": float(np.nanmean(weight_LH)),
        }


def concentration(models: Studied, measure: str, column: str, share: float) -> Iterator[Line]:
    """For each validation, the share of the largest heads in a column's sum, and the rank correlation with the final
    order.

    Args:
        models: The models.
        measure, column: The measure, and its column.
        share: Share of the heads that counts as the largest.
    """
    for group in models.tuned:
        histories = [history for view in group.views(measure) if len(history := view.history(column)) > 1]
        for steps in {tuple(step for step, _ in history) for history in histories}:
            alike = [history for history in histories if tuple(step for step, _ in history) == steps]
            epochs = float((group.config.get("trainer") or {}).get("max_epochs") or np.nan)
            for index, step in enumerate(steps):
                now = [np.sort(history[index][1], axis=None)[::-1] for history in alike]
                yield {
                    "task": group.name,
                    "step": step,
                    "epoch": epochs * step / steps[-1],
                    "part": [float(value_N[: round(share * value_N.size)].sum() / value_N.sum()) for value_N in now],
                    "order": [spearman(history[index][1].ravel(), history[-1][1].ravel()) for history in alike],
                    "seeds": len(alike),
                }


def most_relevant(models: Studied, confident: float) -> Iterator[Line]:
    """Whether the most relevant head of each layer has a function and is confident, in the first seed.

    Args:
        models: The models.
        confident: Least confidence of a confident head.
    """
    for group in models.tuned:
        model = group.models[0]
        views = {
            name: model.view(name, column)
            for name, column in (("relevance", "relevance"), ("confidence", "confidence"), ("voita_roles", PREVIOUS))
        }
        found = {name: view for name, view in views.items() if view is not None}
        if len(found) < 2:
            continue
        line: dict[str, Any] = {"task": group.name, "seed": model.seed}
        if "relevance" in found:
            relevance_LH = found["relevance"].value("relevance")
            best = np.arange(len(relevance_LH)), relevance_LH.argmax(axis=1)
            line["layers"] = len(relevance_LH)
            if "voita_roles" in found:
                line["functions"] = int(
                    np.logical_or.reduce(list(voita_roles(found["voita_roles"]).values()))[best].sum()
                )
            if "confidence" in found:
                confidence_LH = found["confidence"].value("confidence")
                ranks = rank_correlation(relevance_LH, confidence_LH)
                line["confident"] = int((confidence_LH[best] > confident).sum())
                line["rho"], line["within"] = (Estimate(part.rho, part.low, part.high) for part in (ranks, ranks.claim))
        yield line


def best_of_relations(models: Studied) -> Iterator[Line]:
    """The best head of each syntactic relation and direction by the largest weight, before and after fine-tuning."""
    before = [
        (f"{model} on {task}, {BEFORE}", None, view) for (model, task), view in models.before("voita_roles").items()
    ]
    # Models with gates are skipped, as there would be a table for each penalty.
    usual = [group for group in models.tuned if models.as_usual(group) in (None, group)]
    first: dict[str, tuple[str, int | None, MeasureView]] = {}
    for group in usual:
        for model in group.models:
            if (view := model.view("voita_roles", PREVIOUS)) is not None:
                first.setdefault(group.name, (group.name, model.seed, view))
    for name, seed, view in [*before, *first.values()]:
        for column, baseline in judged_relations(view).items():
            relation, back = column.removesuffix(FROM_HEAD), column.endswith(FROM_HEAD)
            value_LH, stderr_LH, _ = view.grid(column)
            at = highest(value_LH)
            yield {
                "name": name,
                "seed": seed,
                "relation": relation,
                "back": back,
                "pairs": sum(distances(view)[relation].values()),
                "at": at,
                "found": float(value_LH[at]),
                "reach": 1.96 * float(stderr_LH[at]),
                "baseline": baseline,
            }


def initialisation(
    models: Studied, scores: Mapping[str, Mapping[str, Sequence[float]]], development: Mapping[str, int]
) -> Iterator[Line]:
    """Each metric of a task's first evaluation set by initialisation, then the mean gain of fine-tuning (table 1 of
    Kovaleva et al. 2019).

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
