"""The words of annotated sentences as arrays, for training and scoring probes."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.measures.dependency.words import is_punctuation

_BEHAVIOURS = 3
"""Labels of a word type in the control task: it attaches to itself, to the first word or to the last."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Sentence:
    """The W words of an example: one sentence, or several, each with its tree.

    Args:
        position: Position of the example in its split.
        forms, relations: Spelling of each word, and its relation to its head.
        tokens: Token ids of each word; empty for a word without a token of its own.
        tree_W: Number of the sentence that a word belongs to.
        head_W: Number of the word's head among the W words from 1, or 0 for a root.
        control_W: The same for the control task; 0 for a word without tokens.
        present_W: Whether a word has a token.
        counts_W: Whether it is trained on: the word and its head have tokens.
        scored_W: Whether it is scored: it counts, and is not punctuation unless punctuation is scored.
    """

    position: int
    forms: tuple[str, ...]
    relations: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    tree_W: Ints
    head_W: Ints
    control_W: Ints
    present_W: Bools
    counts_W: Bools
    scored_W: Bools

    def __len__(self) -> int:
        return len(self.forms)


@dataclass(frozen=True)
class Sentences:
    """The sentences of a split that fit the model.

    Args:
        split: The tokenised split.
        rows: The sentences with at least one word that counts.
        truncated: Number of sentences skipped because they are too long.
        vanished: Number of words without a token of their own.
    """

    split: EncodedSplit
    rows: tuple[Sentence, ...]
    truncated: int
    vanished: int

    @classmethod
    def of(cls, split: EncodedSplit, *, punctuation: bool, seed: int) -> "Sentences":
        """The annotated sentences of a split.

        Args:
            split: Examples with annotations.
            punctuation: Whether punctuation is scored.
            seed: Seed of the control task.
        """
        rows = [_sentence(split, position, punctuation, seed) for position in range(len(split))]
        whole = [row for row, tokens in zip(rows, split.rows, strict=True) if not tokens.truncated]
        vanished = sum(int((~row.present_W).sum()) for row in whole)
        kept = tuple(row for row in whole if row.counts_W.any())
        return cls(split, kept, split.truncated, vanished)

    def halves(self, seed: int) -> tuple["Sentences", "Sentences"]:
        """Two random halves of the sentences; each has the full counts of skipped ones."""
        order = np.random.default_rng(seed).permutation(len(self.rows))
        first, second = (
            Sentences(
                self.split, tuple(self.rows[position] for position in sorted(part)), self.truncated, self.vanished
            )
            for part in (order[::2], order[1::2])
        )
        return first, second


def behaviour(form: str, seed: int) -> int:
    """A word type's label in the control task of Hewitt and Liang 2019: 0 itself, 1 first word, 2 last word.

    Drawn uniformly by a hash of the lower-cased spelling, independent of sentence and order.

    >>> behaviour("The", 0) == behaviour("the", 0)
    True
    """
    return zlib.crc32(f"{seed}\t{form.lower()}".encode()) % _BEHAVIOURS


def relations_of(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """The relations of the words that count, sorted."""
    return tuple(
        sorted({sentence.relations[word] for sentence in sentences for word in sentence.counts_W.nonzero()[0]})
    )


def _sentence(split: EncodedSplit, position: int, punctuation: bool, seed: int) -> Sentence:
    example, row = split.examples[position], split.rows[position]
    words = [word for annotation in example.annotations for word in annotation.words]
    sizes = [len(annotation.words) for annotation in example.annotations]
    tree_W = np.repeat(np.arange(len(sizes)), sizes)
    first_W = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes) if words else np.zeros(0, np.int64)
    head_in_tree_W = np.array([word.head for word in words], np.int64)
    head_W = np.where(head_in_tree_W < 0, 0, head_in_tree_W + first_W + 1)
    tokens: list[list[int]] = [[] for _ in words]
    for token, word in zip(row.ids, row.words, strict=True):
        if word >= 0:
            tokens[word].append(token)
    present_W = np.array([bool(ids) for ids in tokens], bool)
    # Index 0 is the root, which always exists.
    counts_W = present_W & np.concatenate([[True], present_W])[head_W]
    marks_W = np.array([is_punctuation(word.relation) for word in words], bool)
    return Sentence(
        position=position,
        forms=tuple(word.form for word in words),
        relations=tuple(word.relation for word in words),
        tokens=tuple(map(tuple, tokens)),
        tree_W=tree_W,
        head_W=head_W,
        control_W=_control(tuple(word.form for word in words), tree_W, present_W, seed),
        present_W=present_W,
        counts_W=counts_W,
        scored_W=counts_W if punctuation else counts_W & ~marks_W,
    )


def _control(forms: Sequence[str], tree_W: Ints, present_W: Bools, seed: int) -> Ints:
    """The word that each word attaches to in the control task, from 1."""
    control_W = np.zeros(len(forms), np.int64)
    for tree in np.unique(tree_W):
        members = np.flatnonzero((tree_W == tree) & present_W).tolist()
        for word in members:
            control_W[word] = 1 + (word, members[0], members[-1])[behaviour(forms[word], seed)]
    return control_W
