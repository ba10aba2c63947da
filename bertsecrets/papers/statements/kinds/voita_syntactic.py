"""Whether a head is syntactic by the threshold of Voita et al."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from bertsecrets.measures.voita_roles import FROM_HEAD, VoitaRoles
from bertsecrets.papers.statements.sheet import LackingError, Sheet, settings_for
from bertsecrets.papers.statements.test import REACH, Reading, Test
from bertsecrets.results.formatting import head_label


class VoitaSyntactic(Test):
    """Largest share of pairs of words, over heads, relations and directions, beyond that of their most frequent distance.

    Relations with fewer than ``min_count`` pairs of the measure do not count. The interval is simultaneous over all heads,
    relations and directions (Bonferroni); the share of the most frequent distance is taken as known.
    """

    @property
    def columns(self) -> Sequence[str]:
        return ()

    @property
    def number(self) -> str:
        return "highest share of pairs of a syntactic relation that a head finds, beyond that of their most frequent distance"

    def reading(self, sheet: Sheet) -> Reading:
        view = sheet.view(VoitaRoles.name)
        baselines = {
            column: float(baseline["share"])
            for relation, baseline in view.extras.get("baselines", {}).items()
            if baseline["count"] >= view.extras["min_count"]
            for column in (relation, relation + FROM_HEAD)
            if view.has(column)
        }
        if not baselines:
            raise LackingError("enough pairs of words with a relation", settings_for(VoitaRoles.name, sheet.about))
        grids = {column: view.grid(column) for column in baselines}
        gain_CLH = np.stack([grids[column][0] - share for column, share in baselines.items()])
        stderr_CLH = np.stack([grid[1] for grid in grids.values()])
        reach = NormalDist().inv_cdf(1 - 0.025 / int(np.isfinite(gain_CLH).sum()))
        value, low, high = (float(np.nanmax(gain_CLH + sign * reach * stderr_CLH)) for sign in (0, -1, 1))
        column, layer, head = np.unravel_index(np.nanargmax(gain_CLH), gain_CLH.shape)
        detail = f"{list(baselines)[int(column)]}: {head_label(int(layer), int(head))}"
        count = max(view.count(name) for name in baselines)
        return Reading(value, max(value - low, high - value) / REACH, count, detail)
