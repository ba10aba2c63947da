"""How far models agree on a column: those of several seeds, or of several tasks."""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import Array, Sheet
from bertsecrets.papers.statements.test import RankTest, Reading, reliability
from bertsecrets.statistics.ranks import spearman

_RESAMPLES = 400


class Agreement(RankTest):
    """Mean rank correlation over heads between any two seeds of a task, or any two tasks of a model (means over their seeds).

    Its standard error is that of a bootstrap over heads.

    Args:
        column: The column.
        between: ``seeds`` or ``tasks``.
    """

    column: str = Field(description="a column, <measure>/<column>")
    between: Literal["seeds", "tasks"] = Field(description="seeds or tasks")

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)

    @property
    def joins(self) -> str:
        return self.between

    @property
    def number(self) -> str:
        return f"mean rank correlation over heads of {self.column} between {self.between}"

    def reading(self, sheet: Sheet) -> Reading:
        return self.joint_reading([[sheet]])

    def joint_reading(self, groups: Sequence[Sequence[Sheet]]) -> Reading:
        grids_G = [[sheet.grid(self.column) for sheet in group] for group in groups]
        count = max(grid.count for grids in grids_G for grid in grids)
        value_GN = np.stack([np.mean([grid.value_LH for grid in grids], axis=0).ravel() for grids in grids_G])
        value_GN = value_GN[:, np.isfinite(value_GN).all(0)]
        detail = f"{len(groups)} {self.between}"
        if len(groups) < 2:
            return Reading(np.nan, np.nan, count, detail)
        generator = np.random.default_rng(0)
        drawn = [
            _mean_correlation(value_GN[:, generator.integers(value_GN.shape[1], size=value_GN.shape[1])])
            for _ in range(_RESAMPLES)
        ]
        # The mean over the seeds of a task is at least as reliable as the least reliable of them.
        least = float(np.min([reliability(grid) for grids in grids_G for grid in grids]))
        return Reading(_mean_correlation(value_GN), float(np.nanstd(drawn, ddof=1)), count, detail, least)


def _mean_correlation(value_GN: Array) -> float:
    return float(np.mean([spearman(first_N, second_N) for first_N, second_N in combinations(value_GN, 2)]))
