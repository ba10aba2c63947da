"""A chapter of the page: the runs behind it, and the paper's statements that it checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.papers.kovaleva2019.published import MODEL
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.formatting import number
from bertsecrets.results.report.content import Section, Table

_Values = TypeVar("_Values")


@dataclass(frozen=True)
class PaperRuns:
    """The conditions of all runs.

    Args:
        conditions: Runs that differ in their seed alone, grouped.
        varying: Names of the factors in which the conditions differ.
    """

    conditions: Sequence[Condition]
    varying: Sequence[str]

    @property
    def pretrained(self) -> list[Condition]:
        """Conditions that started from pre-trained weights."""
        return [condition for condition in self.conditions if condition.factors["init"] != RANDOM_INIT]

    @property
    def random(self) -> list[Condition]:
        """Conditions that started from random weights."""
        return [condition for condition in self.conditions if condition.factors["init"] == RANDOM_INIT]

    def name(self, condition: Condition) -> str:
        """Name of a condition among those with the same initialisation: its task, unless other factors vary."""
        factors = [name for name in self.varying if name != "init"]
        return condition.label(factors) if factors else condition.task


def layer_means(condition: Condition, measure: str, column: str) -> NDArray[np.float64] | None:
    """Mean over seeds and heads, ``[layers]``; None if no run of the condition has the column."""
    grids = condition.grids(measure, column)
    return None if grids is None else np.asarray(np.nanmean(grids.value_RLH, axis=(0, 2)))


def published_for(condition: Condition, values: Mapping[str, _Values]) -> _Values | None:
    """The published values of the condition's task; None if there are none, or if the model is not the paper's."""
    return values.get(condition.task) if condition.factors["model"] == MODEL else None


def by_layer(values: Sequence[float] | NDArray[np.float64]) -> str:
    """One number per layer for a table cell, without leading zeros: ``.90 .50 1.00``."""
    return " ".join(number(float(value), 2).removeprefix("0" if value < 1 else "") for value in values)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and what the runs say about it.

    Args:
        statement: The statement, in our words.
        here: What the runs show.
        holds: Whether it holds in the runs; None where they do not settle it.
    """

    statement: str
    here: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """``agrees``, ``does not agree`` or ``undecided``."""
        return {True: "agrees", False: "does not agree", None: "undecided"}[self.holds]


@dataclass(frozen=True)
class Chapter:
    """A section of the page with the claims that it checks."""

    section: Section
    claims: Sequence[Claim] = ()


def claims_tables(claims: Sequence[Claim]) -> list[Table]:
    """A table of the claims, one per row; no table without claims."""
    rows = [[claim.statement, claim.here, claim.verdict] for claim in claims]
    header = ["the paper says", "these runs show", "verdict"]
    return [Table(header, rows, "Statements of the paper, checked")] if rows else []


def held(names: Sequence[str], of: Sequence[str]) -> str:
    """In which of some conditions a statement holds, with the exceptions: ``in 1 of 3 (not for b, c)``."""
    missing = [name for name in of if name not in names]
    if len(missing) == len(of):
        return "nowhere"
    if not missing:
        return f"in all {len(of)}" if len(of) > 1 else f"for {of[0]}"
    return f"in {len(names)} of {len(of)} (not for {', '.join(missing)})"
