"""Section 4: pruning heads step by step, and what it saves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertsecrets.importance.head_gradient import EXAMPLE, NORMALISED, HeadGradient
from bertsecrets.papers.chapter import (
    MODEL,
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    claims_tables,
    held,
    not_learned,
    without_unlearned,
)
from bertsecrets.papers.michel2019 import published
from bertsecrets.pruning.scores import EXACT, RANDOM, from_table
from bertsecrets.pruning.seeds import curves_over_seeds, over_seeds
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.statistics.replicates import Interval, mean_interval

_Pruned = tuple[Condition, list[Mapping[str, Any]]]

_PAPERS = f"{HeadGradient.name}/{EXAMPLE}{NORMALISED}"
"""The paper's score I_h, normalised over the heads of each layer."""


def curves(runs: PaperRuns) -> Chapter | None:
    """Section 4.1, figure 3: the score by heads pruned; None if no run was pruned."""
    by_name = pruned(runs)
    if not by_name:
        return None
    many, beats, better = Answers(), Answers(), Answers()
    rows = []
    scores: dict[str, str] = {}
    blocks: list[FigureBlock] = []
    for name, (condition, contents) in by_name.items():
        share = published.PRUNABLE.get(condition.task, min(published.PRUNABLE.values()))
        scores[name] = score = _judged(contents)
        many[name] = _without_loss(contents, share / 100, score)
        intervals = over_seeds(contents)
        beats[name] = _beats(contents, score, RANDOM)
        rows += _rows(name, condition, contents, intervals, score, published.CURVE)
        if score == _PAPERS and EXACT in intervals:
            better[name] = _beats(contents, score, EXACT)
            rows += _rows(name, condition, contents, intervals, EXACT, published.SINGLE_EFFECTS)
        blocks.append(
            FigureBlock(
                f"michel_pruning_{len(blocks)}",
                curves_over_seeds(name, contents, intervals),
                f"Figure 3 for {name}.",
                "Line chart of scores by heads kept.",
            )
        )
    conditions = [condition for condition, _ in by_name.values()]
    many, beats, better = (without_unlearned(runs, conditions, answers) for answers in (many, beats, better))
    orders = " or ".join(sorted(set(scores.values())))
    claims = [
        Claim(
            "20 to 40 % of heads can be pruned without noticeable loss, on MNLI (SST-2 60 %, CoLA and MRPC 50 %).",
            "With as many heads gone as in the paper (40 % for other tasks), a loss of the stated margin is ruled out (true) "
            f"or shown (false) in most seeds: {many}.",
            many.everywhere,
        ),
        Claim(
            "The order matters: an order by importance (in the paper I_h) prunes further than others; later work found random orders often as "
            "good (Budhraja et al. 2020), which the paper does not test.",
            f"With half of the heads, the interval over seeds of the change in the order of {orders}, less the mean of "
            f"the random orders, lies above 0 (true) or below it (false): {beats}.",
            beats.everywhere,
        ),
    ]
    if better:
        claims.append(
            Claim(
                "An order by I_h prunes further than one by the effects of removing single heads.",
                f"With half of the heads, the interval over seeds of the change in the order of {_PAPERS}, less that in the order of "
                f"{EXACT}, lies above 0 (true) or below it (false): {better}. The paper takes the effect on the score, {EXACT} that "
                "on the mean loss of training examples.",
                better.everywhere,
            )
        )
    header = [
        "task",
        "heads pruned",
        "order",
        "mean change, points",
        "95 % interval over seeds",
        "random orders",
        "paper",
    ]
    section = Section(
        "Section 4, figure 3: iterative pruning of attention heads",
        paragraphs=[*not_learned(runs, conditions), *_how(by_name, scores)],
        tables=[
            *claims_tables(claims),
            Table(header, rows, "Change of score by heads pruned; the paper's: accuracy on MNLI"),
        ],
        figures=blocks,
    )
    return Chapter(section, claims)


def efficiency(runs: PaperRuns) -> Chapter | None:
    """Section 4.2: latency with half of the heads; None if no run measured it."""
    rows = []
    faster = Answers()
    for name, (_, contents) in pruned(runs).items():
        timed = [row for content in contents if (row := _half_timed(content)) is not None]
        if not timed:
            continue
        for batch in timed[0]["latency"]:
            gains = [100 * (row["latency"][batch]["whole"] / row["latency"][batch]["smaller"] - 1) for row in timed]
            certain = [row["latency"][batch]["high"] < row["latency"][batch]["whole"] for row in timed]
            faster[f"{name}, batch {batch}"] = True if all(certain) else None
            rows.append(
                [
                    name,
                    f"{timed[0]['kept']} of {contents[0]['total']}",
                    batch,
                    ", ".join(number(gain, 0, signed=True) for gain in gains),
                    f"+{published.SPEED_UP}" if int(batch) >= 16 else MISSING,
                ]
            )
    if not rows:
        return None
    told = [name for name, answer in faster.items() if answer]
    claims = [
        Claim(
            "A model with half of its heads is faster, by up to 17.5 %.",
            "The upper quartile of the smaller model's latencies is below the whole model's median in every seed, by task "
            f"and batch size: {held(told, list(faster))}. Speed depends on the machine; the paper measures a GTX 1080 Ti.",
            faster.mostly,
        )
    ]
    header = ["task", "heads kept", "batch size", "more examples per second, %, by seed", "paper, %"]
    section = Section(
        "Section 4.2: effect of pruning on efficiency",
        tables=[*claims_tables(claims), Table(header, rows, "Speed with about half of the heads")],
    )
    return Chapter(section, claims)


