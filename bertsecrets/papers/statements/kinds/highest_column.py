"""Whether one column of a measure is higher than all of its kind."""

from collections.abc import Sequence

from pydantic import Field

from bertsecrets.papers.statements.sheet import PLACES, LackingError, Layers, Sheet, settings_for
from bertsecrets.papers.statements.test import Reading, Test, mean_of


class HighestColumn(Test):
    """Gap between the mean over heads of a column and that of the highest other column with the same prefix.

    Args:
        column: The column.
        prefix: What the names of the columns to compare with begin with.
        without: Columns with the prefix that do not count.
        layers: The layers whose heads count.
    """

    column: str = Field(description="a column, <measure>/<column>")
    prefix: str = Field(description="the beginning of names of columns, <measure>/<beginning>")
    without: list[str] = Field(default=[], description="a list of columns")
    layers: Layers = Field(default="all", description="a name of layers")

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)

    @property
    def number(self) -> str:
        return f"gap between {self.column} and the highest other {self.prefix}… over {PLACES[self.layers].words}"

    def reading(self, sheet: Sheet) -> Reading:
        grid = sheet.grid(self.column)
        rows = list(PLACES[self.layers].rows(len(grid.value_LH)))
        names = [name for name in sheet.columns(self.prefix) if name not in (self.column, *self.without)]
        others = {}
        for name in names:
            other = sheet.grid(name)
            mean, stderr = mean_of(other.value_LH[rows], other.stderr_LH[rows])
            if mean == mean:
                others[name] = (mean, stderr)
        if not others:
            raise LackingError(f"columns {self.prefix}… to compare with", settings_for(self.column, sheet.about))
        highest = max(others, key=lambda name: others[name][0])
        mean, stderr = mean_of(grid.value_LH[rows], grid.stderr_LH[rows])
        return Reading(
            mean - others[highest][0],
            stderr + others[highest][1],
            grid.count,
            f"highest other: {highest.split('/')[1]}",
        )
