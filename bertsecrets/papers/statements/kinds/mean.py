"""The mean of a column over heads."""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import PLACES, Layers, Sheet
from bertsecrets.papers.statements.test import Reading, Test, listed, mean_of, summed
from bertsecrets.settings import Settings


class Where(Settings):
    """Which heads count: those in which another column is above a number."""

    column: str = Field(description="a column, <measure>/<column>")
    above: float | int = Field(description="a number")


class Mean(Test):
    """Mean over heads of a column, or of several columns together, minus another.

    Args:
        column: The column, or columns that are added up.
        minus: Columns to take away.
        layers: The layers whose heads count.
        where: Which of these heads count; null for all.
        absolute: Whether to take the absolute value of the mean.
    """

    column: str | list[str] = Field(description="a column, <measure>/<column>, or a list of them")
    minus: str | list[str] = Field(default=[], description="a column, <measure>/<column>, or a list of them")
    layers: Layers = Field(default="all", description="a name of layers")
    where: Where | None = None
    absolute: bool = Field(default=False, description="true or false")

    @property
    def limits(self) -> tuple[float, float]:
        return (0.0, math.inf) if self.absolute else super().limits

    @property
    def columns(self) -> Sequence[str]:
        other = () if self.where is None else (self.where.column,)
        return (*listed(self.column), *listed(self.minus), *other)

    @property
    def number(self) -> str:
        what = " + ".join(listed(self.column)) + "".join(f" − {column}" for column in listed(self.minus))
        places = f" of {PLACES[self.layers].words}"
        chosen = "" if self.where is None else f" with {self.where.column} above {self.where.above:g}"
        return f"{'size of the ' if self.absolute else ''}mean of {what} over the heads{places}{chosen}"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, listed(self.column))
        for column in listed(self.minus):
            other = sheet.grid(column)
            value_LH, stderr_LH = value_LH - other.value_LH, stderr_LH + other.stderr_LH
        rows = list(PLACES[self.layers].rows(len(value_LH)))
        chosen_LH = np.zeros(value_LH.shape, bool)
        chosen_LH[rows] = True
        if self.where is not None:
            chosen_LH &= sheet.grid(self.where.column).value_LH > self.where.above
        chosen_LH &= np.isfinite(value_LH)
        heads = int(chosen_LH.sum())
        detail = "" if self.where is None else f"{heads} of {chosen_LH.size} heads"
        if not heads:
            return Reading(np.nan, np.nan, count, detail)
        value, stderr = mean_of(value_LH[chosen_LH], stderr_LH[chosen_LH])
        return Reading(abs(value) if self.absolute else value, stderr, count, detail)
