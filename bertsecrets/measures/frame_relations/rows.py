"""Results of the frame-relations measure besides its grid."""

from dataclasses import dataclass
from typing import ClassVar

BASELINES = {
    "position": "same distance elsewhere",
    "received": "same word from elsewhere",
    "other_links": "positions of other sentences' links",
}
"""Explanations of a head's weight without a relation, with their labels."""

CORRECTED = "_corrected"
"""Suffix of the columns with corrected p-values."""


@dataclass(frozen=True)
class Links:
    """The links, the settings of their test, and the example sentence.

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
    """The number of sentences left after each filter, in order, starting with all."""

    name: str
    sentences: int


@dataclass(frozen=True)
class Offset:
    """Links with a pair at a signed distance in tokens, attended minus attending, which a fixed offset could reach."""

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
