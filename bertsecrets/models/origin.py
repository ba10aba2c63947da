"""The model that a checkpoint was fine-tuned from, and whether it is the model used in the analysis."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.settings import shown

INITIAL_WEIGHTS = "initial_weights"
"""Key of the digest of the weights before fine-tuning, in a checkpoint's record."""

_LEAST_COSINE = 0.5
"""Least cosine between the weights of a model before and after fine-tuning."""

_OF_A_RUN = frozenset(
    {
        "architectures",
        "dtype",
        "id2label",
        "label2id",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Keys of a configuration that depend on the task or the library, not on the pre-trained model."""

_STRUCTURE = (
    "model_type",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "hidden_act",
)


@torch.no_grad()
def weights_digest(model: PreTrainedModel) -> str:
    """SHA-256 (64 hexadecimal digits) of an encoder's weights, without the task head and the pooler.

    A pooler may be missing from the pre-trained weights; it is then initialised at random like the head.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.base_model.state_dict().items()):
        if not name.startswith("pooler."):
            # Include names and shapes, as the same bytes may belong to other tensors.
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            # As bytes: numpy has no bfloat16.
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def config_difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first key in which two configurations describe different models, with both values; None if there is none."""
    for key in sorted(recorded.keys() & now.keys() - _OF_A_RUN):
        # The library's own keys start with an underscore.
        if not key.startswith("_") and _plain(recorded[key]) != _plain(now[key]):
            return f"{key} is {shown(recorded[key])} there and {shown(now[key])} here"
    return None


def structure(config: PreTrainedConfig) -> dict[str, Any]:
    """The keys of a configuration that fine-tuning does not change, unlike its dropout."""
    return {key: getattr(config, key, None) for key in _STRUCTURE}


def check_origin(record: Mapping[str, Any], initial: PreTrainedModel, name: str, path: object) -> None:
    """Raise UserError if a checkpoint was not fine-tuned from these initial weights.

    Args:
        record: The checkpoint's record; without a digest of its initial weights it passes.
        initial: The model before fine-tuning.
        name: Name of that model.
        path: Path of the checkpoint.
    """
    digest = record.get(INITIAL_WEIGHTS)
    if digest is not None and digest != weights_digest(initial):
        source = record.get("model", {})
        raise UserError(
            f"Checkpoint '{path}' was fine-tuned from other weights ('{source.get('name')}' in "
            f"'{source.get('path')}') than model '{name}'; set the model it was fine-tuned from, or "
            "reference=<folder> to compare it with another model on purpose."
        )


def check_folder_origin(model: PreTrainedModel, initial: PreTrainedModel, name: str, path: object) -> None:
    """Raise UserError if the weights of a plain folder do not resemble the model it should be fine-tuned from.

    Such a folder records no origin. Fine-tuning hardly turns a weight vector, while the weights of two models that were
    pre-trained apart are nearly orthogonal.

    Args:
        model: The fine-tuned model.
        initial: The model before fine-tuning, of the same architecture.
        name: Name of that model.
        path: Of the folder.
    """
    cosine = weights_cosine(model, initial)
    if cosine < _LEAST_COSINE:
        raise UserError(
            f"The weights in '{path}' do not resemble model '{name}' (cosine {cosine:.2f}), so they were not "
            "fine-tuned from it; set the model they were fine-tuned from, or reference=<folder> to compare them with "
            "another model on purpose."
        )


@torch.no_grad()
def weights_cosine(model: PreTrainedModel, other: PreTrainedModel) -> float:
    """Cosine between the weight matrices of two encoders, all entries as one vector; 0 if one of them is zero.

    Matrices that the other encoder lacks or has in another shape are ignored, as are biases and norms, which are
    similar in any two models.
    """
    others = other.base_model.state_dict()
    product = norm = other_norm = 0.0
    for key, weight in model.base_model.state_dict().items():
        if weight.dim() >= 2 and key in others and others[key].shape == weight.shape:
            # Matrix by matrix, as a single vector would double the memory of a large model.
            a, b = weight.double().flatten(), others[key].double().flatten()
            product += float(a @ b)
            norm += float(a @ a)
            other_norm += float(b @ b)
    return product / math.sqrt(norm * other_norm) if norm and other_norm else 0.0


def check_same_size(model: nn.Module, reference: nn.Module) -> None:
    """Raise UserError unless the maps of two models can be compared head by head and token by token."""
    sizes = [
        (encoder.num_layers, encoder.num_heads, encoder.base.config.vocab_size)
        for encoder in (describe(model), describe(reference))
    ]
    if sizes[0] != sizes[1]:
        (layers, heads, words), (other_layers, other_heads, other_words) = sizes
        raise UserError(
            f"The reference has {other_layers} layers of {other_heads} heads and {other_words} tokens, but the model "
            f"has {layers} of {heads} and {words}; give a model of the same size and vocabulary."
        )


def _plain(value: Any) -> Any:
    """A value after a JSON round trip: tuples become lists, keys become texts."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
