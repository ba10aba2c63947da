"""Several syntactic relations together: in how many the best head does something, or the worst of some."""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from scipy import stats

from bertsecrets.measures.dependency.measure import Dependency
from bertsecrets.measures.dependency.record import DependencyRecord
from bertsecrets.papers.statements.sheet import LackingError, Sheet
from bertsecrets.papers.statements.test import REACH, Reading, Test


class Relations(Test):
    """A number of the best heads of syntactic relations.

    Args:
        value: ``beats_offset``: the share of relations whose best head is better than the best fixed offset; ``to_head``: the
            share whose best head attends from the dependent to its head; ``lowest_accuracy``: the accuracy of the relation
            with the lowest.
        relations: The relations that count; empty for all. Those that the sentences do not have are left out.
    """

    value: Literal["beats_offset", "to_head", "lowest_accuracy"] = Field(
        description="beats_offset, to_head or lowest_accuracy"
    )
    relations: list[str] = Field(default=[], description="a list of relations")

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def limits(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def number(self) -> str:
        which = ", ".join(self.relations) or "all that the sentences have"
        what = {
            "beats_offset": "share of relations whose best head is better than the best fixed offset",
            "to_head": "share of relations whose best head attends from the dependent to its head",
            "lowest_accuracy": "accuracy of the best head of the relation with the lowest",
        }[self.value]
        return f"{what} ({which})"

    def reading(self, sheet: Sheet) -> Reading:
        for content in sheet.records(Dependency.name):
            record = DependencyRecord.read(content)
            scores = [] if record is None else [score for score in record.relations if score.relation != "all"]
            scores = [score for score in scores if not self.relations or score.relation in self.relations]
            if scores:
                break
        else:
            raise LackingError(f"{self.number} (too few words)", sheet.settings_of(Dependency.name))
        count, number = sum(score.count for score in scores), len(scores)
        if self.value == "lowest_accuracy":
            lowest = min(scores, key=lambda score: score.accuracy)
            return Reading(lowest.accuracy, (lowest.high - lowest.low) / (2 * REACH), count, lowest.relation)
        if self.value == "to_head":
            to_head = sum(not score.from_head for score in scores)
            p = float(stats.binomtest(to_head, number, self.threshold).pvalue)
            return Reading(to_head / number, math.nan, count, f"{to_head} of {number} relations", p_value=p)
        above = sum(score.gain > 0 for score in scores)
        ends = [sum(score.gain_low > 0 for score in scores), sum(score.gain_high > 0 for score in scores)]
        # At least one relation on either side, as for shares of heads.
        reach = max(1, *(abs(end - above) for end in ends)) / number
        return Reading(above / number, reach / REACH, count, f"{above} of {number} relations")
