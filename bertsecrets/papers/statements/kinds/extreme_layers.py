"""Whether some layers have the highest, or the lowest, means of all."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import PLACES, Layers, Sheet
from bertsecrets.papers.statements.test import Reading, Test, listed, mean_of, summed


class ExtremeLayers(Test):
    """The gap between the layer means of some layers and those of all others: above 0 if the former are the most extreme.

    Args:
        column: The column, or columns that are added up.
        layers: The layers.
        extreme: Whether their means are said to be the highest or the lowest.
    """

    column: str | list[str] = Field(description="a column, <measure>/<column>, or a list of them")
    layers: Layers = Field(description="a name of layers")
    extreme: Literal["highest", "lowest"] = Field(description="highest or lowest")

    @property
    def columns(self) -> Sequence[str]:
        return listed(self.column)

    @property
    def number(self) -> str:
        what, which = " + ".join(self.columns), PLACES[self.layers].words
        return f"gap of the mean of {what} between {which} and the nearest other layer, positive if {self.extreme}"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, self.columns)
        sign = 1.0 if self.extreme == "highest" else -1.0
        by_layer = [mean_of(value_H, stderr_H) for value_H, stderr_H in zip(value_LH, stderr_LH, strict=True)]
        mean_L, error_L = sign * np.array([mean for mean, _ in by_layer]), [stderr for _, stderr in by_layer]
        own = list(PLACES[self.layers].rows(len(mean_L)))
        rest = [layer for layer in range(len(mean_L)) if layer not in own]
        if np.isnan(mean_L).any() or not rest:
            return Reading(np.nan, np.nan, count)
        inner, outer = min(own, key=lambda layer: mean_L[layer]), max(rest, key=lambda layer: mean_L[layer])
        detail = f"{self.extreme} layer: {int(np.argmax(mean_L))}"
        return Reading(float(mean_L[inner] - mean_L[outer]), float(error_L[inner] + error_L[outer]), count, detail)
