"""Whether some heads reach a number: the highest, or the n-th highest, of all."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import PLACES, LackingError, Layers, Sheet
from bertsecrets.papers.statements.test import REACH, Reading, Test, listed, summed
from bertsecrets.results.formatting import head_label


class SomeHead(Test):
    """The n-th highest number of all heads (or layers, of a column of layers).

    The best of many noisy numbers is high in any sample: its interval is the simultaneous one of all heads (Bonferroni).

    Args:
        column: The column, or columns that are added up.
        or_columns: Further columns, where measured; the highest (or lowest) of a head's columns counts.
        layers: The layers whose heads count.
        rank: Which of the highest, from 1.
        lowest: Whether to count from the lowest.
    """

    column: str | list[str] = Field(description="a column, <measure>/<column>, or a list of them")
    or_columns: list[str] = Field(default=[], description="a list of columns, <measure>/<column>")
    layers: Layers = Field(default="all", description="a name of layers")
    rank: int = Field(default=1, ge=1, description="a whole number from 1")
    lowest: bool = Field(default=False, description="true or false")

    @property
    def columns(self) -> Sequence[str]:
        return (*listed(self.column), *self.or_columns)

    @property
    def number(self) -> str:
        end = "lowest" if self.lowest else "highest"
        what = " + ".join(listed(self.column)) + "".join(f" or {column}" for column in self.or_columns)
        if self.rank == 1:
            return f"{end} {what} of all heads{'' if self.layers == 'all' else f' of {PLACES[self.layers].words}'}"
        return f"{what} of the head of rank {self.rank} (1: the {end})"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, listed(self.column))
        sign, tests = -1.0 if self.lowest else 1.0, 1
        for column in self.or_columns:
            try:
                other = sheet.grid(column)
            except LackingError:
                continue
            tests += 1
            farther_LH = sign * other.value_LH > sign * value_LH
            value_LH = np.where(farther_LH, other.value_LH, value_LH)
            stderr_LH = np.where(farther_LH, other.stderr_LH, stderr_LH)
        others = [layer for layer in range(len(value_LH)) if layer not in PLACES[self.layers].rows(len(value_LH))]
        value_LH = value_LH.copy()
        value_LH[others] = np.nan
        value_N, stderr_N = sign * value_LH.ravel(), stderr_LH.ravel()
        known = np.isfinite(value_N)
        if known.sum() < self.rank:
            return Reading(np.nan, np.nan, count)
        order = np.argsort(np.where(known, -value_N, np.inf), kind="stable")
        layer, head = divmod(int(order[self.rank - 1]), value_LH.shape[1])
        detail = head_label(layer, head) if value_LH.shape[1] > 1 else f"layer {layer}"
        reach = NormalDist().inv_cdf(1 - 0.025 / (tests * int(known.sum())))
        value, low, high = (
            np.sort((value_N + factor * stderr_N)[known])[-self.rank] for factor in (0.0, -reach, reach)
        )
        return Reading(float(sign * value), float(max(high - value, value - low) / REACH), count, detail)
