"""What the measure of frame relations finds beside its grid."""

from dataclasses import dataclass
from typing import ClassVar

BASELINES = {
    "position": "same distance elsewhere",
    "received": "same word from elsewhere",
    "other_links": "places of other sentences' links",
}
"""Explanations of a head's weight that need no relation, with their labels."""

CORRECTED = "_corrected"
"""End of the names of the columns with corrected p-values."""


@dataclass(frozen=True)
class Links:
    """The links, how they were made and tested, and the example sentence.

    Args:
        source: Name of the source of the sentences.
        links: Number of links.
        alone: Number of links without another sentence of equal length to exchange places with.
        pairs, direction, matching, permutations: Settings of the measure.
        text: The example sentence.
    """

    source: str
    links: int
    alone: int
    pairs: str
    direction: str
    matching: str
    permutations: int
    text: str


@dataclass(frozen=True)
class Filter:
    """The sentences that a filter left, in the order of the filters, starting with all."""

    name: str
    sentences: int


@dataclass(frozen=True)
class Offset:
    """Links with a pair at a signed distance in tokens, attended to minus attending: what a fixed offset can reach."""

    KEYS: ClassVar = ("offset",)

    offset: int
    links: int


@dataclass(frozen=True)
class Token:
    """A token of the example sentence."""

    KEYS: ClassVar = ("position",)

    position: int
    token: str


@dataclass(frozen=True)
class LinkedPair:
    """Positions of two linked tokens of the example sentence: which attends, and which is attended to."""

    KEYS: ClassVar = ("query", "key")

    query: int
    key: int


@dataclass(frozen=True)
class Weight:
    """One weight of the example sentence's map in one of the heads with the most attention along the links."""

    KEYS: ClassVar = ("query", "key")

    layer: int
    head: int
    query: int
    key: int
    weight: float


RelationRow = Links | Filter | Offset | Token | LinkedPair | Weight
