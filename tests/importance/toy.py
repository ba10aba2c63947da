"""A few texts and a tiny model that knows their tokens."""

import trainings
from data.toy import wordpiece
from transformers import PreTrainedModel

from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit

PARTS = ([0], [3, 1], [2])
"""Batches of the texts below."""

TEXTS = [("The cat, a dog.", "He sat."), ("No marks here", "none"), (". , the man", "a fish."), ("the", "dog")]


def split() -> EncodedSplit:
    return EncodedSplit([Example(i, text, i % 3) for i, text in enumerate(TEXTS)], wordpiece(), 64)


def model_of_tokens(attention: str | None = None) -> PreTrainedModel:
    """The tiny model in float64."""
    return trainings.model_of_tokens(attention).double()
