"""A few texts and a tiny model that knows their tokens."""

import torch
from data.toy import wordpiece
from families import tiny_model
from transformers import PreTrainedModel

from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit

TEXTS = [("The cat, a dog.", "He sat."), ("No marks here", "none"), (". , the man", "a fish."), ("the", "dog")]


def split() -> EncodedSplit:
    return EncodedSplit([Example(i, text, i % 3) for i, text in enumerate(TEXTS)], wordpiece(), 64)


def model_of_tokens(attention: str | None = None) -> PreTrainedModel:
    """A tiny model, in float64, that knows the tokenizer's ids."""
    model = tiny_model("bert", attention=attention)
    torch.manual_seed(1)
    model.resize_token_embeddings(len(wordpiece()))
    return model.double()
