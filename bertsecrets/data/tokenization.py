"""Tokenise a split once and form padded batches of it."""

import bisect
import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokenizers import decoders
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch, BatchSpec
from bertsecrets.data.example import Example
from bertsecrets.errors import UserError
from bertsecrets.settings import shown
from bertsecrets.task_heads.base import TaskHead
from bertsecrets.task_heads.sequence import SEQUENCE

_SPACE = "\N{OPEN BOX}"
"""Stands for a token that is a space."""

_AT_ONCE = 1000
"""Number of examples tokenised at once."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one example; each sequence has one entry per token."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    special: tuple[bool, ...]
    words: tuple[int, ...]
    truncated: bool
    written: bool
    """Whether the text itself contains a special token, such as ``[SEP]``."""
    spans: tuple[tuple[int, int], ...] = ()
    """Of windows: first and last character (exclusive) of each token in its text."""
    sequences: tuple[int | None, ...] = ()
    """Of windows: the text of each token, 0 or 1, None for special tokens."""
    mask: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    """Attention mask and positions of recorded inputs; None for ones and for positions that the model counts."""


def written(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as people read them.

    Byte-level BPE (RoBERTa, ModernBERT, EuroBERT) keeps bytes under other letters: ``ĠcafÃ©`` is shown as
    ``café``, and a piece that continues a word begins with ``##``, as in WordPiece. Tokens of other
    tokenizers are shown as they are.

    Args:
        tokenizer: A tokenizer of transformers.
        ids: Successive tokens of one text.
    """
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(list(ids))]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or "ByteLevel" not in f"{backend.pre_tokenizer!r} {backend.decoder!r}":
        return tokens
    own = {*tokenizer.all_special_tokens}
    texts = [token if token in own else decoders.ByteLevel().decode([token]) for token in tokens]
    shown = []
    for at, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        before = "" if at == 0 or tokens[at - 1] in own else texts[at - 1]
        continues = token not in own and text[:1].isalnum() and before[-1:].isalnum()
        bare = text.removeprefix(" ") if text.strip() else text.replace(" ", _SPACE)
        shown.append(f"##{bare}" if continues else bare)
    return shown


