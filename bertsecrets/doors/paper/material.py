"""The runs that the paper's sections are made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.comparison.conditions import Condition
from bertsecrets.comparison.published import MODEL
from bertsecrets.doors.paper.claims import Claim
from bertsecrets.models.spec import RANDOM_INIT


@dataclass
class Material:
    """Conditions by how they began, and what the sections leave behind.

    Args:
        conditions: Of all runs.
        varying: The factors that tell them apart.
        figures: Every figure by file name; sections add to it.
        claims: Every claim that was tested, section by section; sections add to it.
    """

    conditions: Sequence[Condition]
    varying: Sequence[str]
    figures: dict[str, Figure] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    @property
    def trained(self) -> list[Condition]:
        """Conditions that began with pre-trained weights."""
        return [each for each in self.conditions if each.factors["init"] != RANDOM_INIT]

    @property
    def untrained(self) -> list[Condition]:
        """Conditions that began with random weights."""
        return [each for each in self.conditions if each.factors["init"] == RANDOM_INIT]

    def name(self, condition: Condition) -> str:
        """What a condition is called among those that began alike; the task, where nothing else varies."""
        names = [name for name in self.varying if name != "init"]
        return condition.label(names) if names else condition.task

    def layer_means(self, condition: Condition, measure: str, column: str) -> NDArray[np.float64] | None:
        """Mean over seeds and heads, ``[layers]``; None if the condition lacks the measure."""
        found = condition.grids(measure, column)
        return None if found is None else np.asarray(np.nanmean(found[0], axis=(0, 2)))

    def published(self, condition: Condition, values: Mapping[str, Any]) -> Any | None:
        """What the paper has for a condition: for the same task and, as far as it can be the same, the same model."""
        return values.get(condition.task) if condition.factors["model"] == MODEL else None


def listed(values: Sequence[float] | NDArray[np.float64], digits: int = 2) -> str:
    """Numbers by layer, for a cell of a table."""
    return " ".join(
        f"{value:.{digits}f}".removeprefix("0") if 0 <= value < 1 else f"{value:.{digits}f}" for value in values
    )
