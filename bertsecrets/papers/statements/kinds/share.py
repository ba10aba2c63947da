"""The share of heads, or of layers, in which a column is above or below a number."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import Self

from bertsecrets.papers.statements.sheet import PLACES, Array, Layers, Sheet
from bertsecrets.papers.statements.test import REACH, Reading, Test, listed, summed


class Share(Test):
    """Share of the heads in which a column lies over, or under, a number.

    The standard error is that of the share when the numbers of all heads err one way, and its interval is at least one head, or
    layer, wide on either side. The best head of a layer has the simultaneous interval of the layer's heads (Bonferroni).

    Args:
        column: The column, or columns that are added up.
        over, under: The number; exactly one of them is given.
        layers: The layers whose heads count.
        per_layer: ``highest`` or ``lowest``: of each layer this head alone counts, so that it is a share of layers; null for heads.
    """

    column: str | list[str] = Field(description="a column, <measure>/<column>, or a list of them")
    over: float | int | None = Field(default=None, description="a number, or null")
    under: float | int | None = Field(default=None, description="a number, or null")
    layers: Layers = Field(default="all", description="a name of layers")
    per_layer: Literal["highest", "lowest"] | None = Field(default=None, description="highest, lowest or null")

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if (self.over is None) == (self.under is None):
            raise ValueError("one number")
        return self

    @property
    def limits(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def columns(self) -> Sequence[str]:
        return listed(self.column)

    @property
    def number(self) -> str:
        side = f"over {self.over:g}" if self.under is None else f"under {self.under:g}"
        what = " + ".join(self.columns)
        places = PLACES[self.layers].words
        if self.per_layer is not None:
            return f"share of {places} whose {self.per_layer} {what} is {side}"
        return f"share of the heads of {places} with {what} {side}"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, self.columns)
        rows = list(PLACES[self.layers].rows(len(value_LH)))
        value_LH, stderr_LH = value_LH[rows], stderr_LH[rows]
        reach = REACH if self.per_layer is None else NormalDist().inv_cdf(1 - 0.025 / value_LH.shape[1])
        shares = [self._share(value_LH + factor * stderr_LH) for factor in (0.0, -reach, reach)]
        if not np.isfinite(stderr_LH[np.isfinite(value_LH)]).all():
            return Reading(shares[0], np.nan, count)
        one = 1 / (len(value_LH) if self.per_layer is not None else np.isfinite(value_LH).sum())
        return Reading(shares[0], max(one, *(abs(share - shares[0]) for share in shares[1:])) / REACH, count)

    def _share(self, value_LH: Array) -> float:
        if self.per_layer is not None:
            value_LH = (np.nanmax if self.per_layer == "highest" else np.nanmin)(value_LH, axis=1)
        known = value_LH[np.isfinite(value_LH)]
        if not len(known):
            return float("nan")
        if self.over is not None:
            return float((known > self.over).mean())
        assert self.under is not None
        return float((known < self.under).mean())
