"""How many heads pass all of some tests that a measure made."""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import Sheet
from bertsecrets.papers.statements.test import Reading, Test
from bertsecrets.results.formatting import head_label
from bertsecrets.results.scores import LEVEL


class TestedHeads(Test):
    """Number of heads whose p-values in all of some columns are at most 0.05; the columns are corrected over heads.

    Its p-value is that of the head with the lowest, of which the largest of its p-values counts: all tests have to be
    passed. That no head passes refutes nothing.

    Args:
        p_values: The columns.
    """

    p_values: list[str] = Field(min_length=1, description="a list of columns, <measure>/<column>")

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self.p_values)

    @property
    def number(self) -> str:
        return f"number of heads that pass {' and '.join(self.p_values)}"

    def reading(self, sheet: Sheet) -> Reading:
        grids = [sheet.grid(column) for column in self.p_values]
        p_LH = np.max([grid.value_LH for grid in grids], axis=0)
        count = max(grid.count for grid in grids)
        if not np.isfinite(p_LH).any():
            return Reading(math.nan, math.nan, count)
        head = np.unravel_index(np.nanargmin(p_LH), p_LH.shape)
        passed = int((p_LH <= LEVEL).sum())
        detail = f"best: {head_label(int(head[0]), int(head[1]))}"
        return Reading(float(passed), math.nan, count, detail, p_value=float(np.nanmin(p_LH)) if passed else 1.0)
