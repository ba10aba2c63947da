"""Check the loaded model on one tiny batch: watching changes nothing, overriding changes the logits, and a wrapper does
not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from bertsecrets.attention.hooks import eager_execution
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import watch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder, describe, evaluating, same_logits, unwrap
from bertsecrets.models.sentence_embedder import SentenceEmbedder
from bertsecrets.task_heads import kind_of
from bertsecrets.task_heads.base import output_of
from bertsecrets.task_heads.masked import MaskedHead
from bertsecrets.task_heads.sequence import SequenceHead, logits_of

_LENGTHS = (9, 6)
"""Number of real tokens in the two rows."""


@dataclass(frozen=True)
class SelfCheck:
    """Largest absolute differences between logits on one tiny batch.

    Args:
        watched_difference: With and without a watcher.
        padding_difference: With and without padding.
        override_differences: For each layer, with all of its heads zeroed versus unchanged.
    """

    watched_difference: float
    padding_difference: float
    override_differences: tuple[float, ...]


@torch.no_grad()
def check_attention(model: nn.Module) -> SelfCheck:
    """Check on one tiny padded batch that this model's heads can be watched and overridden.

    * all weights are finite numbers;
    * every layer is watched once, in order, and its map is ``[B, H, Q, K]``;
    * rows of real tokens sum to one, and padding receives nothing;
    * watching does not change the logits;
    * padding does not change the logits;
    * zeroing all heads of any one layer changes the logits.

    The model's mode and the random state are restored.

    Raises:
        UserError: If a check fails.
    """
    encoder = describe(model)
    for name, weight in encoder.model.named_parameters():
        wrong = weight.numel() - int(weight.isfinite().sum())
        if wrong:
            raise UserError(
                f"The weights of {_name(encoder)} contain NaN or infinity, first in {name} ({wrong:,} of "
                f"{weight.numel():,} numbers); give another checkpoint, or fine-tune again with a lower learning rate."
            )
    with evaluating(encoder.model):
        return _check(encoder)


@torch.no_grad()
def check_answers(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Check that a model has the outputs of its kind of head, as wide as its configuration says, and that a wrapper has
    the same logits.

    Args:
        model: Any module that contains a classifier or a sentence-embedding model.
        inputs: Keyword arguments of that model, on its device.

    Raises:
        UserError: If not.
    """
    network = unwrap(model)
    with evaluating(network):
        kind = kind_of(type(network).__name__) or SequenceHead
        logits = logits_of(network, inputs) if kind.classifies else output_of(network, inputs)
    outputs, said = logits.shape[-1], network.config.num_labels
    if outputs != said and not (kind.in_parts or kind is MaskedHead or isinstance(network, SentenceEmbedder)):
        raise UserError(
            f"{type(network).__name__} gives {outputs} outputs per text, but its config.num_labels is {said}; set "
            f"<model>.config.num_labels = {outputs}."
        )
    check_wrapper(model, inputs, logits)


@torch.no_grad()
def check_wrapper(model: nn.Module, inputs: Mapping[str, Tensor], logits_BC: Tensor) -> None:
    """Raise UserError unless a module that wraps a library model has the same logits."""
    network, kind = unwrap(model), type(model)
    # Without its own forward, like a LightningModule that calls its model in its steps, it has no other logits.
    if network is model or kind.forward in (nn.Module.forward, pl.LightningModule.forward):
        return
    inside = next(f"<model>.{path}" for path, part in model.named_modules() if part is network)
    with evaluating(model), eager_execution():
        try:
            answer = model(**inputs)
        # A user's forward can raise anything.
        except Exception as error:
            raise UserError(
                f"{kind.__name__} cannot be called with only {', '.join(inputs)} ({type(error).__name__}), so its "
                f"logits cannot be compared with those of the {type(network).__name__} inside it; give {inside}."
            ) from error
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor):
        raise UserError(
            f"The forward of {kind.__name__} returns {type(logits).__name__}; expected logits or an output with "
            f".logits: give {inside}, or a wrapper that returns one of them."
        )
    if not same_logits(logits_BC, logits):
        raise UserError(
            f"{kind.__name__} returns logits that differ from those of the {type(network).__name__} inside it, on "
            f"which heads would be evaluated; give {inside}, or a PreTrainedModel whose forward returns these logits."
        )


