"""Tokenises a split once and deals out padded batches of it."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.sampler import BatchSpec


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one example; the sequences have one entry for each token."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    special: tuple[bool, ...]
    words: tuple[int, ...]


class EncodedSplit(Dataset[Batch]):
    """A tokenised split: ``split[positions]`` is a :class:`Batch` padded to its longest example.

    Pairs are truncated by taking tokens off the longer sentence.

    Args:
        examples: The split.
        tokenizer: A fast tokenizer.
        max_length: Longest sequence, special tokens included.
        pad_to: Pad every batch to this length instead.
        regression: Whether labels are scores.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: PreTrainedTokenizerFast,
        max_length: int,
        pad_to: int | None = None,
        regression: bool = False,
    ) -> None:
        self.examples = examples
        self.tokenizer = tokenizer
        self.pad_to = pad_to
        self.label_type = torch.float32 if regression else torch.int64
        self.rows = _tokenise(examples, tokenizer, max_length)
        self.lengths = [len(row.ids) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Sequence[int] | BatchSpec) -> Batch:
        spec = chosen if isinstance(chosen, BatchSpec) else BatchSpec(tuple(chosen))
        rows = [self.rows[position] for position in spec.positions]
        examples = [self.examples[position] for position in spec.positions]
        length = self.pad_to or max(len(row.ids) for row in rows)
        typed = [row.types for row in rows if row.types is not None]
        pad_id, pad_type = int(self.tokenizer.pad_token_id), int(self.tokenizer.pad_token_type_id)
        labels = [example.label for example in examples if example.label is not None]
        return Batch(
            input_ids_BS=self._pad([row.ids for row in rows], length, pad_id),
            attention_mask_BS=self._pad([(1,) * len(row.ids) for row in rows], length, 0),
            token_type_ids_BS=self._pad(typed, length, pad_type) if typed else None,
            special_BS=self._pad([row.special for row in rows], length, False).bool(),
            word_BS=self._pad([row.words for row in rows], length, -1),
            index_B=torch.tensor([example.index for example in examples]),
            label_B=torch.tensor(labels, dtype=self.label_type) if len(labels) == len(examples) else None,
            weight=spec.weight,
            annotations=tuple(example.annotations for example in examples if example.annotations),
        )

    def _pad(self, rows: Sequence[Sequence[int]], length: int, filler: int) -> Tensor:
        tensor = torch.full((len(rows), length), filler, dtype=torch.int64)
        for i, row in enumerate(rows):
            if self.tokenizer.padding_side == "left":
                tensor[i, length - len(row) :] = torch.tensor(row)
            else:
                tensor[i, : len(row)] = torch.tensor(row)
        return tensor


def _tokenise(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[Tokens]:
    columns: list[list[str]] = [list(column) for column in zip(*(example.texts for example in examples), strict=True)]
    encoded: Any = tokenizer(
        *columns,
        truncation="longest_first",
        max_length=max_length,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    typed = "token_type_ids" in encoded
    rows = []
    for i, example in enumerate(examples):
        rows.append(
            Tokens(
                ids=tuple(encoded["input_ids"][i]),
                types=tuple(encoded["token_type_ids"][i]) if typed else None,
                special=tuple(bool(flag) for flag in encoded["special_tokens_mask"][i]),
                words=tuple(_words(encoded, i, example)),
            )
        )
    return rows


def _words(encoded: Any, row: int, example: Example) -> list[int]:
    """Each token's word: the gold word that its first character lies in, or else the tokenizer's own."""
    sequences = encoded.sequence_ids(row)
    if example.annotations:
        starts = [[word.start for word in annotation.words] for annotation in example.annotations]
        return [
            -1
            if sequence is None
            else max(bisect.bisect_right(starts[sequence], _first_character(example.texts[sequence], *span)) - 1, 0)
            + (len(starts[0]) if sequence == 1 else 0)
            for sequence, span in zip(sequences, encoded["offset_mapping"][row], strict=True)
        ]
    words = encoded.word_ids(row)
    first = [word for word, sequence in zip(words, sequences, strict=True) if sequence == 0]
    shift = max(first, default=-1) + 1
    return [
        -1 if word is None else word + (shift if sequence == 1 else 0)
        for word, sequence in zip(words, sequences, strict=True)
    ]


def _first_character(text: str, start: int, end: int) -> int:
    """Some tokenizers count the space before a word to its token."""
    while start < end - 1 and text[start].isspace():
        start += 1
    return start
