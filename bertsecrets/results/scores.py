"""A run's scores, and those of a constant baseline on the same examples."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from bertsecrets.errors import UserError
from bertsecrets.statistics.replicates import Interval, interval_over_seeds, mean_interval

CORRELATIONS = ("matthews", "pearson", "spearman")
"""The metrics that are correlations."""

UNBOUNDED = ("pseudo_log_likelihood",)
"""The metrics that are no share or correlation."""

FISHER = ("pearson", "spearman")
"""Correlations whose Fisher z has a variance that depends only on the number of examples; Matthews' also depends on
class shares.
"""

INTERVALS = "95 % intervals over seeds and examples (one seed: over examples; F1, AUC and Matthews: over seeds only)"
"""Description of the intervals of :func:`score_interval`, for a figure's note."""

_PERMUTATIONS = 2000
_LEVEL = 0.95
_PERFECT = 1 - 1e-9


@dataclass(frozen=True)
class Score:
    """A metric of the fine-tuned model and of the constant baseline.

    Args:
        name: Name of the metric, e.g. ``"accuracy"``.
        value: The model's score; NaN where undefined.
        baseline: The constant baseline's score; NaN where undefined, such as a correlation with a constant.
        stderr: Standard error of ``value``; NaN where unknown.
        low, high: Limits of a 95 % interval of ``value``, within the metric's range; NaN where unknown.
    """

    name: str
    value: float
    baseline: float
    stderr: float = math.nan
    low: float = math.nan
    high: float = math.nan


LEVEL = 0.05
"""Significance level for beating the constant baseline."""


@dataclass(frozen=True)
class SetScores:
    """Metrics of one evaluation set: the model's (including its loss) and the constant baseline's.

    Args:
        count: Number of examples.
        model, constant: Metric -> score.
        p_constant: P-value of the model being no better than the constant baseline; NaN where untested.
    """

    count: int
    model: dict[str, float]
    constant: dict[str, float]
    p_constant: float = math.nan


def beats_constant(prediction_N: ArrayLike, label_N: ArrayLike, constant: float, *, correlated: bool) -> float:
    """One-sided p-value of a model being no better than a constant baseline.

    For classes, McNemar's exact test on the examples that exactly one of the two gets right. For correlations, which
    are 0 for a constant prediction, a permutation test of Pearson's r.

    Args:
        prediction_N, label_N: The model's predictions and the labels: class indices or scores.
        constant: The constant prediction.
        correlated: Whether the metric is a correlation (of scores, or of classes: Matthews).

    Returns:
        The p-value; 1 if all predictions are the same, NaN without examples or if all labels are the same.
    """
    prediction_N, label_N = np.asarray(prediction_N, np.float64), np.asarray(label_N, np.float64)
    if not len(label_N) or np.ptp(label_N) == 0:
        return math.nan
    if correlated:
        if len(label_N) < 3:
            return math.nan
        if not np.isfinite(prediction_N).all() or np.ptp(prediction_N) == 0:
            return 1.0
        order = np.random.default_rng(0)
        centred_N, answer_N = label_N - label_N.mean(), prediction_N - prediction_N.mean()
        # Minus a rounding error, so that an order with the same sum counts as reached.
        observed = centred_N @ answer_N - 1e-12 * np.sqrt((centred_N**2).sum() * (answer_N**2).sum())
        reached = sum(order.permutation(centred_N) @ answer_N >= observed for _ in range(_PERMUTATIONS))
        return float((1 + reached) / (1 + _PERMUTATIONS))
    better = int(((prediction_N == label_N) & (label_N != constant)).sum())
    worse = int(((prediction_N != label_N) & (label_N == constant)).sum())
    if not better + worse:
        return 1.0
    return float(scipy.stats.binomtest(better, better + worse, alternative="greater").pvalue)


