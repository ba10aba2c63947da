"""How much faster a model with fewer heads is."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from pydantic import Field

from bertsecrets.papers.statements.sheet import LackingError, Sheet
from bertsecrets.papers.statements.test import Reading, Test
from bertsecrets.pruning.experiment import Pruning

_QUARTILE = NormalDist().inv_cdf(0.75)


class Speed(Test):
    """Examples per second gained with a share of the heads removed, in percent, mean over batch sizes.

    The standard error is that of a single round, from the upper quartile of the rounds: more than the median's.

    Args:
        share: Share of the heads to remove; the nearest that was timed counts.
    """

    share: float = Field(gt=0, lt=1, description="a number between 0 and 1")

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def number(self) -> str:
        return f"examples per second gained with {100 * self.share:g} % of the heads removed, in percent"

    def reading(self, sheet: Sheet) -> Reading:
        settings = sheet.settings_of(Pruning.name)
        rows = [
            (abs(row["kept"] / content["total"] - 1 + self.share), row["kept"], content)
            for content in sheet.records(Pruning.name)
            for row in content["curves"]
            if row["score"] == content["chosen"]["score"]
        ]
        if not rows:
            raise LackingError("latencies", settings)
        _, kept, content = min(rows, key=lambda row: row[:2])
        latency = next(
            row["latency"]
            for row in content["curves"]
            if row["score"] == content["chosen"]["score"] and row["kept"] == kept
        )
        if not latency:
            raise LackingError("latencies of a model with fewer heads", settings)
        gains = [100 * (timed["whole"] / timed["smaller"] - 1) for timed in latency.values()]
        slower = [100 * (timed["whole"] / timed["high"] - 1) for timed in latency.values()]
        stderr = float(np.mean(np.subtract(gains, slower))) / _QUARTILE
        return Reading(float(np.mean(gains)), stderr, len(gains), f"{kept} of {content['total']} heads kept")
