"""The rank correlation of two columns over heads."""

import math
from collections.abc import Sequence

from pydantic import Field

from bertsecrets.papers.statements.sheet import Sheet
from bertsecrets.papers.statements.test import REACH, RankTest, Reading, reliability
from bertsecrets.statistics.ranks import rank_correlation


class Correlation(RankTest):
    """Spearman's rank correlation of two columns over heads; its standard error is over heads.

    Args:
        column, other: The columns.
        absolute: Whether to take its absolute value.
    """

    column: str = Field(description="a column, <measure>/<column>")
    other: str = Field(description="a column, <measure>/<column>")
    absolute: bool = Field(default=False, description="true or false")

    @property
    def limits(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.absolute else super().limits

    @property
    def columns(self) -> Sequence[str]:
        return (self.column, self.other)

    @property
    def number(self) -> str:
        size = "size of the " if self.absolute else ""
        return f"{size}rank correlation over heads of {self.column} and {self.other}"

    def reading(self, sheet: Sheet) -> Reading:
        first, second = (sheet.grid(column) for column in self.columns)
        correlation = rank_correlation(first.value_LH, second.value_LH)
        value = abs(correlation.rho) if self.absolute else correlation.rho
        stderr = (correlation.high - correlation.low) / (2 * REACH)
        attenuation = math.sqrt(reliability(first) * reliability(second))
        count = max(first.count, second.count)
        return Reading(value, stderr, count, f"{correlation.count} heads", attenuation)
