"""The change of score with the heads that learned gates leave, and which heads they leave."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from scipy import stats

from bertsecrets.measures.voita_roles import VoitaRoles, roles_of
from bertsecrets.papers.statements.sheet import LackingError, Sheet, settings_for
from bertsecrets.papers.statements.test import REACH, Reading, Test

_GATES, _SHUT = "causal_gates", "causal_gates/pushed_shut"


class Gates(Test):
    """A number of the gates of a frozen model.

    Args:
        value: ``change``: change of score in points with the first model on the path of penalties that has fewer than half of
            the heads; ``roles``: share of heads with a role of Voita et al. that stay open when gates are pushed shut, minus
            that of other heads, by Fisher's exact test.
    """

    value: Literal["change", "roles"] = Field(description="change or roles")

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def number(self) -> str:
        if self.value == "change":
            return "change of score, in points, with the first model on the path of gates that has fewer than half of the heads"
        return "share of heads with a role whose gates stay open, minus that of other heads"

    def reading(self, sheet: Sheet) -> Reading:
        shut_LH = sheet.grid(_SHUT).value_LH
        return self._change(sheet, shut_LH.size) if self.value == "change" else _roles(sheet, shut_LH >= 0.5)

    def _change(self, sheet: Sheet, total: int) -> Reading:
        for content in sheet.records(_GATES):
            few = [row for row in content.get("curves", ()) if row["kept"] < total / 2 and row["change"] is not None]
            if few:
                row = few[0]
                reach = math.nan if row["low"] is None else 100 * (row["high"] - row["low"])
                detail = f"{row['kept']} of {total} heads kept; {content['metric']}"
                return Reading(100 * row["change"], reach / (2 * REACH), int(content["examples"]), detail)
        raise LackingError(
            "a model on the path of gates with fewer than half of the heads", settings_for(_GATES, "tuned")
        )


def _roles(sheet: Sheet, open_LH: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Reading:
    view = sheet.view(VoitaRoles.name)
    special_LH = np.logical_or.reduce(list(roles_of(view).values()))
    table = [
        [int((part_LH & gate_LH).sum()) for gate_LH in (open_LH, ~open_LH)] for part_LH in (special_LH, ~special_LH)
    ]
    shares = [row[0] / sum(row) if sum(row) else math.nan for row in table]
    detail = f"{table[0][0]} of {sum(table[0])} heads with a role stay, {table[1][0]} of {sum(table[1])} others"
    p = float(stats.fisher_exact(table).pvalue)
    return Reading(shares[0] - shares[1], math.nan, view.count(view.columns[0].name), detail, p_value=p)
