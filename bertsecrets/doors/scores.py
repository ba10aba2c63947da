"""A run's scores beside those of a constant predictor."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from bertsecrets.results.score import Score


@dataclass(frozen=True)
class SetScores:
    """Metrics of one evaluation set: the model's (its loss too) and a constant predictor's."""

    count: int
    model: dict[str, float]
    constant: dict[str, float]


@dataclass(frozen=True)
class RunScores:
    """The scores of a run, by evaluation set.

    Args:
        sets: Evaluation set -> its scores.
        constant_answer: What the constant predictor always says; empty for a task without labels, whose sets have no
            metrics.
        step: Optimiser steps of the model scored.
        seconds: How long the run took.
    """

    sets: dict[str, SetScores]
    constant_answer: str
    step: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; undefined numbers are null."""
        content: dict[str, Any] = _without_nan(asdict(self))
        return content

    def lines(self) -> list[Score]:
        """Every metric with its baseline; an accuracy with its standard error as a proportion."""
        lines = []
        for name, each in self.sets.items():
            for metric, baseline in each.constant.items():
                value = each.model[metric]
                error = math.sqrt(value * (1 - value) / each.count) if metric == "accuracy" else math.nan
                lines.append(Score(f"{name}/{metric}", value, baseline, error))
        return lines


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
