"""What disabling single heads, or whole layers, did to the runs of a condition."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.comparison.conditions import Condition


@dataclass(frozen=True)
class Effects:
    """The effects at the last step of the first metric.

    Args:
        delta_RLH: Changes of the score, ``[replicates, layers, heads]``; a whole layer is one head.
        certain_RLH: Which of them are significant.
        baseline_R: Scores of the undisturbed models.
        count: Examples.
        metric, mode: What was scored, and what stood in the heads' place.
    """

    delta_RLH: NDArray[np.float64]
    certain_RLH: NDArray[np.bool_]
    baseline_R: NDArray[np.float64]
    count: int
    metric: str
    mode: str

    @property
    def what(self) -> str:
        """Metric and mode, for tables."""
        return f"{self.metric} ({self.mode})"


def effects(condition: Condition, kind: str) -> Effects | None:
    """Effects of every ``head`` or ``layer``; None if no run of the condition disabled any."""
    deltas, verdicts, baselines, last = [], [], [], None
    for run in condition.runs:
        singles = [row for row in run.ablation.rows() if row["kind"] == kind]
        if not singles or run.size is None:
            continue
        step = max(row["step"] for row in singles)
        first = last = next(row for row in singles if row["step"] == step)
        size = run.size if kind == "head" else (run.size[0], 1)
        delta_LH, certain_LH = np.full(size, np.nan), np.zeros(size, bool)
        for row in singles:
            if all(row[name] == first[name] for name in ("step", "evaluation", "metric", "mode", "stage")):
                delta_LH[row["layer"], row["head"] or 0] = row["delta"]
                certain_LH[row["layer"], row["head"] or 0] = row["significant"]
        deltas.append(delta_LH)
        verdicts.append(certain_LH)
        baselines.append(first["baseline"])
    if last is None:
        return None
    return Effects(
        np.stack(deltas), np.stack(verdicts), np.array(baselines), last["count"], last["metric"], last["mode"]
    )
