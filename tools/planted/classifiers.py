"""Planted truth: small classifiers into which heads were built whose importance is known."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertsecrets.attention.watch import output_weights
from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import describe

Plant = Literal["dead", "duplicated", "label"]
PLANTS: tuple[str, ...] = get_args(Plant)

MARKERS = ("yes", "no")
"""The words that decide the label; every text has one of them."""

_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
_WORDS = [*MARKERS, ".", ",", *(f"w{number}" for number in range(40))]
_LONGEST = 12

_IS_MARKER, _WHICH, _ANSWER = 0, 1, 2
"""Dimensions of the residual stream that no ordinary head writes to."""
_RESERVED = 6
"""These, and three more with the same numbers negated: what is written has a mean of zero, and layer norms only scale
it.
"""


@dataclass(frozen=True)
class Planted:
    """A classifier with planted heads.

    Args:
        model: In evaluation mode, with two classes.
        heads: Layer and head of the planted ones.
        split: Labelled texts.
    """

    model: PreTrainedModel
    heads: tuple[tuple[int, int], ...]
    split: EncodedSplit


def plant(kind: Plant, seed: int = 0, layers: int = 4, heads: int = 6, examples: int = 128) -> Planted:
    """Build a classifier whose label is the marker word of its text; nothing is trained.

    All weights are random but those of the planted heads and three dimensions of the residual stream, into which only
    embeddings of markers and planted heads write. A head that carries the label attends to the marker from every token
    and copies which of the two it is; the pooler reads it at [CLS].

    Kinds:
        ``label``: one head carries the label. Without it, the model guesses.
        ``duplicated``: two heads of one layer do, either of which suffices: disabling one changes nothing, both all.
        ``dead``: four heads, whose columns of the output projection are zero, do nothing; one other carries the label.

    Args:
        kind: What is planted.
        seed: Seed of weights, places and texts.
        layers, heads: Size of the model, at least one layer and six heads.
        examples: Number of texts.

    Raises:
        UserError: If the kind does not exist, or the model is too small.
    """
    if kind not in PLANTS:
        raise UserError(f"Unknown kind of planted heads '{kind}'; {choices(str(kind), PLANTS)}.")
    if layers < 1 or heads < 6:
        raise UserError(f"A model with {layers} layers of {heads} heads is too small to plant in; use 1 and 6 or more.")
    chance = random.Random(seed)
    model = _random_classifier(seed, layers, heads)
    layer = chance.randrange(layers)
    carriers = [(layer, head) for head in chance.sample(range(heads), 2 if kind == "duplicated" else 1)]
    for place in carriers:
        _carry_label(model, *place)
    _read_answer(model, saturated=kind == "duplicated")
    planted = carriers
    if kind == "dead":
        others = [(at, head) for at in range(layers) for head in range(heads) if (at, head) not in carriers]
        planted = chance.sample(others, 4)
        silence(model, planted)
    return Planted(model, tuple(sorted(planted)), _texts(chance, examples))


@torch.no_grad()
def silence(model: nn.Module, heads: Sequence[tuple[int, int]]) -> None:
    """Make heads dead: set their columns of the output projection to zero, in the model itself."""
    for layer, head in heads:
        # A view of the parameter.
        output_weights(model, layer)[head].zero_()


@torch.no_grad()
def _random_classifier(seed: int, layers: int, heads: int) -> PreTrainedModel:
    width = 16 * heads
    config = BertConfig(
        vocab_size=len(_SPECIAL) + len(_WORDS),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=_LONGEST + 2,
    )
    config.num_labels = 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = BertForSequenceClassification(config).eval()
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name:
                continue
            spread = 1.0 if "embeddings" in name else 1.2 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    embeddings: Any = model.bert.embeddings
    for table in (embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings):
        _keep_out(table.weight.T)
    for marker, sign in zip(MARKERS, (1, -1), strict=True):
        row = embeddings.word_embeddings.weight[len(_SPECIAL) + _WORDS.index(marker)]
        _write(row, _IS_MARKER, 4.0)
        _write(row, _WHICH, 4.0 * sign)
    encoder: Any = model.bert.encoder
    for layer in encoder.layer:
        for linear in (layer.attention.output.dense, layer.output.dense):
            _keep_out(linear.weight)
            _keep_out(linear.bias[:, None])
    network: PreTrainedModel = model
    return network


def _keep_out(weight_DN: torch.Tensor) -> None:
    """Write nothing to the reserved dimensions, and numbers of mean zero to the others."""
    weight_DN[_RESERVED:] -= weight_DN[_RESERVED:].mean(0, keepdim=True)
    weight_DN[:_RESERVED] = 0


def _write(vector_D: torch.Tensor, dimension: int, value: float) -> None:
    vector_D[dimension], vector_D[dimension + _RESERVED // 2] = value, -value


@torch.no_grad()
def _carry_label(model: PreTrainedModel, layer: int, head: int) -> None:
    """Let a head attend to the marker and copy which one it is into the answer."""
    encoder = describe(model)
    attention: Any = encoder.sites[layer].module
    first = head * encoder.head_dim
    rows = slice(first, first + encoder.head_dim)
    for linear in (attention.query, attention.key, attention.value):
        linear.weight[rows] = 0
        linear.bias[rows] = 0
    attention.query.bias[first] = 4.0
    attention.key.weight[first, _IS_MARKER] = 16.0
    attention.value.weight[first, _WHICH] = 1.0
    weights_HDd = output_weights(model, layer)
    weights_HDd[head] = 0
    _write(weights_HDd[head, :, 0], _ANSWER, 2.0)


@torch.no_grad()
def _read_answer(model: Any, *, saturated: bool) -> None:
    """Let the pooler read the answer and the classifier decide by it; other features add a little."""
    pooler, classifier = model.bert.pooler.dense, model.classifier
    pooler.weight[:, _ANSWER] = 0
    pooler.weight[0], pooler.bias[0] = 0, 0
    pooler.weight[0, _ANSWER] = 20.0 if saturated else 2.0
    classifier.weight.mul_(0.1)
    classifier.bias.zero_()
    classifier.weight[:, 0] = torch.tensor([1.5, -1.5])


def _texts(chance: random.Random, count: int) -> EncodedSplit:
    examples = []
    for index in range(count):
        label = index % 2
        words = chance.choices(_WORDS[len(MARKERS) :], k=chance.randint(4, _LONGEST - 1))
        words.insert(chance.randint(0, len(words)), MARKERS[label])
        examples.append(Example(index, (" ".join(words),), label))
    return EncodedSplit(examples, _tokenizer(), _LONGEST + 2)


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate([*_SPECIAL.values(), *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **_SPECIAL
    )