@dataclass(frozen=True)
class RunScores:
    """The scores of a run, by evaluation set.

    Args:
        sets: Evaluation set -> its scores.
        constant_answer: The constant baseline's prediction; empty for a task without labels, which has no metrics.
        step: Optimiser steps of the scored model.
        seconds: Duration of the run.
        notes: Sentences about skipped or unusual rows in the data.
    """

    sets: dict[str, SetScores]
    constant_answer: str
    step: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def learned(self) -> bool | None:
        """Whether the model significantly beats the constant baseline on the first set; None if untested."""
        first = next(iter(self.sets.values()), None)
        return None if first is None or not math.isfinite(first.p_constant) else first.p_constant <= LEVEL

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; undefined numbers are null."""
        content: dict[str, Any] = _without_nan(asdict(self))
        return content

    @classmethod
    def read(cls, path: Path) -> "RunScores":
        """Read the scores in a run's folder.

        Raises:
            UserError: If the file is missing or cannot be read.
        """
        try:
            content = json.loads(path.read_text("utf-8"))
            sets = {
                name: SetScores(
                    entry["count"],
                    _with_nan(entry["model"]),
                    _with_nan(entry["constant"]),
                    # Earlier versions did not test this.
                    math.nan if entry.get("p_constant") is None else float(entry["p_constant"]),
                )
                for name, entry in content["sets"].items()
            }
            notes = tuple(map(str, content.get("notes", ())))
            return cls(sets, content["constant_answer"], content["step"], content["seconds"], notes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"'{path}' cannot be read as the scores of a run ({error}); repeat the run.") from error

    def of(self, name: str, metric: str) -> float:
        """The model's score on an evaluation set; NaN if undefined or not measured."""
        return self.sets[name].model.get(metric, math.nan) if name in self.sets else math.nan

    def lines(self) -> list[Score]:
        """Every metric with its baseline; an accuracy with its standard error and Wilson's interval for a proportion.

        An accuracy of 0 or 1 has no standard error, because the estimate would be 0.
        """
        lines = []
        for name, scores in self.sets.items():
            for metric, baseline in scores.constant.items():
                value = scores.model[metric]
                error = low = high = math.nan
                if metric == "accuracy" and math.isfinite(value) and scores.count:
                    low, high = _over_examples(metric, value, scores.count)
                    error = math.sqrt(value * (1 - value) / scores.count) if 0 < value < 1 else math.nan
                lines.append(Score(f"{name}/{metric}", value, baseline, error, low, high))
        return lines


def score_interval(metric: str, values: Sequence[float], count: int) -> Interval:
    """The mean of a score with its 95 % interval, within the metric's range, over seeds and examples or, for one seed,
    over examples.

    Over examples, accuracy has Wilson's interval, Pearson's and Spearman's correlations have Fisher's, and other
    metrics have none; with several seeds, theirs is over seeds only (Student's t). Seeds that answer the same examples
    share their noise, so that errors over examples do not shrink with more seeds.

    Args:
        metric: Name of the metric.
        values: Each seed's score; undefined ones are ignored.
        count: Number of examples.
    """
    interval_S3 = [(value, *_over_examples(metric, value, count)) for value in values if math.isfinite(value)]
    unknown = not np.isfinite(interval_S3).all()
    interval = mean_interval(values, _LEVEL) if unknown else interval_over_seeds(interval_S3, _LEVEL)
    # With few seeds, Student's t extends far beyond the metric's range.
    least, most = (-math.inf, math.inf) if metric in UNBOUNDED else (-1.0 if metric in CORRELATIONS else 0.0, 1.0)
    return replace(interval, low=max(interval.low, least), high=min(interval.high, most))


def _over_examples(metric: str, value: float, count: int) -> tuple[float, float]:
    """The limits of one model's 95 % interval; NaN where unknown."""
    if metric == "accuracy" and count:
        low, high = scipy.stats.binomtest(round(value * count), count).proportion_ci(_LEVEL, method="wilson")
        return float(low), float(high)
    if metric in FISHER and count > 3:
        # Fisher's transformation of a perfect correlation is infinite.
        z = math.atanh(max(-_PERFECT, min(_PERFECT, value)))
        low, high = (math.tanh(z + sign * 1.96 / math.sqrt(count - 3)) for sign in (-1, 1))
        return low, high
    return math.nan, math.nan


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_nan(values: dict[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else float(value) for name, value in values.items()}
