"""Whether heads form groups that are found again."""

import math
from collections.abc import Sequence

from bertsecrets.measures.clusters.measure import ClusterRecord, Clusters
from bertsecrets.papers.statements.sheet import LackingError, Sheet
from bertsecrets.papers.statements.test import Reading, Test


class Groups(Test):
    """Stability of the second most stable group of heads, so that two are at least as stable; 0..1.

    Its standard error is the largest that a mean over that many samples can have.
    """

    @property
    def limits(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def number(self) -> str:
        return "stability of the second most stable group of heads over samples of the texts"

    def reading(self, sheet: Sheet) -> Reading:
        for content in sheet.records(Clusters.name):
            record = ClusterRecord.read(content)
            if record is not None and record.replicates and len(record.stability) > 1:
                value = sorted(record.stability)[-2]
                stderr = math.sqrt(value * (1 - value) / record.replicates)
                return Reading(value, stderr, record.rows, f"{max(record.groups) + 1} groups")
        raise LackingError("groups of heads in samples of the texts", sheet.settings_of(Clusters.name))
