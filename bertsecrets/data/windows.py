"""Cut documents longer than the model's limit into windows, at sentence ends."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerFast

from bertsecrets.data.example import Annotation, Example, Mention


def windows(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[Example]:
    """Cut each document into consecutive windows of as many sentences as fit.

    Windows are numbered in order. A longer sentence is cut between words. Mentions split by a cut are dropped; other
    mentions and word heads are kept if they lie in the window.

    Args:
        examples: Documents, of one text each.
        tokenizer: A fast tokenizer.
        max_length: Longest window in tokens, special tokens included.
    """
    encoded: Any = tokenizer(
        [example.texts[0] for example in examples],
        add_special_tokens=False,
        return_offsets_mapping=True,
        # The tokenizer would warn about documents longer than the model's limit.
        verbose=False,
    )
    budget = max_length - tokenizer.num_special_tokens_to_add()
    pieces: list[Example] = []
    for example, offsets in zip(examples, encoded["offset_mapping"], strict=True):
        [annotation] = example.annotations
        ends = [end for _, end in offsets]
        tokens_before = [*(bisect_right(ends, word.start) for word in annotation.words), len(ends)]
        borders = _borders(annotation.sentences, tokens_before, budget)
        pieces += [
            _window(example, first, end, len(pieces) + number) for number, (first, end) in enumerate(pairwise(borders))
        ]
    return pieces


def _borders(sentences: Sequence[int], tokens_before: Sequence[int], budget: int) -> list[int]:
    """The first word of each window and the end of the last.

    Args:
        sentences: First word of each sentence.
        tokens_before: Number of tokens before each word, and at the end.
        budget: Maximum tokens per window.
    """
    borders = [0]
    for start, end in pairwise((*sentences, len(tokens_before) - 1)):
        if tokens_before[end] - tokens_before[borders[-1]] <= budget:
            continue
        if start > borders[-1]:
            borders.append(start)
        if tokens_before[end] - tokens_before[start] > budget:
            for word in range(start + 1, end):
                if tokens_before[word + 1] - tokens_before[borders[-1]] > budget:
                    borders.append(word)
    return [*borders, len(tokens_before) - 1]


def _window(example: Example, first: int, end: int, index: int) -> Example:
    """The words from ``first`` up to ``end`` (exclusive) as a separate example."""
    [annotation] = example.annotations
    start = annotation.words[first].start
    words = tuple(
        replace(
            word,
            start=word.start - start,
            end=word.end - start,
            head=word.head - first if first <= word.head < end else -1,
        )
        for word in annotation.words[first:end]
    )
    inside = [
        index for index, mention in enumerate(annotation.mentions) if first <= mention.first <= mention.last < end
    ]
    number_of = {index: number for number, index in enumerate(inside)}
    mentions = tuple(_moved(annotation.mentions[index], first, number_of) for index in inside)
    sentences = tuple(start - first for start in annotation.sentences if first <= start < end)
    text = example.texts[0][start : annotation.words[end - 1].end]
    window = Annotation(words, mentions=mentions, sentences=sentences)
    label = example.label[first:end] if isinstance(example.label, tuple) else example.label
    return Example(index, (text,), label, (window,), example.index)


def _moved(mention: Mention, first: int, number_of: dict[int, int]) -> Mention:
    choices = mention.choices
    if choices is not None:
        choices = tuple(number_of[index] for index in choices if index in number_of)
    return replace(
        mention,
        first=mention.first - first,
        last=mention.last - first,
        head=mention.head - first,
        choices=choices,
    )
