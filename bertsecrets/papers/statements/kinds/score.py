"""The task's score, compared with that of another model or of a constant answer."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import LackingError, Sheet
from bertsecrets.papers.statements.test import Reading, Test
from bertsecrets.reporting.comparison import CORRELATIONS
from bertsecrets.reporting.runs import FinishedRun

_SAME = 1e-9


class Score(Test):
    """The first metric of the first evaluation set, in points, minus another.

    Args:
        minus: ``constant``: that of a constant answer, whose correlation counts as 0; ``random``: the mean over the seeds of
            the same model fine-tuned from random weights.
        absolute: Whether to take the size of the difference.
    """

    minus: Literal["constant", "random"] = Field(description="constant or random")
    absolute: bool = Field(default=False, description="true or false")

    @property
    def limits(self) -> tuple[float, float]:
        return (0.0, math.inf) if self.absolute else super().limits

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def number(self) -> str:
        other = {"constant": "a constant answer", "random": "random weights, fine-tuned"}[self.minus]
        return f"{'size of the difference between the score and' if self.absolute else 'score minus'} that of {other}, in points"

    def reading(self, sheet: Sheet) -> Reading:
        metric, own, error, count = _score(sheet.runs[0])
        if self.minus == "constant":
            constant = next(iter(sheet.runs[0].scores["sets"].values()))["constant"][metric]
            difference = own - (0.0 if constant is None else float(constant))
            # A model that scores exactly the same gives the same answer: no other sample would tell them apart.
            stderr = 0.0 if abs(difference) < _SAME else error
        else:
            if not sheet.random:
                raise LackingError("the same model fine-tuned from random weights", "")
            others = [_score(run) for run in sheet.random]
            scores = np.array([score for _, score, _, _ in others])
            spread = float(scores.var(ddof=1) / len(scores)) if len(scores) > 1 else others[0][2] ** 2
            difference, stderr = own - float(scores.mean()), math.sqrt(error**2 + spread)
        value = 100 * (abs(difference) if self.absolute else difference)
        return Reading(value, 100 * stderr, count, metric)


def _score(run: FinishedRun) -> tuple[str, float, float, int]:
    """The first metric, its value and standard error over examples, and their number; NaN where undefined or unknown."""
    first = next(iter(run.scores["sets"].values()))
    metric, count = next(iter(first["constant"])), int(first["count"])
    score = first["model"][metric]
    if score is None:
        return metric, math.nan, math.nan, count
    if metric in CORRELATIONS and count > 3:
        return metric, float(score), (1 - float(score) ** 2) / math.sqrt(count - 3), count
    error = math.sqrt(max(0.0, score * (1 - score)) / count) if metric == "accuracy" else math.nan
    return metric, float(score), error, count
