"""What tells the rows of a source from other rows: how many they are, where they come from, and a digest."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import TRAIN, Source


@dataclass(frozen=True)
class Rows:
    """The rows of a split as its source has them, before any is held out or left out of a sample.

    Args:
        place: The file, folder or data set.
        count: How many they are.
        sha256: Of their texts and labels in order, 64 hexadecimal digits.
        texts: Short hashes of the different texts, sorted, where training rows may be held out; else empty.
    """

    place: str
    count: int
    sha256: str
    texts: Sequence[str] = ()


class RecordedSource:
    """A source that keeps what tells its rows from others.

    Args:
        source: Has the rows.
        place: Where they come from, by split.
        rows: Is filled with each split that is read.
        with_texts: Whether the training texts are recorded, too.
    """

    def __init__(
        self, source: Source, place: Callable[[str], str], rows: dict[str, Rows], with_texts: bool = False
    ) -> None:
        self.source = source
        self.place = place
        self.rows = rows
        self.with_texts = with_texts

    @property
    def notes(self) -> Sequence[str]:
        return self.source.notes

    def examples(self, split: str) -> list[Example]:
        examples = self.source.examples(split)
        texts = text_hashes(examples) if self.with_texts and split == TRAIN else ()
        self.rows[split] = Rows(self.place(split), len(examples), rows_digest(examples), texts)
        return examples

    def has(self, split: str) -> bool:
        return self.source.has(split)

    def prepare(self) -> None:
        self.source.prepare()


def text_hashes(examples: Iterable[Example]) -> list[str]:
    """Hashes (12 hexadecimal digits) of the different texts of examples, sorted."""
    return sorted({hashlib.blake2b(repr(one.texts).encode(), digest_size=6).hexdigest() for one in examples})


def rows_digest(examples: Iterable[Example]) -> str:
    """SHA-256 (64 hexadecimal digits) of the texts and labels of examples, in their order."""
    digest = hashlib.sha256()
    for example in examples:
        # A representation has no lone surrogates, which cannot be encoded.
        digest.update(f"{example.texts!r}{example.label!r}\n".encode())
    return digest.hexdigest()
