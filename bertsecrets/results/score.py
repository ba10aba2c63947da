"""One task metric beside what a constant answer would score."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A metric of the fine-tuned model and of a constant prediction.

    Args:
        name: Name of the metric, e.g. ``"accuracy"``.
        value: The model's score; NaN where undefined.
        baseline: The constant prediction's score; NaN where undefined (a correlation with a constant, say).
        stderr: Standard error of ``value``; NaN where unknown.
    """

    name: str
    value: float
    baseline: float
    stderr: float = math.nan
