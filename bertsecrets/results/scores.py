"""A run's scores, and those of a constant predictor on the same examples."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsecrets.errors import UserError


@dataclass(frozen=True)
class Score:
    """A metric of the fine-tuned model and of a constant prediction.

    Args:
        name: Name of the metric, e.g. ``"accuracy"``.
        value: The model's score; NaN where undefined.
        baseline: The constant prediction's score; NaN where undefined, such as a correlation with a constant.
        stderr: Standard error of ``value``; NaN where unknown.
    """

    name: str
    value: float
    baseline: float
    stderr: float = math.nan


@dataclass(frozen=True)
class SetScores:
    """Metrics of one evaluation set: the model's (including its loss) and a constant predictor's."""

    count: int
    model: dict[str, float]
    constant: dict[str, float]


@dataclass(frozen=True)
class RunScores:
    """The scores of a run, by evaluation set.

    Args:
        sets: Evaluation set -> its scores.
        constant_answer: The constant predictor's answer; empty for a task without labels, which has no metrics.
        step: Optimiser steps of the scored model.
        seconds: Duration of the run.
    """

    sets: dict[str, SetScores]
    constant_answer: str
    step: int
    seconds: float

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
                name: SetScores(entry["count"], _with_nan(entry["model"]), _with_nan(entry["constant"]))
                for name, entry in content["sets"].items()
            }
            return cls(sets, content["constant_answer"], content["step"], content["seconds"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"'{path}' cannot be read as the scores of a run ({error}); repeat the run.") from error

    def lines(self) -> list[Score]:
        """Every metric with its baseline; an accuracy with its standard error as a proportion."""
        lines = []
        for name, scores in self.sets.items():
            for metric, baseline in scores.constant.items():
                value = scores.model[metric]
                error = math.sqrt(value * (1 - value) / scores.count) if metric == "accuracy" else math.nan
                lines.append(Score(f"{name}/{metric}", value, baseline, error))
        return lines


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_nan(values: dict[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else float(value) for name, value in values.items()}
