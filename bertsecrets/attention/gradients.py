"""Gradients of a loss with respect to attention weights, layer by layer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from bertsecrets.attention.hooks import AttentionCall, ForwardPass, at_inputs, follow, listening
from bertsecrets.models.encoder import Autocast, Encoder, describe
from bertsecrets.models.families.base import AttentionSite
from bertsecrets.task_heads.base import output_of

GradientObserver = Callable[[int, Tensor, Tensor], None]


def attention_gradients(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    loss: Callable[[Tensor], Tensor],
    observer: GradientObserver,
    context: Autocast = nullcontext,
) -> None:
    """Run one forward and backward pass; call ``observer(layer, attention_BHQK, gradient_BHQK)`` from the last layer
    down.

    The gradient is that of the loss with respect to each weight after the softmax, all others held fixed: with g the
    gradient of the loss with respect to a head's output at a token and v the value of another, their product g . v. It
    is computed from these, so that the forward pass is the library's own and only one layer's maps and gradients are in
    memory at a time. No parameter receives a gradient; frozen parameters are allowed.

    Args:
        model: Any module that contains a transformers encoder with a task head, in evaluation mode.
        inputs: The model's keyword arguments, on its device.
        loss: Maps logits to a scalar; a sum, not a mean, over examples gives every example its own gradient.
        observer: Called outside autograd, with tensors of float32 or wider.
        context: Context manager for the forward pass, e.g. the trainer's autocast.

    Raises:
        UserError: If the model's family has no adapter and bypasses the attention interface.
    """
    encoder = describe(model)
    through = _through_interface if encoder.uses_interface else _through_probabilities
    lowest: list[Tensor] = []
    # Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
    with torch.inference_mode(False), torch.enable_grad():
        with follow(encoder) as forward_pass, through(encoder, forward_pass, observer, lowest), context():
            value = loss(output_of(encoder.model, inputs))
        # Backpropagate only to the first layer's tensor, so that no parameter's .grad is filled; hooks see all layers.
        torch.autograd.grad(value, lowest)


@contextmanager
def _through_interface(
    encoder: Encoder, forward_pass: ForwardPass, observer: GradientObserver, lowest: list[Tensor]
) -> Iterator[None]:
    """Put hooks on the heads' outputs of each layer; ``lowest`` receives those of the first layer."""

    def listen(call: AttentionCall) -> Tensor:
        layer = forward_pass.finish_call(call.module)
        if layer is None:
            return call.output_BSHd
        output_BSHd = in_graph(call.output_BSHd, lowest)

        def receive(gradient_BSHd: Tensor) -> None:
            with torch.no_grad(), torch.autocast(gradient_BSHd.device.type, enabled=False):
                map_BHQK = call.attention_BHQK()
                gradient_BHQd = gradient_BSHd.transpose(1, 2).to(map_BHQK.dtype)
                observer(layer, map_BHQK, gradient_BHQd @ call.value_BHKd.to(map_BHQK.dtype).transpose(-1, -2))

        output_BSHd.register_hook(receive)
        return output_BSHd

    with listening(encoder, listen):
        yield


@contextmanager
def _through_probabilities(
    encoder: Encoder, forward_pass: ForwardPass, observer: GradientObserver, lowest: list[Tensor]
) -> Iterator[None]:
    """For families that compute attention themselves: put hooks on the maps."""

    def attach(site: AttentionSite, map_BHQK: Tensor) -> Tensor | None:
        layer = forward_pass.finish_call(site.module)
        if layer is None:
            return None
        map_BHQK = in_graph(map_BHQK, lowest)
        dtype = torch.promote_types(map_BHQK.dtype, torch.float32)

        def receive(gradient_BHQK: Tensor) -> None:
            with torch.no_grad(), torch.autocast(gradient_BHQK.device.type, enabled=False):
                observer(layer, map_BHQK.detach().to(dtype), gradient_BHQK.to(dtype))

        map_BHQK.register_hook(receive)
        return map_BHQK

    with at_inputs(encoder.distinct_sites, "probabilities", attach):
        yield


def in_graph(tensor: Tensor, lowest: list[Tensor]) -> Tensor:
    """The tensor as part of a graph; the first tensor of a pass, from which all others depend, is kept."""
    # All parameters below may be frozen; the graph then starts here.
    if not tensor.requires_grad:
        tensor = tensor.detach().requires_grad_()
    if not lowest:
        lowest.append(tensor)
    return tensor
