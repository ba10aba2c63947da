"""What a run keeps of its annotated relations beside the head table: where they come from, and one sentence's maps."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE = "frame_relations.json"


@dataclass(frozen=True)
class HeadMap:
    """One head's attention ``[T, T]`` in the example sentence."""

    layer: int
    head: int
    attention: list[list[float]]


@dataclass(frozen=True)
class RelationExample:
    """The sentence that is shown: its tokens, its linked token pairs (attending, attended to) and some heads' maps."""

    text: str
    tokens: list[str]
    pairs: list[tuple[int, int]]
    maps: list[HeadMap]


@dataclass(frozen=True)
class RelationRecord:
    """Where the relations come from, and what position alone could reach.

    Args:
        source: What the sentences are called.
        settings: How links were drawn and sentences chosen.
        remaining: Sentences left after each filter, all of them first; empty where none were applied.
        links: How many links there are.
        offsets: Signed distance in tokens (attended to minus attending) -> links with a pair of that distance.
        example: The sentence that is shown, in the heads of the measured model with the most attention.
        initial: The same in the heads of the model before its fine-tuning; None if it was not compared.
    """

    source: str
    settings: dict[str, Any]
    remaining: dict[str, int]
    links: int
    offsets: dict[int, int]
    example: RelationExample | None = field(default=None)
    initial: RelationExample | None = field(default=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, folder: Path) -> "RelationRecord | None":
        """The record of a run's folder, if it has one."""
        path = folder / FILE
        if not path.is_file():
            return None
        content = json.loads(path.read_text("utf-8"))
        offsets = {int(offset): count for offset, count in content.pop("offsets").items()}
        example, initial = _example(content.pop("example")), _example(content.pop("initial", None))
        return cls(**content, offsets=offsets, example=example, initial=initial)


def _example(shown: dict[str, Any] | None) -> RelationExample | None:
    if shown is None:
        return None
    pairs = [(int(query), int(key)) for query, key in shown["pairs"]]
    maps = [HeadMap(**each) for each in shown["maps"]]
    return RelationExample(shown["text"], shown["tokens"], pairs, maps)
