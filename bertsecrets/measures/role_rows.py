"""Results of the role measures besides their grids, and the heads that have a role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

# Measures only need the rows.
if TYPE_CHECKING:
    from bertsecrets.results.views import Array, MeasureView

LOCAL, BLOCK, DELIMITER, SYNTACTIC = "local", "block", "delimiter", "syntactic"
SIEVE_ROLES = (LOCAL, SYNTACTIC, BLOCK, DELIMITER)
"""The four roles of Pande et al. (2021); a head may have several."""

POSITIONAL, RARE = "positional", "rare words"
VOITA_ROLES = (POSITIONAL, SYNTACTIC, RARE)
"""The three roles of Voita et al. (2019)."""

FROM_HEAD = "_from_head"
PREVIOUS, NEXT, RAREST, TWO_RAREST = "previous", "next", "rarest", "two_rarest"

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Threshold:
    """The sieve bias score that a head has to exceed.

    Args:
        column: The score.
        above: Its threshold.
    """

    column: str
    above: float


@dataclass(frozen=True)
class Limits:
    """Thresholds for a head's roles by Voita et al. (2019).

    Args:
        positional, rare: Least shares of tokens.
        gain: How much higher a syntactic head's share of a relation's pairs must be than that of their most frequent
            distance.
        min_count: Least number of pairs of a relation.
    """

    positional: float
    gain: float
    rare: float
    min_count: int


@dataclass(frozen=True)
class Distance:
    """Number of word pairs in a relation at one distance.

    Args:
        relation: The relation.
        distance: Position of the head minus that of the dependent, in words.
        pairs: Number of pairs.
    """

    KEYS: ClassVar = ("distance",)

    relation: str
    distance: int
    pairs: int


def thresholds(view: MeasureView) -> dict[str, float]:
    """The threshold of each sieve bias score that was measured."""
    return {row.column: row.above for row in view.found(Threshold) if view.has(row.column)}


def sieve_tests(view: MeasureView) -> dict[str, Mask]:
    """Whether each head's score is significantly above the threshold, by column; corrected over heads and columns."""
    return view.beyond(thresholds(view))


def distances(view: MeasureView) -> dict[str, dict[int, int]]:
    """Numbers of pairs of each relation, by distance."""
    pairs: dict[str, dict[int, int]] = {}
    for row in view.found(Distance):
        pairs.setdefault(row.relation, {})[row.distance] = row.pairs
    return pairs


def judged_relations(view: MeasureView) -> dict[str, float]:
    """The columns of relations with enough pairs and the share of their most frequent distance; empty without rows."""
    limits = view.fact(Limits)
    shares: dict[str, float] = {}
    for relation, pairs in distances(view).items():
        count = sum(pairs.values())
        if limits is not None and count >= limits.min_count:
            columns = [column for column in (relation, relation + FROM_HEAD) if view.has(column)]
            judged = [column for column in columns if np.isfinite(view.value(column)).any()]
            shares |= dict.fromkeys(judged, max(pairs.values()) / count)
    return shares


def voita_limits(view: MeasureView) -> dict[str, dict[str, float]]:
    """The columns of each role with data, with their thresholds; empty without rows."""
    limits = view.fact(Limits)
    if limits is None or not view.has(PREVIOUS):
        return {}
    by_role = {
        POSITIONAL: dict.fromkeys((PREVIOUS, NEXT), limits.positional),
        SYNTACTIC: {column: share + limits.gain for column, share in judged_relations(view).items()},
        RARE: {TWO_RAREST: limits.rare} if np.isfinite(view.value(TWO_RAREST)).any() else {},
    }
    return {role: of_role for role, of_role in by_role.items() if of_role}


def voita_roles(view: MeasureView) -> dict[str, Mask]:
    """Which heads ``[layers, heads]`` reach the threshold of each role with data."""
    return {
        role: np.any([view.value(column) >= limit for column, limit in limits.items()], axis=0)
        for role, limits in voita_limits(view).items()
    }


def strength(view: MeasureView, limits: Mapping[str, float]) -> Array:
    """The highest share ``[layers, heads]`` among a role's columns."""
    strength_LH: Array = np.fmax.reduce([view.value(column) for column in limits])
    return strength_LH
