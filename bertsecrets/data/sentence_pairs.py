"""Pairs of sentences for a model that embeds each sentence separately."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.sampler import BatchSpec
from bertsecrets.data.tokenization import EncodedSplit, group_tensor
from bertsecrets.errors import UserError
from bertsecrets.task_heads.similarity import SIMILARITY


def sentences_of(examples: Sequence[Example]) -> list[Example]:
    """The first sentences of pairs, then the second ones, as examples without labels; the texts of single ones."""
    return [
        Example(side * len(examples) + position, (example.texts[side],), None, example.annotations[side : side + 1])
        for side in range(max(len(example.texts) for example in examples))
        for position, example in enumerate(examples)
    ]


class SentencePairs(Dataset[Batch]):
    """A tokenised split of pairs; a batch of B pairs has 2 B rows: first all first sentences, then all second ones.

    ``index_B`` and ``label_B`` of a batch have an entry for each pair, its other tensors one for each sentence.

    Args:
        examples: The split: pairs with a similarity score; at least one.
        tokenizer: A fast tokenizer.
        max_length: Longest sentence in tokens, special tokens included; longer ones are cut.

    Raises:
        UserError: If an example is not a pair, a sentence is empty, or the tokenizer is slow.
    """

    def __init__(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int) -> None:
        for example in examples:
            if len(example.texts) != 2:
                raise UserError(
                    f"Example {example.index} has {len(example.texts)} text{'s' * (len(example.texts) != 1)}; a "
                    "sentence-embedding model is evaluated on pairs of sentences."
                )
            if not all(text.strip() for text in example.texts):
                raise UserError(f"Example {example.index} has an empty sentence; give two sentences with words.")
        self.examples = examples
        self.sentences = EncodedSplit(sentences_of(examples), tokenizer, max_length)
        """The first sentences, then the second ones, as examples of their own without labels."""
        first, second = self.sentences.lengths[: len(examples)], self.sentences.lengths[len(examples) :]
        self.lengths = [max(pair) for pair in zip(first, second, strict=True)]

    def __len__(self) -> int:
        return len(self.examples)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SentencePairs":
        """The split itself, which is never modified."""
        return self

    def __getitem__(self, selection: Sequence[int] | BatchSpec) -> Batch:
        positions = selection.positions if isinstance(selection, BatchSpec) else tuple(selection)
        batch = self.sentences[[*positions, *(len(self) + position for position in positions)]]
        examples = [self.examples[position] for position in positions]
        labels = [example.label for example in examples if example.label is not None]
        batch.index_B = torch.tensor([example.index for example in examples])
        batch.label_B = torch.tensor(labels, dtype=torch.float32) if len(labels) == len(examples) else None
        batch.group_B = group_tensor(examples)
        batch.head = SIMILARITY
        return batch
