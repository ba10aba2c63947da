"""The mean of a column over some layers minus its mean over others."""

from collections.abc import Sequence

from pydantic import Field

from bertsecrets.papers.statements.sheet import PLACES, Layers, Sheet
from bertsecrets.papers.statements.test import Reading, Test, listed, mean_of, summed


class Contrast(Test):
    """Mean over the heads of some layers minus that over the heads of others.

    Args:
        column: The column, or columns that are added up.
        layers, other: The layers, and those to compare with.
    """

    column: str | list[str] = Field(description="a column, <measure>/<column>, or a list of them")
    layers: Layers = Field(description="a name of layers")
    other: Layers = Field(description="a name of layers")

    @property
    def columns(self) -> Sequence[str]:
        return listed(self.column)

    @property
    def number(self) -> str:
        what = " + ".join(self.columns)
        return f"mean of {what} over {PLACES[self.layers].words} minus that over {PLACES[self.other].words}"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, self.columns)
        first, second = (list(PLACES[name].rows(len(value_LH))) for name in (self.layers, self.other))
        (mean, stderr), (other, other_stderr) = (mean_of(value_LH[rows], stderr_LH[rows]) for rows in (first, second))
        return Reading(mean - other, stderr + other_stderr, count)
