"""A run's record of its annotated relations: their source, and one sentence's maps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HeadMap:
    """One head's attention ``[T, T]`` in the example sentence."""

    layer: int
    head: int
    attention: list[list[float]]


@dataclass(frozen=True)
class RelationExample:
    """The example sentence: its tokens, its linked token pairs (attending, attended to) and some heads' maps."""

    text: str
    tokens: list[str]
    pairs: list[tuple[int, int]]
    maps: list[HeadMap]


@dataclass(frozen=True)
class RelationRecord:
    """Source of the relations, and what a fixed offset could reach.

    Args:
        source: Name of the source of the sentences.
        settings: Settings of the links and of the choice of sentences.
        remaining: Number of sentences left after each filter, starting with all; empty without filters.
        links: Number of links.
        alone: Number of links without another sentence of equal length to exchange places with.
        offsets: Signed distance in tokens (attended to minus attending) -> links with a pair of that distance.
        example: The example sentence, with maps of the heads with the most attention.
    """

    source: str
    settings: dict[str, Any]
    remaining: dict[str, int]
    links: int
    alone: int
    offsets: dict[int, int]
    example: RelationExample

    @classmethod
    def read(cls, extras: Mapping[str, Any]) -> "RelationRecord | None":
        """The record in the extras of a measure; None if they are empty."""
        if not extras:
            return None
        offsets = {int(offset): int(count) for offset, count in extras["offsets"].items()}
        # A run of an earlier version does not know how many links stay alone.
        return cls(**{"alone": 0, **extras, "offsets": offsets, "example": _example(extras["example"])})


def _example(content: Mapping[str, Any]) -> RelationExample:
    pairs = [(int(query), int(key)) for query, key in content["pairs"]]
    maps = [HeadMap(**entry) for entry in content["maps"]]
    return RelationExample(content["text"], content["tokens"], pairs, maps)
