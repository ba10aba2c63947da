"""The change of score when a share of the heads is removed in some order."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import LackingError, Sheet, settings_for
from bertsecrets.papers.statements.test import REACH, Reading, Test
from bertsecrets.pruning.experiment import Pruning as Experiment
from bertsecrets.pruning.scores import CONTROLS, REVERSED

_FARTHEST = 0.03
"""Largest distance of a pruned share from the requested one: heads are whole, and go in steps."""

_STEP = 0.05
"""A step of pruning that comes so near to every share."""


class Pruning(Test):
    """Change of score, in points, with a share of the heads removed without further training; the nearest share that was taken counts.

    Args:
        order: The score in whose order heads are removed; ``random``: the mean over random orders.
        minus: Another order whose change is taken away; null for none.
        share: Share of the heads to remove.
    """

    order: str = Field(description="the name of a pruning score")
    minus: str | None = Field(default=None, description="the name of a pruning score, or null")
    share: float = Field(gt=0, lt=1, description="a number between 0 and 1")

    @property
    def columns(self) -> Sequence[str]:
        return (f"{Experiment.name}/kept",)

    @property
    def number(self) -> str:
        less = "" if self.minus is None else f" minus that in the order of {self.minus}"
        return f"change of score, in points, with {100 * self.share:g} % of the heads removed in the order of {self.order}{less}"

    def reading(self, sheet: Sheet) -> Reading:
        orders = [order for order in (self.order, self.minus) if order is not None]
        settings = f"{settings_for(Experiment.name, 'tuned')} 'prune.scores=[{','.join(orders)}]' prune.step={_STEP:g}"
        try:
            contents = [content for content in sheet.records(Experiment.name) if self._fits(content)]
        except LackingError:
            contents = []
        if not contents:
            raise LackingError(
                f"pruning in the order of {' and '.join(orders)}, scored once and without further training", settings
            )
        content, kept = min(
            ((content, row["kept"]) for content in contents for row in content["curves"] if row["score"] == self.order),
            key=lambda point: self._distance(point[0], point[1]),
        )
        if self._distance(content, kept) > _FARTHEST:
            raise LackingError(
                f"pruning in the order of {self.order} with {100 * self.share:g} % of the heads removed "
                f"({_FARTHEST:.0%} more or less)",
                settings,
            )
        points = [_change(content, kept, order) for order in orders]
        value = points[0][0] - sum(change for change, _ in points[1:])
        removed = 1 - kept / int(content["total"])
        detail = f"{kept} of {content['total']} heads kept ({100 * removed:.0f} % removed); {content['metric']}"
        return Reading(value, sum(error for _, error in points), int(content["examples"]), detail)

    def _fits(self, content: Mapping[str, Any]) -> bool:
        """Whether a record has the orders, computed once, and changed nothing but the heads."""
        scores = list(dict.fromkeys(row["score"] for row in content["curves"]))
        if content["iterative"] or content["recovery_epochs"] or self.order not in scores:
            return False
        # The reversed order is that of the run's first score.
        first = next(score for score in scores if score not in CONTROLS)
        return self.minus is None or (self.minus in scores and (self.minus != REVERSED or first == self.order))

    def _distance(self, content: Mapping[str, Any], kept: int) -> float:
        return abs(kept / int(content["total"]) - (1 - self.share))


def _change(content: Mapping[str, Any], kept: int, order: str) -> tuple[float, float]:
    """The change of score in points and its standard error; several random orders count as their mean."""
    rows = [row for row in content["curves"] if row["score"] == order and row["kept"] == kept]
    if not rows:
        return math.nan, math.nan
    change_R = 100 * np.array([row["change"] for row in rows])
    error = float(np.mean([100 * (row["high"] - row["low"]) / (2 * REACH) for row in rows]))
    # The mean of several random orders varies with the orders as well.
    spread = float(change_R.var(ddof=1) / len(change_R)) if len(change_R) > 1 else 0.0
    return float(change_R.mean()), math.sqrt(error**2 + spread)