class EncodedSplit(Dataset[Batch]):
    """A tokenised split: ``split[positions]`` is a :class:`Batch` padded to its longest example, on the right.

    The tokenizer's own padding side is ignored: with left padding, absolute positions would depend on the batch. Pairs
    are truncated by removing tokens from the longer sentence; for heads that read windows, the second text is cut into
    windows that share a third of their length, each an example of the same ``document``.

    Where the model reads an example in several rows, ``index_B`` and ``label_B`` of a batch have an entry for each
    example, its other tensors one for each row: all first rows, then all second ones, and so on.

    Args:
        examples: The split; at least one.
        tokenizer: A fast tokenizer.
        max_length: Longest sequence, special tokens included.
        pad_to: Pad every batch to this length instead.
        pad_to_multiple_of: Round the length of every batch up to a multiple of this.
        head: What the labels are.

    Raises:
        UserError: If the tokenizer is slow or has no padding token, or an example is longer than ``pad_to``.
    """

    by_row: "EncodedSplit | None" = None
    """The rows of examples that have several, each an example without a label."""

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: PreTrainedTokenizerFast,
        max_length: int,
        pad_to: int | None = None,
        pad_to_multiple_of: int | None = None,
        head: TaskHead = SEQUENCE,
    ) -> None:
        if not tokenizer.is_fast:
            raise UserError(
                f"The tokenizer is a {type(tokenizer).__name__}, which gives no character offsets; use a model with a "
                "fast tokenizer (tokenizer.json)."
            )
        if tokenizer.pad_token_id is None:
            raise UserError(
                f"The tokenizer ({type(tokenizer).__name__}) has no padding token; use a tokenizer with one."
            )
        self.tokenizer = tokenizer
        self.pad_id, self.pad_type = int(tokenizer.pad_token_id), int(tokenizer.pad_token_type_id)
        self.pad_to = pad_to
        self.pad_to_multiple_of = pad_to_multiple_of or 1
        self.head = head
        if head.in_parts:
            self.examples, _ = head.prepared(examples, (), tokenizer)
            by_row = EncodedSplit(rows_of(examples, head), tokenizer, max_length, pad_to, pad_to_multiple_of)
            self._take(by_row.rows, by_row)
            return
        # A tokenizer's output takes many times the memory of the parts that are kept.
        tokenised = [
            pair
            for first in range(0, len(examples), _AT_ONCE)
            for pair in _tokenise(examples[first : first + _AT_ONCE], tokenizer, max_length, head.reads_windows)
        ]
        rows = [row for _, row in tokenised]
        if head.reads_windows:
            examples = _numbered([example for example, _ in tokenised])
        self.examples, asked = head.prepared(examples, rows, tokenizer)
        self._take(asked)
        if 0 in self.lengths:
            first = self.examples[self.lengths.index(0)]
            raise UserError(
                f"{self.lengths.count(0)} of {len(self.rows)} texts have no token, e.g. {' '.join(first.texts)!r} "
                f"(row {first.index}), and the tokenizer adds no special tokens; remove them."
            )
        if pad_to is not None and pad_to < max(self.lengths):
            raise UserError(
                f"pad_to is {pad_to}, but an example has {max(self.lengths)} tokens; set max_length={pad_to} with it."
            )

    def _take(self, rows: Sequence[Tokens], by_row: "EncodedSplit | None" = None) -> None:
        """Read the examples in these rows, of which each has one or several."""
        self.by_row = by_row
        examples = len(self.examples)
        parts_N = [rows[place::examples] for place in range(examples)]
        self.rows = [parts[0] for parts in parts_N]
        self.lengths = [max(len(row.ids) for row in parts) for parts in parts_N]
        self.truncated = sum(any(row.truncated for row in parts) for parts in parts_N)
        self.written = sum(any(row.written for row in parts) for parts in parts_N)

    def part(self, positions: Sequence[int]) -> "EncodedSplit":
        """The examples at some positions, as a separate split."""
        part = copy.copy(self)
        part.examples = [self.examples[position] for position in positions]
        if self.by_row is not None:
            by_row = self.by_row.part(_every_part(positions, len(self), len(self.by_row)))
            part._take(by_row.rows, by_row)
        else:
            part._take([self.rows[position] for position in positions])
        return part

    def __len__(self) -> int:
        return len(self.rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> "EncodedSplit":
        """The split itself, which is never modified."""
        return self

    def __getitem__(self, selection: Sequence[int] | BatchSpec) -> Batch:
        spec = selection if isinstance(selection, BatchSpec) else BatchSpec(tuple(selection))
        rows = [self.rows[position] for position in spec.positions]
        examples = [self.examples[position] for position in spec.positions]
        if self.by_row is not None:
            batch = self.by_row[_every_part(spec.positions, len(self), len(self.by_row))]
            batch.index_B, batch.group_B = torch.tensor([one.index for one in examples]), group_tensor(examples)
            batch.head, batch.label_B = self.head.of_batch(examples, rows, 0)
            batch.weight = spec.weight
            return batch
        length = self.pad_to or max(len(row.ids) for row in rows)
        length = -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of
        typed = [row.types for row in rows if row.types is not None]
        positions = [row.positions for row in rows if row.positions is not None]
        head, label_B = self.head.of_batch(examples, rows, length)
        return Batch(
            input_ids_BS=self._pad([row.ids for row in rows], length, self.pad_id),
            attention_mask_BS=self._pad([row.mask or (1,) * len(row.ids) for row in rows], length, 0),
            token_type_ids_BS=self._pad(typed, length, self.pad_type) if typed else None,
            special_BS=self._pad([row.special for row in rows], length, False).bool(),
            word_BS=self._pad([row.words for row in rows], length, -1),
            index_B=torch.tensor([example.index for example in examples]),
            label_B=label_B,
            weight=spec.weight,
            annotations=tuple(example.annotations for example in examples),
            group_B=group_tensor(examples),
            position_ids_BS=self._pad(positions, length, 0) if positions else None,
            head=head,
        )

    @staticmethod
    def _pad(rows: Sequence[Sequence[int]], length: int, filler: int) -> Tensor:
        tensor = torch.full((len(rows), length), filler, dtype=torch.int64)
        for i, row in enumerate(rows):
            tensor[i, : len(row)] = torch.tensor(row)
        return tensor


def rows_of(examples: Sequence[Example], head: TaskHead) -> list[Example]:
    """The rows in which a model reads examples, all first ones, then all second ones, and so on."""
    parts = zip(*(head.parts(example) for example in examples), strict=True)
    return [
        replace(row, index=part * len(examples) + place, label=None)
        for part, rows in enumerate(parts)
        for place, row in enumerate(rows)
    ]


def _every_part(positions: Sequence[int], examples: int, rows: int) -> list[int]:
    """The positions of all rows of the examples at some positions."""
    return [start + position for start in range(0, rows, examples) for position in positions]


def group_tensor(examples: Sequence[Example]) -> Tensor | None:
    """The groups of some examples, int64; None unless every example has a group."""
    groups = [example.group for example in examples if example.group is not None]
    return torch.tensor(groups, dtype=torch.int64) if len(groups) == len(examples) else None


def _numbered(windows: Sequence[Example]) -> list[Example]:
    """Windows with an index each: the first of a text that of its example, the others numbers above them."""
    above = itertools.count(max(example.index for example in windows) + 1)
    seen: set[int] = set()
    numbered = []
    for window in windows:
        index = next(above) if window.index in seen else window.index
        seen.add(window.index)
        numbered.append(replace(window, index=index, document=window.index))
    return numbered


def _tokenise(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int, windows: bool
) -> Iterator[tuple[Example, Tokens]]:
    columns: list[list[str]] = [list(column) for column in zip(*(example.texts for example in examples), strict=True)]
    options: dict[str, Any] = {"truncation": "longest_first"}
    if windows:
        overlap = max_length // 3
        _check_questions(examples, tokenizer, max_length, overlap)
        options = {"truncation": "only_second", "stride": overlap, "return_overflowing_tokens": True}
    encoded: Any = tokenizer(
        *columns,
        max_length=max_length,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        **options,
    )
    typed = "token_type_ids" in encoded
    # An unknown word is a word.
    special_ids = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    for i, ids in enumerate(encoded["input_ids"]):
        example = examples[encoded["overflow_to_sample_mapping"][i] if windows else i]
        added = [bool(flag) for flag in encoded["special_tokens_mask"][i]]
        special = tuple(flag or token in special_ids for flag, token in zip(added, ids, strict=True))
        words = _words(encoded, i, example)
        yield (
            example,
            Tokens(
                ids=tuple(ids),
                types=tuple(encoded["token_type_ids"][i]) if typed else None,
                special=special,
                words=tuple(-1 if flag else word for flag, word in zip(special, words, strict=True)),
                truncated=not windows and bool(encoded.encodings[i].overflowing),
                written=sum(special) > sum(added),
                spans=tuple(encoded["offset_mapping"][i]) if windows else (),
                sequences=tuple(encoded.sequence_ids(i)) if windows else (),
            ),
        )


def _check_questions(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int, overlap: int
) -> None:
    """Raise UserError if a question leaves too little of a window to its text."""
    encoded: Any = tokenizer([example.texts[0] for example in examples], add_special_tokens=False, verbose=False)
    most = max_length - tokenizer.num_special_tokens_to_add(pair=True) - overlap - 1
    for example, ids in zip(examples, encoded["input_ids"], strict=True):
        if len(ids) > most:
            raise UserError(
                f"The question of row {example.index} has {len(ids)} tokens, {shown(example.texts[0])}, but windows of "
                f"{max_length} tokens have room for {max(most, 0)}; shorten it, or raise task.training.max_length."
            )


def _words(encoded: Any, row: int, example: Example) -> list[int]:
    """The word number of each token, -1 for special tokens."""
    sequences: list[int | None] = encoded.sequence_ids(row)
    if not example.annotations:
        own: list[int | None] = encoded.word_ids(row)
        first = [word for word, sequence in zip(own, sequences, strict=True) if word is not None and sequence == 0]
        shift = max(first, default=-1) + 1
        return [
            -1 if word is None else word + (shift if sequence == 1 else 0)
            for word, sequence in zip(own, sequences, strict=True)
        ]
    # The annotated word that contains each token's first character.
    words = [annotation.words for annotation in example.annotations]
    starts = [[word.start for word in sentence] for sentence in words]
    numbers = []
    for sequence, (start, end) in zip(sequences, encoded["offset_mapping"][row], strict=True):
        number = -1
        if sequence is not None:
            # Some tokenizers include the space before a word in its token, or make the space a token.
            while start < end and example.texts[sequence][start].isspace():
                start += 1
            word = bisect.bisect_right(starts[sequence], start) - 1
            if word >= 0 and start < words[sequence][word].end:
                number = word + (len(words[0]) if sequence == 1 else 0)
        numbers.append(number)
    return numbers
