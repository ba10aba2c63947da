"""Section 3 and table 1: pre-trained against random weights, both fine-tuned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.papers.kovaleva2019.chapter import Chapter, Claim, PaperRuns, claims_tables, held, published_for
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.scores import ScoreRow, score_rows
from bertsecrets.results.formatting import MISSING, number, with_error
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.statistics.replicates import mean_interval

_CONSTANT_IN_THE_PAPER = ("mrpc", "qqp", "rte")


@dataclass(frozen=True)
class _Scores:
    """One metric of a task's first evaluation set, by initialisation.

    Args:
        task: Name of the condition.
        metric: Name of the metric.
        pretrained, random: Each seed's score; NaN where undefined. ``random`` is empty if there is no such run.
        constant: A constant answer's score; NaN where undefined.
        published: The paper's scores, for a table cell.
        constant_in_paper: Whether the paper's random weights end as a constant answer on this task.
    """

    task: str
    metric: str
    pretrained: list[float]
    random: list[float]
    constant: float
    published: str
    constant_in_paper: bool

    @property
    def defined(self) -> bool:
        """Whether every seed's score is defined."""
        return bool(np.isfinite([*self.pretrained, *self.random]).all())

    @property
    def pretrained_is_better(self) -> bool:
        return bool(np.mean(self.pretrained) > np.mean(self.random))

    @property
    def random_is_constant(self) -> bool:
        """Whether random weights are at most a point better than a constant answer; a correlation's counts as 0."""
        floor = 0.0 if math.isnan(self.constant) else self.constant
        return bool(np.mean(self.random) <= floor + 0.01)


def initialisation(runs: PaperRuns) -> Chapter | None:
    """Table 1, per task, next to the published one; None without labelled runs."""
    tasks = [metrics for condition in runs.pretrained if (metrics := _scores(runs, condition))]
    if not tasks:
        return None
    first = [metrics[0] for metrics in tasks]
    claims = _claims([scores for scores in first if scores.random])
    rows = [
        [
            scores.task,
            scores.metric,
            _percent(scores.pretrained),
            _percent(scores.random),
            number(100 * scores.constant, 1),
            scores.published,
        ]
        for metrics in tasks
        for scores in metrics
    ]
    drawn = []
    for scores in first:
        drawn.append(_drawn(f"{scores.task} · pre-trained", scores.pretrained, scores.constant))
        if scores.random:
            drawn.append(_drawn(f"{scores.task} · random weights", scores.random, scores.constant))
    figure = score_rows(drawn, title="Scores by initialisation", note="intervals: Student's t at 95 % over seeds")
    header = ["task", "metric", "pre-trained, fine-tuned", "random, fine-tuned", "constant answer", "paper"]
    caption = "Every seed's score, by task and initialisation."
    section = Section(
        "Section 3, table 1: does pre-training matter?",
        paragraphs=[
            "Scores in percent, mean over seeds with half of a 95 % interval. The paper's column has three models: pre-trained "
            "and fine-tuned, random and fine-tuned, and pre-trained without fine-tuning, which has an untrained classifier; "
            "it gives one run each and no intervals."
        ],
        tables=[Table(header, rows, "Table 1"), *claims_tables(claims)],
        figures=[FigureBlock("paper_table1", figure, caption, "Dot chart of scores.")],
    )
    return Chapter(section, claims)


def _scores(runs: PaperRuns, condition: Condition) -> list[_Scores]:
    """The metrics of a condition that started from pre-trained weights, the task's first one first."""
    name = runs.name(condition)
    random = next((other for other in runs.random if runs.name(other) == name), None)
    constants = next(iter(condition.runs[0].scores["sets"].values()))["constant"]
    return [
        _Scores(
            name,
            metric,
            _by_seed(condition, metric),
            [] if random is None else _by_seed(random, metric),
            math.nan if constant is None else float(constant),
            _published(condition, metric),
            condition.task in _CONSTANT_IN_THE_PAPER,
        )
        for metric, constant in constants.items()
    ]


def _by_seed(condition: Condition, metric: str) -> list[float]:
    values = [next(iter(run.scores["sets"].values()))["model"][metric] for run in condition.runs]
    return [math.nan if value is None else float(value) for value in values]


def _published(condition: Condition, metric: str) -> str:
    known = (published_for(condition, published.SCORES) or {}).get(metric)
    return MISSING if known is None else " / ".join(number(value, 1) for value in reversed(known))


def _claims(tasks: Sequence[_Scores]) -> list[Claim]:
    """The two claims about tasks with runs of both initialisations; none without such tasks."""
    if not tasks:
        return []
    compared = [scores for scores in tasks if scores.defined]
    names = [scores.task for scores in compared]
    undefined = [scores.task for scores in tasks if not scores.defined]
    left_out = [f"Left out, as the score of some seed is undefined: {', '.join(undefined)}."] if undefined else []
    better = [scores.task for scores in compared if scores.pretrained_is_better]
    constant = [scores.task for scores in compared if scores.random_is_constant]
    expected = [scores for scores in compared if scores.constant_in_paper]
    is_better = [f"The mean score is higher {held(better, names)}."] if compared else []
    is_constant = [f"Within a point of a constant answer, or below it, {held(constant, names)}."] if compared else []
    return [
        Claim(
            "Fine-tuned pre-trained weights beat fine-tuned random weights on every task.",
            " ".join([*is_better, *left_out]),
            len(better) == len(compared) if compared else None,
        ),
        Claim(
            "Random weights learn nothing of MRPC, QQP and RTE: they end as a constant answer (our reading of table 1).",
            " ".join([*is_constant, *left_out]),
            all(scores.random_is_constant for scores in expected) if expected else None,
        ),
    ]


def _drawn(label: str, values: list[float], constant: float) -> ScoreRow:
    interval = mean_interval(values)
    return ScoreRow(label, values, interval.low, interval.high, constant)


def _percent(values: list[float]) -> str:
    """The mean over seeds with half of its interval, in percent."""
    interval = mean_interval(values)
    return with_error(100 * interval.mean, 100 * (interval.high - interval.mean), 1)
