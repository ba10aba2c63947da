"""Which runs repeat each other under another seed, and what tells the others apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.comparison.runs import FinishedRun
from bertsecrets.errors import UserError

_IDENTITY = ("task", "model", "init")
_APART = frozenset(
    {
        "name",
        "seed",
        "resume",
        "debug",
        "progress",
        "group",
        "tags",
        "job_type",
        "logger",
        "objective",
        "sweep",
        "checkpoint",
        "init",
        "trained",
    }
)
"""Top-level keys that never make a condition."""


@dataclass(frozen=True)
class Condition:
    """Runs that differ in nothing but their seed.

    Args:
        factors: What tells it from the other conditions, by name: task, model, init and every setting that varies.
        runs: Its replicates.
    """

    factors: dict[str, str]
    runs: tuple[FinishedRun, ...]

    @property
    def task(self) -> str:
        return self.factors["task"]

    def label(self, varying: Sequence[str]) -> str:
        """The values of some factors, for axes and tables."""
        return " · ".join(_value(name, self.factors[name]) for name in varying) or self.factors["model"]

    def columns(self, measure: str) -> list[str]:
        """Columns of a measure that some run has, by name."""
        return sorted(
            {name for run in self.runs for name in run.heads.select(measure=measure).table["column"].to_pylist()}
        )

    def grids(self, measure: str, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64], int] | None:
        """Values and standard errors ``[replicates, layers, heads]`` at the last step, and examples; None without any."""
        found = []
        for run in self.runs:
            table = run.last(measure, column)
            if table is not None:
                row = table.table.slice(0, 1).to_pylist()[0]
                found.append((run, table.grid(measure, column, row["stage"], row["step"])))
        if not found:
            return None
        value_RLH = np.stack([value_LH for _, (value_LH, _, _) in found])
        stderr_RLH = np.stack([stderr_LH for _, (_, stderr_LH, _) in found])
        return value_RLH, stderr_RLH, int(max(count_LH.max() for _, (_, _, count_LH) in found))


def find_conditions(runs: Sequence[FinishedRun]) -> tuple[list[Condition], list[str]]:
    """The conditions, in order of task, and the names of the factors that vary.

    Raises:
        UserError: If two runs differ in nothing, not even in their seed.
    """
    flat = [_flatten(run.config) for run in runs]
    identities = [_identity(run) for run in runs]
    patterns: set[tuple[str, ...]] = set()
    for key in sorted({key for each in flat for key in each}):
        pattern = tuple(each.get(key, "unset") for each in flat)
        # A setting that follows from those before it is not a condition of its own; one that varies along with the
        # initialisation is: what it does must not be taken for what the initialisation does.
        seen: dict[tuple[str, ...], set[str]] = {}
        for identity, value in zip(identities, pattern, strict=True):
            others = tuple(known for name, known in identity.items() if name != "init")
            seen.setdefault(others, set()).add(value)
        if pattern not in patterns and any(len(found) > 1 for found in seen.values()):
            patterns.add(pattern)
            for identity, value in zip(identities, pattern, strict=True):
                identity[key] = value
    groups = _grouped(identities, runs)
    if any(_repeated(found) for found in groups.values()) and len({run.source for run in runs}) > 1:
        for identity, run in zip(identities, runs, strict=True):
            identity["checkpoint"] = str(run.source)
        groups = _grouped(identities, runs)
    for found in groups.values():
        if twice := _repeated(found):
            raise UserError(
                f"Runs '{twice[0].folder}' and '{twice[1].folder}' have the same settings and the same seed "
                f"({twice[0].seed}), so that they cannot count as two; leave one of them out."
            )
    conditions = [Condition(dict(factors), tuple(found)) for factors, found in groups.items()]
    varying = [name for name in conditions[0].factors if len({each.factors[name] for each in conditions}) > 1]
    return sorted(conditions, key=lambda each: list(each.factors.values())), varying


def _grouped(
    identities: Sequence[dict[str, str]], runs: Sequence[FinishedRun]
) -> dict[tuple[tuple[str, str], ...], list[FinishedRun]]:
    groups: dict[tuple[tuple[str, str], ...], list[FinishedRun]] = {}
    for identity, run in zip(identities, runs, strict=True):
        groups.setdefault(tuple(identity.items()), []).append(run)
    return groups


def _repeated(runs: Sequence[FinishedRun]) -> tuple[FinishedRun, FinishedRun] | None:
    """Two runs of one seed; None if there are none."""
    return next(((first, second) for first, second in combinations(runs, 2) if first.seed == second.seed), None)


def contrasts(conditions: Sequence[Condition], varying: Sequence[str]) -> list[tuple[Condition, Condition, str]]:
    """Pairs of conditions that differ in exactly one factor, with its name; differences of task come last."""
    found = []
    for first, second in combinations(conditions, 2):
        differing = [name for name in varying if first.factors[name] != second.factors[name]]
        if len(differing) == 1:
            found.append((first, second, differing[0]))
    return sorted(found, key=lambda each: (each[2] == "task", varying.index(each[2])))


def _identity(run: FinishedRun) -> dict[str, str]:
    config = run.config
    return {"task": config["task"]["name"], "model": config["model"]["name"], "init": run.init}


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if not prefix and key in _APART:
            continue
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _value(name: str, value: str) -> str:
    if name in _IDENTITY:
        return value.replace("_", " ") if name == "init" else value
    return f"{name}={value}"


def check_sizes(runs: Sequence[FinishedRun]) -> None:
    """Raises UserError if two runs have different numbers of layers or heads; names them."""
    known = [(run, run.size) for run in runs if run.size is not None]
    for run, size in known[1:]:
        first, expected = known[0]
        if size != expected:
            a, b = (f"{layers} by {heads}" for layers, heads in (expected, size) if expected and size)
            raise UserError(
                f"Runs '{first.name}' ({a} heads) and '{run.name}' ({b} heads) cannot be compared head by head; give runs "
                "of one size, or add compare_heads=false to compare their scores alone."
            )
