"""Batches of sentences for probes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from bertsecrets.probes.attention_file import SPECIAL, AttentionFile
from bertsecrets.probes.sentences import Sentences
from bertsecrets.probes.vectors import WordVectors

NO_RELATION = -1

_PAIRS = 50_000
"""Most word pairs in a batch: long sentences are in smaller batches, which limits memory."""


@dataclass(frozen=True)
class ProbeBatch:
    """B sentences of up to W words; T = 1 + W heads to choose from: the root (0), then the words.

    Args:
        attention_BNNC: Attention of all heads, [CLS] and [SEP] first, N = 2 + W; None for probes without attention.
        vectors_BWD: Word vectors; None for probes without them.
        head_BW, control_BW: The head, and the label of the control task, 0 to W.
        relation_BW: Relation by number; -1 for relations missing from the training sentences, and for padding.
        counts_BW, scored_BW: Whether a word is trained on, and whether it is scored.
        candidate_BWT: Possible heads of a word: the root and the other words of its sentence.
        control_candidate_BWT: The same for the control task, in which a word may attach to itself.
        words_B: Number of words.
    """

    attention_BNNC: Tensor | None
    vectors_BWD: Tensor | None
    head_BW: Tensor
    control_BW: Tensor
    relation_BW: Tensor
    counts_BW: Tensor
    scored_BW: Tensor
    candidate_BWT: Tensor
    control_candidate_BWT: Tensor
    words_B: Tensor

    def to(self, device: torch.device | str) -> "ProbeBatch":
        """The batch on another device."""
        moved = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


class ProbeDataset:
    """Sentences with their attention or word vectors: ``dataset[numbers]`` is a batch.

    Args:
        sentences: The sentences.
        relations: The relations in the order of their numbers.
        attention: Their attention; None for probes without attention.
        vectors: Word vectors; None for probes without them.
    """

    def __init__(
        self,
        sentences: Sentences,
        relations: Sequence[str],
        attention: AttentionFile | None,
        vectors: WordVectors | None,
    ) -> None:
        self.sentences = sentences
        self.number_of = {name: number for number, name in enumerate(relations)}
        self.attention = attention
        self.vectors = vectors

    def __getitem__(self, numbers: Sequence[int]) -> ProbeBatch:
        rows = [self.sentences.rows[number] for number in numbers]
        width = max(len(row) for row in rows)

        def padded(arrays: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.generic]]], value: int) -> Tensor:
            array_BW = np.full((len(rows), width), value, arrays[0].dtype)
            for row, array in enumerate(arrays):
                array_BW[row, : len(array)] = array
            return torch.from_numpy(array_BW)

        relations = [np.array([self.number_of.get(name, NO_RELATION) for name in row.relations]) for row in rows]
        present_BW = padded([row.present_W for row in rows], 0)
        tree_BW = padded([row.tree_W for row in rows], -1)
        same_BWW = (tree_BW[:, :, None] == tree_BW[:, None]) & present_BW[:, :, None] & present_BW[:, None]
        root_BW1 = torch.ones(len(rows), width, 1, dtype=torch.bool)
        vectors = self.vectors
        return ProbeBatch(
            attention_BNNC=None if self.attention is None else self.attention.padded(numbers),
            vectors_BWD=None if vectors is None else vectors.table_VD[padded([vectors.rows(row) for row in rows], 0)],
            head_BW=padded([row.head_W for row in rows], 0),
            control_BW=padded([row.control_W for row in rows], 0),
            relation_BW=padded(relations, NO_RELATION),
            counts_BW=padded([row.counts_W for row in rows], 0),
            scored_BW=padded([row.scored_W for row in rows], 0),
            candidate_BWT=torch.cat([root_BW1, same_BWW & ~torch.eye(width, dtype=torch.bool)], -1),
            control_candidate_BWT=torch.cat([root_BW1, same_BWW], -1),
            words_B=torch.tensor([len(row) for row in rows]),
        )


def epoch_batches(words: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Numbers of sentences in batches of similar length; sentences of equal length, and the batches, are shuffled.

    The number of batches is the same in every epoch.

    Args:
        words: Number of words of each sentence.
        batch_size: Most sentences in a batch; batches of long sentences have fewer.
        seed, epoch: The order depends only on these.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(words)).tolist()
    batches: list[list[int]] = []
    # The sort is stable.
    for number in sorted(order, key=words.__getitem__):
        pairs = (SPECIAL + words[number]) ** 2
        if batches and len(batches[-1]) < batch_size and (len(batches[-1]) + 1) * pairs <= _PAIRS:
            batches[-1].append(number)
        else:
            batches.append([number])
    return [batches[index] for index in generator.permutation(len(batches))]
