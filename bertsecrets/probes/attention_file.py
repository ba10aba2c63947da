"""Attention between words of many sentences in a file, mapped into memory and read batch by batch."""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.attention.watch import watch
from bertsecrets.data.batch import Batch, BucketedEvalSampler
from bertsecrets.errors import UserError
from bertsecrets.measures.dependency.words import word_maps
from bertsecrets.models.encoder import Autocast, describe, evaluating, unwrap
from bertsecrets.models.loading import random_normal_
from bertsecrets.probes.sentences import Sentences

SPECIAL = 2
"""Positions before the words: the first special token, [CLS], and the last, [SEP]."""


class SentenceFile:
    """A tensor for each of many sentences in one file, in float16: half of the disk space, and three digits of weights
    in 0..1.

    Args:
        path: The file.
        shapes: Shape of each sentence's tensor.
        what: What is stored, as the beginning of a sentence.

    Raises:
        UserError: If the disk has no room for it.
    """

    def __init__(self, path: Path, shapes: Sequence[tuple[int, ...]], what: str) -> None:
        self.shapes = shapes
        self.starts = [0, *np.cumsum([math.prod(shape) for shape in shapes]).tolist()]
        self.bytes = np.float16().nbytes * self.starts[-1]
        free = shutil.disk_usage(path.parent).free
        if self.bytes > free:
            raise UserError(
                f"{what} of {len(shapes):,} sentences need {self.bytes / 1e9:.1f} GB, but '{path.parent}' has "
                f"{free / 1e9:.1f} GB left; free some space, or probe fewer sentences with data.limit_train=<number>."
            )
        self.values = np.memmap(path, np.float16, "w+", shape=(self.starts[-1],))

    def write(self, number: int, value: Tensor) -> None:
        """Store the tensor of a sentence."""
        self.values[self.starts[number] : self.starts[number + 1]] = value.cpu().flatten().numpy()

    def read(self, number: int) -> Tensor:
        """The tensor of a sentence, float32."""
        values = self.values[self.starts[number] : self.starts[number + 1]].astype(np.float32)
        return torch.from_numpy(values).view(self.shapes[number])


class AttentionFile(SentenceFile):
    """Word-level attention of sentences, ``[n, n, C]`` each: n = 2 + words, C = layers x heads.

    Positions 0 and 1 are [CLS] and [SEP], followed by the words.

    Args:
        path: The file.
        words: Number of words of each sentence.
        channels: C.

    Raises:
        UserError: If the disk has no room for it.
    """

    def __init__(self, path: Path, words: Sequence[int], channels: int) -> None:
        self.channels = channels
        self.sizes = [SPECIAL + count for count in words]
        super().__init__(path, [(size, size, channels) for size in self.sizes], "The attention maps")
        self._variance_C = torch.zeros(channels, dtype=torch.float64)
        self._rows = 0

    @property
    def spread_C(self) -> Tensor:
        """Root mean square deviation of a head's attention to words from its row mean, over the stored sentences."""
        spread_C = (self._variance_C / max(self._rows, 1)).sqrt().float()
        # A head that never varies would be divided by 0.
        return torch.where(spread_C > 0, spread_C, 1.0)

    def write(self, number: int, value: Tensor) -> None:
        # Without [CLS] and [SEP], whose large weights would hide attention between words.
        words_WWC = value[SPECIAL:, SPECIAL:].cpu().double()
        self._variance_C += words_WWC.var(1, correction=0).sum(0)
        self._rows += len(words_WWC)
        super().write(number, value)

    def padded(self, numbers: Sequence[int]) -> Tensor:
        """The attention of some sentences, padded with zeros, ``[B, N, N, C]`` float32."""
        longest = max(self.sizes[number] for number in numbers)
        batch_BNNC = torch.zeros(len(numbers), longest, longest, self.channels)
        for row, number in enumerate(numbers):
            batch_BNNC[row, : self.sizes[number], : self.sizes[number]] = self.read(number)
        return batch_BNNC


@torch.no_grad()
def store_attention(
    model: nn.Module,
    sentences: Sentences,
    file: AttentionFile,
    batch_size: int,
    context: Autocast,
    progress: Callable[[int], object],
) -> None:
    """Write the word-level attention of all heads, batch by batch (Clark et al. 2019, section 4.1).

    Args:
        model: Any module that contains an encoder; its mode is restored.
        sentences: The sentences.
        file: The file to write, with a slot for each sentence.
        batch_size: Sentences in a forward pass.
        context: Context manager for every forward pass, e.g. the trainer's autocast.
        progress: Called with the number of sentences written.
    """
    network = unwrap(model)
    device = next(network.parameters()).device
    with evaluating(network):
        for numbers, batch in encoded_batches(sentences, batch_size, device):
            size = max(file.sizes[number] for number in numbers)
            maps_BnnC = _word_level(network, batch, size, context).cpu()
            for row, number in enumerate(numbers):
                words_and_special = file.sizes[number]
                file.write(number, maps_BnnC[row, :words_and_special, :words_and_special])
            progress(len(numbers))


def encoded_batches(sentences: Sentences, batch_size: int, device: torch.device) -> Iterator[tuple[list[int], Batch]]:
    """The tokens of all sentences in batches of similar length, with each sentence's number."""
    number_of = {row.position: number for number, row in enumerate(sentences.rows)}
    for spec in BucketedEvalSampler(sentences.split.lengths, batch_size, positions=list(number_of)):
        yield [number_of[position] for position in spec.positions], sentences.split[spec].to(device)


def _word_level(network: nn.Module, batch: Batch, size: int, context: Autocast) -> Tensor:
    """The attention of all heads between the positions of a batch, ``[B, n, n, C]`` float16."""
    unit_BS = _units(batch)
    layers: list[Tensor] = []

    def observe(_: int, attention_BHQK: Tensor) -> None:
        layers.append(word_maps(attention_BHQK, unit_BS, size).half())

    with context(), watch(network, observe):
        network(**batch.inputs())
    return torch.cat(layers, 1).permute(0, 2, 3, 1)


def _units(batch: Batch) -> Tensor:
    """The position of each token in the file's maps, ``[B, S]``: 0 for [CLS], 1 for [SEP], 2 + word for words, -1 for
    none.
    """
    special_BS = batch.special_BS & batch.attention_mask_BS.bool()
    unit_BS = torch.where(batch.word_BS >= 0, batch.word_BS + SPECIAL, -1)
    order_BS = special_BS.cumsum(-1)
    first_BS = special_BS & (order_BS == 1)
    last_BS = special_BS & (order_BS == order_BS[:, -1:]) & (order_BS > 1)
    return unit_BS.masked_fill(first_BS, 0).masked_fill(last_BS, 1)


@torch.no_grad()
def random_encoder(model: nn.Module, seed: int) -> PreTrainedModel:
    """A copy of a model with its embeddings and otherwise random weights, the paper's baseline (section 5)."""
    copy = deepcopy(unwrap(model))
    random_normal_(copy, seed)
    for drawn, original in zip(describe(copy).embeddings, describe(model).embeddings, strict=True):
        drawn.load_state_dict(original.state_dict())
    return copy
