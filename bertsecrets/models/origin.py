"""Which model a checkpoint was fine-tuned from, and whether that is the model it is analysed with."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from bertsecrets.errors import UserError

INITIAL_WEIGHTS = "initial_weights"
"""Key of the digest of the weights before fine-tuning, in a checkpoint's record."""

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


@torch.no_grad()
def weights_digest(model: PreTrainedModel) -> str:
    """SHA-256 (64 hexadecimal digits) of an encoder's weights, without the task head and the pooler.

    A pooler may be missing from the pre-trained weights; it is then drawn at random like the head.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.base_model.state_dict().items()):
        if not name.startswith("pooler."):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def config_difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first key in which two configurations describe different models, with both values; None if there is none."""
    for key in sorted(recorded.keys() & now.keys() - _OF_A_RUN):
        # Keys of the library's own, such as the path that the configuration was read from.
        if not key.startswith("_") and _plain(recorded[key]) != _plain(now[key]):
            return f"{key} is {recorded[key]} there and {now[key]} here"
    return None


def check_origin(record: Mapping[str, Any], initial: PreTrainedModel, name: str, path: object) -> None:
    """Raise UserError if a checkpoint was not fine-tuned from these initial weights.

    Args:
        record: Of the checkpoint; one without a digest of its initial weights passes.
        initial: The model before fine-tuning.
        name: Of that model.
        path: Of the checkpoint.
    """
    digest = record.get(INITIAL_WEIGHTS)
    if digest is not None and digest != weights_digest(initial):
        source = record.get("model", {})
        raise UserError(
            f"Checkpoint '{path}' was fine-tuned from other weights ('{source.get('name')}' in '{source.get('path')}') than "
            f"those of model '{name}'; set the model it was made from, or reference=<folder> to compare it with another "
            "model on purpose."
        )


def _plain(value: Any) -> Any:
    """A value as JSON gives it back: lists for tuples, texts for keys."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
