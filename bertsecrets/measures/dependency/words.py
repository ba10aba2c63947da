"""Attention between words, and the dependencies for comparison."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example

FromWord = Literal["mean", "first"]


def word_maps(attention_BHQK: Tensor, word_BS: Tensor, words: int, from_word: FromWord = "mean") -> Tensor:
    """Attention between W words, ``[B, H, W, W]``: summed over the attended word's tokens, averaged over the attending
    word's.

    Tokens outside words, such as [CLS] and [SEP], are ignored, so a row may sum to less than 1. A word without tokens
    has a row and a column of zeros.

    Args:
        attention_BHQK: Attention between tokens.
        word_BS: Word of each token, -1 for none.
        words: Number of words, W.
        from_word: ``mean`` over the tokens that a word has, as in the paper, or its ``first`` token only, the default
            of the paper's code.
    """
    number_W = torch.arange(words, device=word_BS.device)
    member_BSW = word_BS[..., None] == number_W
    rows_BSW = member_BSW & (member_BSW.cumsum(1) == 1) if from_word == "first" else member_BSW
    into_BSW = member_BSW.to(attention_BHQK.dtype)
    from_BSW = rows_BSW.to(attention_BHQK.dtype)
    # clamp: a word without tokens has a row of zeros, not of NaN.
    from_BSW = from_BSW / from_BSW.sum(1, keepdim=True).clamp(min=1)
    return from_BSW.transpose(1, 2)[:, None] @ (attention_BHQK @ into_BSW[:, None])


def pointed_to(word_BHWW: Tensor, candidate_BWW: Tensor) -> Tensor:
    """The candidate that each word points to, ``[B, D, H, W]`` int64, for both directions D.

    Direction 0 is the word that a word attends to most (from a dependent to its head); direction 1 is the word that
    attends to it most (a head to its dependent).

    Args:
        word_BHWW: Attention between words.
        candidate_BWW: Whether the second word may be the head of the first, symmetric, bool. The first word stands in
            for a word without candidates.
    """
    barred_B1WW = ~candidate_BWW[:, None]
    return torch.stack(
        [
            # -1 is below any attention, including the 0 of a word that receives none.
            direction_BHWW.masked_fill(barred_B1WW, -1.0).argmax(-1)
            for direction_BHWW in (word_BHWW, word_BHWW.transpose(-1, -2))
        ],
        1,
    )


POSSESSIVE = frozenset({"poss", "nmod:poss"})
CLITICS = frozenset({"'s", "s'", "’s"})
"""Possessive markers whose attention replaces the possessor's: those in the paper's code, and one with a typographic
apostrophe.
"""

SYNTACTIC_RELATIONS = ("nsubj", "obj", "dobj", "amod", "advmod")
"""The relations of Voita et al. 2019 and Pande et al. 2021, with Universal and Stanford Dependencies names."""

_PUNCTUATION = frozenset({"punct", "p"})
_ROOT = "root"


@dataclass(frozen=True)
class Counting:
    """Settings for the words that count, and their relations.

    Args:
        relations: Relations that are also counted separately.
        possessive: Whether the attention of an 's stands in for that of the possessor before it.
        punctuation: Whether punctuation counts among all words.
        root: Whether roots, whose head is no word, count (as wrong) among all words.
        left_out: Indices of the examples that do not count.
    """

    relations: tuple[str, ...]
    possessive: bool = True
    punctuation: bool = True
    root: bool = True
    left_out: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Gold:
    """The dependencies of B sentences with up to W words.

    Args:
        head_BW: Index of each word's head; -1 for roots and padding.
        asks_BW: The word whose attention is read for a word's head: the word itself, except under the possessive rule.
        counts_BWR: Whether a word counts for all words (R = 0) and for each relation.
        candidate_BWW: Whether one word may be the head of another: both have tokens and are in the same sentence.
        last_B: Index of the last word.
        vanished: Words without tokens, in the sentences that count.
    """

    head_BW: Tensor
    asks_BW: Tensor
    counts_BWR: Tensor
    candidate_BWW: Tensor
    last_B: Tensor
    vanished: int

    @classmethod
    def of(cls, batch: Batch, counting: Counting) -> "Gold":
        """The dependencies of a batch; words without tokens, and the words that depend on them, do not count."""
        size, device = batch.size, batch.word_BS.device
        width = max(1, *(sum(len(sentence.words) for sentence in sentences) for sentences in batch.annotations))
        number_of = {name: number for number, name in enumerate(counting.relations, start=1)}
        # On the CPU: on a GPU each of the single writes below would be a kernel launch.
        head_BW = torch.full((size, width), -1)
        asks_BW = torch.arange(width).repeat(size, 1)
        sentence_BW = torch.full((size, width), -1)
        counts_BWR = torch.zeros(size, width, 1 + len(number_of), dtype=torch.bool)
        present_BW = torch.zeros(size, width + 1, dtype=torch.bool)
        word_BS = batch.word_BS.cpu()
        present_BW.scatter_(1, word_BS.masked_fill(word_BS < 0, width), True)
        present_BW = present_BW[:, :width]
        vanished = 0
        for row, sentences in enumerate(batch.annotations):
            if int(batch.index_B[row]) in counting.left_out:
                continue
            first = 0
            for number, sentence in enumerate(sentences):
                for i, word in enumerate(sentence.words):
                    at, head = first + i, first + word.head if word.head >= 0 else -1
                    head_BW[row, at], sentence_BW[row, at] = head, number
                    clitic = i + 1 < len(sentence.words) and sentence.words[i + 1].form in CLITICS
                    asks = at + 1 if counting.possessive and clitic and word.relation in POSSESSIVE else at
                    asks_BW[row, at] = asks
                    if not present_BW[row, asks] or (head >= 0 and not present_BW[row, head]):
                        continue
                    is_counted = counting.punctuation or not is_punctuation(word.relation)
                    counts_BWR[row, at, 0] = is_counted and (head >= 0 or counting.root)
                    if word.relation in number_of:
                        counts_BWR[row, at, number_of[word.relation]] = True
                first += len(sentence.words)
            vanished += first - int(present_BW[row, :first].sum())
        same_BWW = (sentence_BW[:, :, None] == sentence_BW[:, None]) & (sentence_BW >= 0)[:, None]
        both_BWW = present_BW[:, :, None] & present_BW[:, None]
        other_WW = ~torch.eye(width, dtype=torch.bool)
        candidate_BWW = same_BWW & both_BWW & other_WW
        last_B = ((sentence_BW >= 0).sum(-1) - 1).clamp(min=0)
        head_BW, asks_BW, counts_BWR = head_BW.to(device), asks_BW.to(device), counts_BWR.to(device)
        return cls(head_BW, asks_BW, counts_BWR, candidate_BWW.to(device), last_B.to(device), vanished)

    def correct(self, pointed_BXW: Tensor) -> Tensor:
        """Whether the words pointed to are the heads, ``[B, X, W]`` bool, for any dimensions X."""
        shape = pointed_BXW.shape
        flat_BNW = pointed_BXW.reshape(shape[0], -1, shape[-1])
        answers_BNW = flat_BNW.gather(-1, self.asks_BW[:, None].expand_as(flat_BNW))
        return (answers_BNW == self.head_BW[:, None]).reshape(shape)

    def at_offsets(self, offsets: Sequence[int]) -> Tensor:
        """The words at fixed offsets from each word, ``[B, O, W]``; beyond an end of the sentence, its outermost
        word.
        """
        word_W = torch.arange(self.head_BW.shape[1], device=self.head_BW.device)
        moved_OW = word_W + torch.tensor(offsets, device=self.head_BW.device)[:, None]
        return moved_OW.clamp(min=0).expand(len(self.last_B), -1, -1).minimum(self.last_B[:, None, None])


def relation_counts(examples: Iterable[Example], left_out: frozenset[int]) -> Counter[str]:
    """Number of words with each relation in the examples that count, most frequent first."""
    counts: Counter[str] = Counter(
        word.relation
        for example in examples
        if example.index not in left_out
        for sentence in example.annotations
        for word in sentence.words
    )
    return Counter(dict(counts.most_common()))


def is_listed(relation: str) -> bool:
    """Whether a relation has a row in the paper's table; roots and punctuation do not."""
    return bool(relation) and relation.lower() != _ROOT and not is_punctuation(relation)


def is_punctuation(relation: str) -> bool:
    """Whether a relation is for punctuation."""
    return relation.lower() in _PUNCTUATION