def _check(encoder: Encoder) -> SelfCheck:
    inputs = _batch(encoder)
    real_BS = inputs["attention_mask"].bool()
    logits_BC = _logits(encoder, inputs)
    # Relative to the logits' precision, because padding changes the order of sums in every layer.
    tolerance = 2e3 * torch.finfo(logits_BC.dtype).eps * max(1.0, logits_BC.abs().max().item())

    layers: list[int] = []

    def observe(layer: int, attention_BHQK: Tensor) -> None:
        layers.append(layer)
        _check_map(layer, attention_BHQK, real_BS, encoder)

    with watch(encoder.model, observe):
        watched_BC = _logits(encoder, inputs)
    if layers != list(range(encoder.num_layers)):
        raise UserError(
            f"Watching {_name(encoder)} gave maps of layers {layers}; expected each of {encoder.num_layers} layers "
            "once."
        )
    watched = (watched_BC - logits_BC).abs().max().item()
    if watched > tolerance:
        raise UserError(
            f"Watching {_name(encoder)} changes its logits by {watched:.1e}; load it with attn_implementation='sdpa'."
        )

    unpadded = {name: tensor[1:, : _LENGTHS[1]] for name, tensor in inputs.items()}
    padding = (_logits(encoder, unpadded) - logits_BC[1:]).abs().max().item()
    if padding > tolerance:
        raise UserError(f"Padding changes the logits of {_name(encoder)} by {padding:.1e}; report the model type.")

    moved: list[float] = []
    for layer in range(encoder.num_layers):
        with override(encoder.model, [HeadEdit(layer, head, "zero") for head in range(encoder.num_heads)]):
            moved.append((_logits(encoder, inputs) - logits_BC).abs().max().item())
        # Compared exactly, because any real effect shows at least in the last digit.
        if moved[-1] == 0.0:
            raise UserError(
                f"Zeroing all heads of layer {layer} of {_name(encoder)} does not change the logits, so this model's "
                "heads cannot be evaluated; report the model type."
            )
    return SelfCheck(watched, padding, tuple(moved))


def _name(encoder: Encoder) -> str:
    return f"model type '{encoder.base.config.model_type}'"


def _batch(encoder: Encoder) -> dict[str, Tensor]:
    """Two rows of random tokens, the second one padded."""
    config = encoder.model.config
    device = next(encoder.base.parameters()).device
    generator = torch.Generator().manual_seed(0)
    longest = max(_LENGTHS)
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    # Skip the padding id, which must not occur inside a text.
    ids_BS = torch.randint(0, config.vocab_size - 1, (len(_LENGTHS), longest), generator=generator)
    ids_BS[ids_BS >= pad] += 1
    mask_BS = torch.ones_like(ids_BS)
    for row, length in enumerate(_LENGTHS):
        ids_BS[row, length:] = pad
        mask_BS[row, length:] = 0
    return {"input_ids": ids_BS.to(device), "attention_mask": mask_BS.to(device)}


def _logits(encoder: Encoder, inputs: dict[str, Tensor]) -> Tensor:
    output = encoder.model(**inputs)
    # A bare encoder has vectors, and some heads logits, of each token: the first token's serve as well.
    first: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return first[:, 0] if first.dim() > 2 or hasattr(output, "start_logits") else first


def _check_map(layer: int, attention_BHQK: Tensor, real_BS: Tensor, encoder: Encoder) -> None:
    batch, length = real_BS.shape
    expected = (batch, encoder.num_heads, length, length)
    if tuple(attention_BHQK.shape) != expected:
        raise UserError(
            f"Layer {layer} of {_name(encoder)} has a map of shape {list(attention_BHQK.shape)}; expected "
            f"{list(expected)}."
        )
    rows_BHQ = attention_BHQK.masked_fill(~real_BS[:, None, None, :], 0).sum(-1)
    error = (rows_BHQ - 1).abs().masked_fill(~real_BS[:, None, :], 0).max().item()
    if not error < 1e-2:
        raise UserError(
            f"Rows of the maps of layer {layer} of {_name(encoder)} sum to one only within {error:.1e} over real "
            "tokens; expected 1e-2 or less."
        )
    to_padding = attention_BHQK * (real_BS[:, None, :, None] & ~real_BS[:, None, None, :])
    if to_padding.max().item() > 0:
        raise UserError(f"Layer {layer} of {_name(encoder)} attends to padding; report the model type.")
