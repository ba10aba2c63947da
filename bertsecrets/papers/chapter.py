"""A chapter of a paper's page: the runs behind it, and the paper's statements that it checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.comparison import Effects, effects
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.report.content import Section, Table
from bertsecrets.results.scores import LEVEL
from bertsecrets.results.views import Grids, Replicates
from bertsecrets.statistics.student import mean_differs_from_zero

_Values = TypeVar("_Values")

MODEL = "bert_base"
"""Our name of the model that the authors of the papers took."""


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

    def replicates(self, experiment: str) -> dict[str, tuple[Condition, Replicates]]:
        """The pre-trained conditions with an experiment, by name, with its results in their runs."""
        by_name = {}
        for condition in self.pretrained:
            replicates = condition.replicates(experiment)
            if replicates is not None:
                by_name[self.name(condition)] = (condition, replicates)
        return by_name

    def effects(self, kind: str) -> dict[str, tuple[Condition, Effects]]:
        """The pre-trained conditions in which every head, or every layer, was disabled, by name, with the effects."""
        found = {
            name: (condition, effects(replicates, kind))
            for name, (condition, replicates) in self.replicates("ablation").items()
        }
        return {name: (condition, effect) for name, (condition, effect) in found.items() if effect is not None}

    @property
    def random(self) -> list[Condition]:
        """Conditions that started from random weights."""
        return [condition for condition in self.conditions if condition.factors["init"] == RANDOM_INIT]

    def name(self, condition: Condition) -> str:
        """Name of a condition among those with the same initialisation: its task, unless other factors vary."""
        factors = [name for name in self.varying if name != "init"]
        return condition.label(factors) if factors else condition.task

    def title(self, condition: Condition) -> str:
        """The name of a condition for a panel, which says so if nothing was learned."""
        return self.name(condition) + " (not learned)" * (learned(condition) is False)


def learned(condition: Condition) -> bool | None:
    """Whether most seeds are shown to beat the constant answer on the first set; None where that was not tested."""
    tests = [next(iter(run.scores["sets"].values())).get("p_constant") for run in condition.runs]
    known = [float(p) for p in tests if p is not None]
    return sum(p <= LEVEL for p in known) > len(known) / 2 if known else None


def layer_difference(grids: Grids, first: int, second: int) -> tuple[float, bool]:
    """The mean over heads of one layer minus that of another, and whether the difference is significant.

    Over seeds, a paired t test; with one seed, at least 1.96 standard errors over examples, as if the errors of all heads
    went the same way and those of the two layers opposite ways, which is the most that they can amount to.
    """
    delta_R = np.nanmean(grids.value_RLH[:, first], axis=1) - np.nanmean(grids.value_RLH[:, second], axis=1)
    delta = float(delta_R.mean())
    if len(delta_R) > 1:
        spread = float(delta_R.std(ddof=1) / np.sqrt(len(delta_R)))
        p = float(mean_differs_from_zero(delta, spread, len(delta_R)))
        return delta, bool(p <= LEVEL)
    errors = [float(np.nanmean(grids.stderr_RLH[0, layer])) for layer in (first, second)]
    return delta, bool(abs(delta) > 1.96 * sum(errors))


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
        holds: Whether it holds in the runs; None where that cannot be told from them.
    """

    statement: str
    here: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """``agrees``, ``does not agree`` or ``cannot be told``."""
        return {True: "agrees", False: "does not agree", None: "cannot be told"}[self.holds]


