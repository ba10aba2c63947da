"""What remains of the attention between linked words without their distance."""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from bertsecrets.measures.linguistic.token_to_token import BEYOND, MEAN, TokenToToken
from bertsecrets.papers.statements.sheet import LackingError, Sheet, settings_for
from bertsecrets.papers.statements.test import Reading, Test
from bertsecrets.results.sections import highest


class Linked(Test):
    """Mean over kinds of linked words of the share of a head's attention to them that remains beyond position.

    Of each kind the head counts that attends to such words most. Its mean attention to them minus that to other words at the
    same distance, divided by the former, is the share.

    Args:
        pairs: The kinds of linked words; those that no example has are left out.
    """

    pairs: list[str] = Field(min_length=1, description="a list of kinds of linked words")

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def number(self) -> str:
        return "share of the attention between linked words that remains beyond position, mean over kinds of links"

    def reading(self, sheet: Sheet) -> Reading:
        shares, errors, count = [], [], 0
        for pair in self.pairs:
            try:
                weight, mean, beyond = (sheet.grid(f"{TokenToToken.name}/{pair}{end}") for end in ("", MEAN, BEYOND))
            except LackingError:
                continue
            if np.isfinite(weight.value_LH).any():
                head = highest(weight.value_LH)
                if math.isfinite(beyond.value_LH[head]) and mean.value_LH[head] > 0:
                    shares.append(beyond.value_LH[head] / mean.value_LH[head])
                    errors.append(beyond.stderr_LH[head] / mean.value_LH[head])
                    count = max(count, beyond.count)
        if not shares:
            raise LackingError("attention between such words", settings_for(TokenToToken.name, sheet.about))
        return Reading(float(np.mean(shares)), float(np.mean(errors)), count, f"{len(shares)} kinds of links")
