"""The start-up proof: on the loaded model, watching watches and overriding overrides."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import watch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder, describe

_LENGTHS = (9, 6)


@dataclass(frozen=True)
class Proof:
    """What was seen on one tiny batch; differences are largest absolute logit differences."""

    watched_difference: float
    padding_difference: float
    override_differences: tuple[float, ...]


@torch.no_grad()
def prove(model: nn.Module) -> Proof:
    """Shows on one tiny padded batch that nothing about this model's heads is silently wrong.

    * every layer is watched once, in order, and the maps are ``[B, H, Q, K]``;
    * rows of real tokens sum to one, and padding receives nothing;
    * watching does not move the logits;
    * padding does not move the logits;
    * zeroing all heads of any one layer moves the logits.

    The model's mode and the random state are left as they were.

    Raises:
        UserError: If any of these does not hold.
    """
    encoder = describe(model)
    training = encoder.model.training
    encoder.model.eval()
    try:
        return _prove(encoder)
    finally:
        encoder.model.train(training)


def _prove(encoder: Encoder) -> Proof:
    inputs = _batch(encoder)
    real_BS = inputs["attention_mask"].bool()
    logits_BC = _logits(encoder, inputs)
    tolerance = 2e3 * torch.finfo(logits_BC.dtype).eps * max(1.0, logits_BC.abs().max().item())

    layers: list[int] = []

    def check(layer: int, attention_BHQK: Tensor) -> None:
        layers.append(layer)
        _check_map(layer, attention_BHQK, real_BS, encoder)

    with watch(encoder.model, check):
        watched_BC = _logits(encoder, inputs)
    if layers != list(range(encoder.num_layers)):
        raise UserError(f"{_name(encoder)} showed maps of layers {layers}; expected each of {encoder.num_layers} once.")
    watched = (watched_BC - logits_BC).abs().max().item()
    if watched > tolerance:
        raise UserError(
            f"Watching {_name(encoder)} moves its logits by {watched:.1e}; load it with attn_implementation='sdpa'."
        )

    alone = {name: tensor[1:, : _LENGTHS[1]] for name, tensor in inputs.items()}
    padding = (_logits(encoder, alone) - logits_BC[1:]).abs().max().item()
    if padding > tolerance:
        raise UserError(f"{_name(encoder)} attends to padding: it moves the logits by {padding:.1e}.")

    moved: list[float] = []
    for layer in range(encoder.num_layers):
        with override(encoder.model, [HeadEdit(layer, head, "zero") for head in range(encoder.num_heads)]):
            moved.append((_logits(encoder, inputs) - logits_BC).abs().max().item())
        if moved[-1] == 0.0:
            raise UserError(
                f"Zeroing all heads of layer {layer} of {_name(encoder)} leaves the logits as they are, so no head of "
                "this model could be judged; report the model type."
            )
    return Proof(watched, padding, tuple(moved))


def _name(encoder: Encoder) -> str:
    return f"model type '{encoder.base.config.model_type}'"


def _batch(encoder: Encoder) -> dict[str, Tensor]:
    """Two rows of random tokens, the second one padded."""
    config = encoder.model.config
    device = next(encoder.base.parameters()).device
    generator = torch.Generator().manual_seed(0)
    longest = max(_LENGTHS)
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    ids_BS = torch.randint(0, config.vocab_size - 1, (len(_LENGTHS), longest), generator=generator)
    ids_BS[ids_BS >= pad] += 1
    mask_BS = torch.ones_like(ids_BS)
    for row, length in enumerate(_LENGTHS):
        ids_BS[row, length:] = pad
        mask_BS[row, length:] = 0
    return {"input_ids": ids_BS.to(device), "attention_mask": mask_BS.to(device)}


def _logits(encoder: Encoder, inputs: dict[str, Tensor]) -> Tensor:
    output = encoder.model(**inputs)
    logits_BC: Tensor = output.logits if hasattr(output, "logits") else output[0][:, 0]
    return logits_BC


def _check_map(layer: int, attention_BHQK: Tensor, real_BS: Tensor, encoder: Encoder) -> None:
    batch, length = real_BS.shape
    expected = (batch, encoder.num_heads, length, length)
    if tuple(attention_BHQK.shape) != expected:
        raise UserError(
            f"Layer {layer} of {_name(encoder)} shows a map of shape {list(attention_BHQK.shape)}; "
            f"expected {list(expected)}."
        )
    rows_BHQ = attention_BHQK.masked_fill(~real_BS[:, None, None, :], 0).sum(-1)
    off = (rows_BHQ - 1).abs().masked_fill(~real_BS[:, None, :], 0).max().item()
    if not off < 1e-2:
        raise UserError(
            f"Rows of the maps of layer {layer} of {_name(encoder)} sum to one only within {off:.1e} over real tokens."
        )
    to_padding = attention_BHQK * (real_BS[:, None, :, None] & ~real_BS[:, None, None, :])
    if to_padding.max().item() > 0:
        raise UserError(f"Layer {layer} of {_name(encoder)} attends to padding.")
