"""A fingerprint of a source's rows: their number, their origin, and a digest."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import TRAIN, Source


@dataclass(frozen=True)
class Rows:
    """The rows of a split as its source provides them, before holding out or sampling.

    Args:
        place: The file, folder or data set.
        count: The number of rows.
        sha256: Digest of their texts and labels in order, 64 hexadecimal digits.
        texts: Sorted short hashes of the distinct texts if training rows may be held out; else empty.
    """

    place: str
    count: int
    sha256: str
    texts: Sequence[str] = ()


class RecordedSource:
    """A source that records a fingerprint of its rows.

    Args:
        source: The source of the rows.
        place: Their origin, by split.
        rows: Receives the fingerprint of each split that is read.
        with_texts: Whether to record the training texts as well.
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
    """Sorted hashes (12 hexadecimal digits) of the distinct texts of examples."""
    return sorted({hashlib.blake2b(repr(one.texts).encode(), digest_size=6).hexdigest() for one in examples})


def rows_digest(examples: Iterable[Example]) -> str:
    """SHA-256 (64 hexadecimal digits) of the texts and labels of examples, in their order."""
    digest = hashlib.sha256()
    for example in examples:
        # repr() escapes lone surrogates, which cannot be encoded.
        digest.update(f"{example.texts!r}{example.label!r}\n".encode())
    return digest.hexdigest()
