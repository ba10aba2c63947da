"""Section 3 and table 1: pre-trained against random weights, both fine-tuned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    beside_the_paper,
    claims_tables,
    learned,
    published_for,
)
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.reporting.comparison import CORRELATIONS, within_range
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.scores import ScoreRow, score_rows
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.scores import LEVEL
from bertsecrets.statistics.replicates import Interval, mean_interval

_CONSTANT_IN_THE_PAPER = ("mrpc", "qqp", "rte")
_POINT = 0.01
_PERFECT = 1 - 1e-9
_PAPERS_COLUMN = (
    "The paper's column has three models: pre-trained and fine-tuned, random and fine-tuned, and pre-trained without "
    "fine-tuning, which has an untrained classifier; it gives one run each and no intervals."
)


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
        """None if the difference is not significant: by Welch's test over seeds, or with one seed over examples.

        Over examples, correlations are compared by Fisher's transformation, as if the two models were independent.
        """
        delta = float(np.mean(self.pretrained) - np.mean(self.random))
        both = (self.pretrained, self.random)
        if min(map(len, both)) > 1:
            spread = math.sqrt(sum(float(np.var(values, ddof=1)) / len(values) for values in both))
            certain = delta != 0 if spread == 0 else stats.ttest_ind(*both, equal_var=False).pvalue <= LEVEL
        elif self.metric == "accuracy":
            spread = math.sqrt(sum(max(0.0, p * (1 - p)) for p in (values[0] for values in both)) / self.count)
            certain = abs(delta) > 1.96 * spread
        elif self.metric in CORRELATIONS and self.count > 3:
            certain = abs(_fisher(self.pretrained[0]) - _fisher(self.random[0])) > 1.96 * math.sqrt(
                2 / (self.count - 3)
            )
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
        interval = _interval(self.metric, self.random, self.count)
        low, high = interval.low, interval.high
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
            _percent(scores, scores.pretrained),
            _percent(scores, scores.random),
            number(100 * scores.constant, 1),
            scores.published,
        ]
        for metrics in tasks
        for scores in metrics
    ]
    drawn = []
    for scores in first:
        drawn.append(_drawn("pre-trained", scores, scores.pretrained))
        if scores.random:
            drawn.append(_drawn("random weights", scores, scores.random))
    figure = score_rows(
        drawn,
        title="Scores by initialisation",
        note="intervals: 95 %, over seeds (Student's t, cut off at the metric's ends), or over examples where there is one seed",
    )
    header = ["task", "metric", "pre-trained, fine-tuned", "random, fine-tuned", "constant answer", "paper"]
    caption = "Every seed's score, by task and initialisation."
    section = Section(
        "Section 3, table 1: does pre-training matter?",
        paragraphs=[
            "Scores in percent, mean over seeds with a 95 % interval, cut off at the metric's ends; where there is one seed, "
            "the interval is over examples.",
            *([_PAPERS_COLUMN] if any(row[-1] != MISSING for row in rows) else []),
        ],
        tables=[beside_the_paper(header, rows, "Table 1"), *claims_tables(claims)],
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


def _fisher(correlation: float) -> float:
    """Fisher's transformation, finite for perfect correlations."""
    return math.atanh(max(-_PERFECT, min(_PERFECT, correlation)))


def _interval(metric: str, values: list[float], count: int) -> Interval:
    """The mean with limits inside the metric's range: over seeds, or with one seed over examples.

    Over examples, an accuracy has Wilson's interval, a correlation Fisher's, and other metrics none.
    """
    interval = mean_interval(values)
    if interval.count == 1 and metric == "accuracy":
        low, high = stats.binomtest(round(interval.mean * count), count).proportion_ci(method="wilson")
        interval = replace(interval, low=float(low), high=float(high))
    elif interval.count == 1 and metric in CORRELATIONS and count > 3:
        low, high = (math.tanh(_fisher(interval.mean) + sign * 1.96 / math.sqrt(count - 3)) for sign in (-1, 1))
        interval = replace(interval, low=low, high=high)
    return within_range(interval, metric)


def _drawn(init: str, scores: _Scores, values: list[float]) -> ScoreRow:
    interval = _interval(scores.metric, values, scores.count)
    return ScoreRow(f"{scores.task} · {init}", values, interval.low, interval.high, scores.constant)


def _percent(scores: _Scores, values: list[float]) -> str:
    """The mean with its interval, in percent."""
    interval = _interval(scores.metric, values, scores.count)
    mean = number(100 * interval.mean, 1)
    if not math.isfinite(interval.low):
        return mean
    return f"{mean} ({number(100 * interval.low, 1)} to {number(100 * interval.high, 1)})"
