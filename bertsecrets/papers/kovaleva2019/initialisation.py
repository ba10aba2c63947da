"""Section 3 and table 1: pre-trained against random weights, both fine-tuned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    claims_tables,
    learned,
    published_for,
)
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.reporting.comparison import within_range
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.scores import ScoreRow, score_rows
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.scores import LEVEL
from bertsecrets.statistics.replicates import mean_interval

_CONSTANT_IN_THE_PAPER = ("mrpc", "qqp", "rte")
_POINT = 0.01


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
        count: Number of examples.
        random_learned: Whether the runs with random weights are shown to beat the constant answer; None where untested.
    """

    task: str
    metric: str
    pretrained: list[float]
    random: list[float]
    constant: float
    published: str
    constant_in_paper: bool
    count: int
    random_learned: bool | None

    @property
    def defined(self) -> bool:
        """Whether every seed's score is defined."""
        return bool(np.isfinite([*self.pretrained, *self.random]).all())

    @property
    def pretrained_is_better(self) -> bool | None:
        """None if the difference is not significant: by Welch's test over seeds, or with one seed over examples."""
        delta = float(np.mean(self.pretrained) - np.mean(self.random))
        both = (self.pretrained, self.random)
        if min(map(len, both)) > 1:
            spread = math.sqrt(sum(float(np.var(values, ddof=1)) / len(values) for values in both))
            certain = delta != 0 if spread == 0 else stats.ttest_ind(*both, equal_var=False).pvalue <= LEVEL
        elif self.metric == "accuracy":
            spread = math.sqrt(sum(max(0.0, p * (1 - p)) for p in (values[0] for values in both)) / self.count)
            certain = abs(delta) > 1.96 * spread
        else:
            certain = False
        return delta > 0 if certain else None

    @property
    def random_is_constant(self) -> bool | None:
        """Whether random weights end within a point of a constant answer, whose correlation counts as 0.

        True only if their whole interval lies within the point, or every seed scores exactly the same as the constant
        answer; False if they are shown to beat it; None otherwise.
        """
        floor = 0.0 if math.isnan(self.constant) else self.constant
        if np.allclose(self.random, floor, rtol=0, atol=1e-9):
            return True
        if self.random_learned:
            return False
        interval = mean_interval(self.random)
        low, high = interval.low, interval.high
        if interval.count == 1 and self.metric == "accuracy":
            right = round(interval.mean * self.count)
            low, high = stats.binomtest(right, self.count).proportion_ci(method="wilson")
        if not math.isfinite(low):
            return None
        if low > floor + _POINT or high < floor - _POINT:
            return False
        return True if floor - _POINT <= low and high <= floor + _POINT else None


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
            _percent(scores.metric, scores.pretrained),
            _percent(scores.metric, scores.random),
            number(100 * scores.constant, 1),
            scores.published,
        ]
        for metrics in tasks
        for scores in metrics
    ]
    drawn = []
    for scores in first:
        drawn.append(_drawn(f"{scores.task} · pre-trained", scores.metric, scores.pretrained, scores.constant))
        if scores.random:
            drawn.append(_drawn(f"{scores.task} · random weights", scores.metric, scores.random, scores.constant))
    figure = score_rows(
        drawn,
        title="Scores by initialisation",
        note="intervals: Student's t at 95 % over seeds, cut off at the metric's ends",
    )
    header = ["task", "metric", "pre-trained, fine-tuned", "random, fine-tuned", "constant answer", "paper"]
    caption = "Every seed's score, by task and initialisation."
    section = Section(
        "Section 3, table 1: does pre-training matter?",
        paragraphs=[
            "Scores in percent, mean over seeds with a 95 % interval, cut off at the metric's ends. The paper's column has three models: pre-trained "
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
    first = next(iter(condition.runs[0].scores["sets"].values()))
    constants = first["constant"]
    return [
        _Scores(
            name,
            metric,
            _by_seed(condition, metric),
            [] if random is None else _by_seed(random, metric),
            math.nan if constant is None else float(constant),
            _published(condition, metric),
            condition.task in _CONSTANT_IN_THE_PAPER,
            int(first["count"]),
            None if random is None else learned(random),
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
    undefined = [scores.task for scores in tasks if not scores.defined]
    left_out = [f"Left out, as the score of some seed is undefined: {', '.join(undefined)}."] if undefined else []
    better = Answers({scores.task: scores.pretrained_is_better for scores in compared})
    constant = Answers({scores.task: scores.random_is_constant for scores in compared})
    expected = Answers({scores.task: constant[scores.task] for scores in compared if scores.constant_in_paper})
    is_better = [f"The mean score is higher, significantly: {better}."] if compared else []
    is_constant = [f"Within a point of a constant answer: {constant}."] if compared else []
    return [
        Claim(
            "Fine-tuned pre-trained weights beat fine-tuned random weights on every task.",
            " ".join([*is_better, *left_out]),
            better.everywhere,
        ),
        Claim(
            "Random weights learn nothing of MRPC, QQP and RTE: they end as a constant answer (our reading of table 1).",
            " ".join([*is_constant, *left_out]),
            expected.everywhere,
        ),
    ]


def _drawn(label: str, metric: str, values: list[float], constant: float) -> ScoreRow:
    interval = within_range(mean_interval(values), metric)
    return ScoreRow(label, values, interval.low, interval.high, constant)


def _percent(metric: str, values: list[float]) -> str:
    """The mean over seeds with its interval inside the metric's range, in percent."""
    interval = within_range(mean_interval(values), metric)
    mean = number(100 * interval.mean, 1)
    if not math.isfinite(interval.low):
        return mean
    return f"{mean} ({number(100 * interval.low, 1)} to {number(100 * interval.high, 1)})"