class Answers(dict[str, "bool | None"]):
    """Whether a statement holds in each condition, by name; None where that cannot be told.

    Args:
        answers: The conditions that are judged.
        not_learned: Names of those that are not, because their models learned nothing.
    """

    def __init__(self, answers: "Mapping[str, bool | None] | None" = None, not_learned: Sequence[str] = ()) -> None:
        super().__init__(answers or {})
        self.not_learned = tuple(not_learned)

    @property
    def everywhere(self) -> bool | None:
        """Whether it holds in every condition."""
        if False in self.values():
            return False
        return None if None in self.values() or not self else True

    @property
    def mostly(self) -> bool | None:
        """Whether it holds in more than half of the conditions."""
        yes, no = (sum(answer is value for answer in self.values()) for value in (True, False))
        if yes > len(self) / 2:
            return True
        return False if self and no >= len(self) / 2 else None

    @property
    def anywhere(self) -> bool | None:
        """Whether it holds in some condition; that it is shown in none refutes nothing."""
        return True if True in self.values() else None

    def __str__(self) -> str:
        told = [name for name, answer in self.items() if answer is not None]
        untold = [name for name, answer in self.items() if answer is None]
        yes = [name for name, answer in self.items() if answer]
        # “In all 2” of those that can be told would read as in all.
        parts = [f"for {', '.join(told)}" if untold and yes == told else held(yes, told)] if told else []
        parts += [f"cannot be told for {', '.join(untold)}"] if untold else []
        parts += [f"not judged for {', '.join(self.not_learned)}"] if self.not_learned else []
        return "; ".join(parts)


def without_unlearned(runs: "PaperRuns", conditions: Sequence[Condition], answers: Answers) -> Answers:
    """The answers without conditions that learned nothing: what their heads do says nothing about the task."""
    unlearned = [runs.name(condition) for condition in conditions if learned(condition) is False]
    return Answers(
        {name: answer for name, answer in answers.items() if name not in unlearned},
        [name for name in unlearned if name in answers],
    )


def not_learned(runs: "PaperRuns", conditions: Sequence[Condition]) -> list[str]:
    """A sentence on the conditions that learned nothing; none if all did."""
    names = [runs.name(condition) for condition in conditions if learned(condition) is False]
    if not names:
        return []
    return [
        f"Nothing was learned, as far as the examples show, for: {', '.join(names)}; what their heads do is not judged."
    ]


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


def beside_the_paper(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Table:
    """A table whose last column has the paper's numbers; without this column where there are none."""
    if all(row[-1] == MISSING for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Table(header, rows, caption)


def held(names: Sequence[str], of: Sequence[str]) -> str:
    """In which of some conditions a statement holds, with the exceptions: ``in 1 of 3 (not for b, c)``."""
    missing = [name for name in of if name not in names]
    if len(missing) == len(of):
        return f"not for {', '.join(of)}"
    if not missing:
        return f"in all {len(of)}" if len(of) > 1 else f"for {of[0]}"
    return f"in {len(names)} of {len(of)} (not for {', '.join(missing)})"


def claims_in_words(claims: Sequence[Claim]) -> list[str]:
    """How many statements hold, then those that do not."""
    if not claims:
        return []
    counts = {holds: sum(claim.holds is holds for claim in claims) for holds in (True, False, None)}
    parts = [f"agree with {counts[True]}"] if counts[True] else []
    parts += [f"disagree with {counts[False]}"] if counts[False] else []
    parts += [f"leave {counts[None]} open"] if counts[None] else []
    verdicts = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
    return [
        f"Of {len(claims)} statement{'s' * (len(claims) > 1)} of the paper, these runs {verdicts}.",
        *(f"Does not agree: {claim.statement} {claim.here}" for claim in claims if claim.holds is False),
    ]


def highest_in_half(grids: Grids, mean_L: NDArray[np.float64], *, late: bool) -> bool | None:
    """Whether the highest layer lies in one half; None if the highest layers of the two halves do not differ."""
    if len(mean_L) < 2 or not np.isfinite(mean_L).all():
        return None
    half = [layer for layer in range(len(mean_L)) if (layer / (len(mean_L) - 1) >= 0.5) == late]
    rest = [layer for layer in range(len(mean_L)) if layer not in half]
    inside, outside = (max(layers, key=lambda layer: mean_L[layer]) for layers in (half, rest))
    gap, certain = layer_difference(grids, inside, outside)
    return gap > 0 if certain else None
