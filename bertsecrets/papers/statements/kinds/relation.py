"""The best head for a syntactic relation, chosen on one half of the sentences and scored on the other."""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from bertsecrets.measures.dependency.measure import Dependency
from bertsecrets.measures.dependency.record import DependencyRecord
from bertsecrets.papers.statements.sheet import LackingError, Sheet, model_settings
from bertsecrets.papers.statements.test import REACH, Reading, Test
from bertsecrets.results.formatting import head_label

_SETTINGS = "analysis=dependency task=ud_ewt data.root=<folder of UD_English-EWT>"


class Relation(Test):
    """A number of the head that is best at a relation.

    Args:
        relation: The relation; ``all`` for all words.
        value: ``accuracy``: the share of words whose syntactic head it points to; ``gain``: that minus the share of the best fixed
            offset.
    """

    relation: str = Field(description="the name of a relation")
    value: Literal["accuracy", "gain"] = Field(description="accuracy or gain")

    @property
    def columns(self) -> Sequence[str]:
        return (f"{Dependency.name}/{self.relation}",)

    @property
    def number(self) -> str:
        less = " minus that of the best fixed offset" if self.value == "gain" else ""
        return f"accuracy of the best head for the relation {self.relation}{less}"

    def reading(self, sheet: Sheet) -> Reading:
        try:
            contents = sheet.records(Dependency.name)
        except LackingError as error:
            # The sentences of most tasks have no annotation.
            raise LackingError(error.what, f"{model_settings(sheet)} {_SETTINGS}") from error
        records = [DependencyRecord.read(content) for content in contents]
        scores = [
            score
            for record in records
            if record is not None
            for score in record.relations
            if score.relation == self.relation
        ]
        if not scores:
            raise LackingError(
                f"words with the relation {self.relation} (too few, or another scheme)",
                f"{model_settings(sheet)} {_SETTINGS}",
            )
        score = scores[0]
        detail = head_label(score.layer, score.head)
        if self.value == "gain":
            value, low, high = score.gain, score.gain_low, score.gain_high
        else:
            value, low, high = score.accuracy, score.low, score.high
        stderr = (high - low) / (2 * REACH) if math.isfinite(high - low) else math.nan
        return Reading(value, stderr, score.count, detail)