def pruned(runs: PaperRuns) -> dict[str, _Pruned]:
    """Conditions with pruned runs, by name, with what each run wrote."""
    by_name: dict[str, _Pruned] = {}
    for name, (condition, replicates) in runs.replicates("pruning").items():
        contents: list[Mapping[str, Any]] = [view.extras for view in replicates.views if view.extras]
        if contents:
            by_name[name] = (condition, contents)
    return by_name


def _judged(contents: Sequence[Mapping[str, Any]]) -> str:
    """The score whose order is judged: the paper's if all runs have it, else what chose the first run's model."""
    if all(any(row["score"] == _PAPERS for row in content["curves"]) for content in contents):
        return _PAPERS
    return str(contents[0]["chosen"]["score"])


def _at(content: Mapping[str, Any], share: float, score: str) -> Mapping[str, Any]:
    """The row of a score's order with about this share of heads gone."""
    own = [row for row in content["curves"] if row["score"] == score]
    return min(own, key=lambda row: abs(row["kept"] - (1 - share) * content["total"]))


def _kept(content: Mapping[str, Any], score: str) -> int | None:
    """Heads of the smallest model of a score's order that is shown to be good enough; None if none is."""
    if "shown" in content:
        kept: int | None = content["shown"].get(score)
        return kept
    chosen = content["chosen"]
    return chosen["kept"] if chosen["holds"] and not chosen["asked"] and chosen["score"] == score else None


def _without_loss(contents: Sequence[Mapping[str, Any]], share: float, score: str) -> bool | None:
    """Whether a loss of the margin is ruled out, or shown, with this share of heads gone in most seeds."""
    shown, refuted = 0, 0
    for content in contents:
        row, kept = _at(content, share, score), _kept(content, score)
        shown += kept is not None and kept <= row["kept"]
        refuted += row["high"] is not None and row["high"] < -content["margin"]
    if shown > len(contents) / 2:
        return True
    return False if refuted > len(contents) / 2 else None


def _beats(contents: Sequence[Mapping[str, Any]], score: str, other: str) -> bool | None:
    """Whether an order is better than another over seeds, by a t interval of the difference; of random ones, their mean."""
    differences = []
    for content in contents:
        kept = _at(content, 0.5, score)["kept"]
        here = [row for row in content["curves"] if row["kept"] == kept and row["change"] is not None]
        own, others = ([row["change"] for row in here if row["score"] == name] for name in (score, other))
        if not own or not others:
            return None
        differences.append(own[0] - float(np.mean(others)))
    # The limits of one seed are NaN: it tells nothing of the next.
    interval = mean_interval(differences)
    if interval.low > 0:
        return True
    return False if interval.high < 0 else None


def _rows(
    name: str,
    condition: Condition,
    contents: Sequence[Mapping[str, Any]],
    intervals: Mapping[str, Mapping[int, Interval]],
    score: str,
    published_curve: Mapping[int, float],
) -> list[list[str]]:
    total = contents[0]["total"]
    theirs = published_curve if condition.task == "mnli" and condition.factors["model"] == MODEL else None
    rows = []
    for kept, interval in intervals.get(score, {}).items():
        random = [
            row["change"]
            for content in contents
            for row in content["curves"]
            if row["score"] == RANDOM and row["kept"] == kept and row["change"] is not None
        ]
        percent = 100 * (total - kept) / total
        rows.append(
            [
                name,
                f"{total - kept} ({percent:.0f} %)",
                score,
                number(100 * interval.mean, 1),
                f"{number(100 * interval.low, 1)} to {number(100 * interval.high, 1)}"
                if interval.count > 1
                else MISSING,
                f"{number(100 * min(random), 1)} to {number(100 * max(random), 1)}" if random else MISSING,
                MISSING if theirs is None or percent > max(theirs) else number(100 * _published(theirs, percent), 1),
            ]
        )
    return rows


def _published(curve: Mapping[int, float], percent: float) -> float:
    return float(np.interp(percent, list(curve), list(curve.values()))) - curve[0]


def _half_timed(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    row = _at(content, 0.5, content["chosen"]["score"])
    return row if row["latency"] else None


def _how(by_name: Mapping[str, _Pruned], scores: Mapping[str, str]) -> list[str]:
    """Which order is judged, and where its numbers come from; one sentence for each kind."""
    sentences: dict[str, None] = {}
    for name, (_, contents) in by_name.items():
        content, score = contents[0], scores[name]
        when = "anew after each step" if content["iterative"] else "once"
        source = (
            "read from a head table"
            if from_table(content, score)
            else f"computed {when} on {content['choosing']:,} training examples"
        )
        theirs = (
            "This is I_h of the paper: the mean absolute derivative of the loss with respect to a gate on the head, divided by the norm over "
            "the layer's heads. The paper computes it once, on all training examples."
            if score == _PAPERS
            else "The paper's order is that of I_h, the mean absolute derivative of the loss with respect to a gate on the head: "
            f"prune.scores=[{_PAPERS},exact]."
        )
        sentences[f"Heads are removed in the order of {score}, {source}. {theirs}"] = None
    return list(sentences)
