"""Gradients of a loss: with respect to attention weights, heads' outputs, and heads' query, key and value weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from bertsecrets.attention.hooks import AttentionCall, ForwardPass, at_inputs, follow, keeping_values, listening
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, Encoder, check_adapter, describe, requiring_gradients
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


OutputObserver = Callable[[int, Tensor, Tensor, Tensor], None]


def output_gradients(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    loss: Callable[[Tensor], Tensor],
    observer: OutputObserver,
    context: Autocast = nullcontext,
    gate: float = 1.0,
) -> Tensor:
    """Run one forward and backward pass; call ``observer(layer, output_BSHd, gradient_BSHd, value_BSHd)``, last layer
    first.

    Every head's output is multiplied by ``gate`` in the pass. The observer receives the outputs before the gate, the
    gradient of the loss with respect to the outputs after it, and the values; the sum of output times gradient over
    tokens and width is the derivative with respect to the head's gate. No parameter receives a gradient; frozen
    parameters are allowed.

    Args:
        model: Any module that contains a transformers encoder with a task head, in evaluation mode.
        inputs: The model's keyword arguments, on its device.
        loss: From logits to a scalar; the sum, not the mean, over examples gives every example its own gradient.
        observer: Called outside autograd, with tensors of float32 or wider.
        context: Context manager for the forward pass, e.g. the trainer's autocast.
        gate: 1 for the intact model, 0 to disable all heads with mode ``zero``.

    Returns:
        The logits ``[B, C]``, without gradient.

    Raises:
        UserError: If the model's family has no adapter.
    """
    encoder = describe(model)
    check_adapter(encoder, "Gradients of heads' outputs need")
    lowest: list[Tensor] = []
    # Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
    with torch.inference_mode(False), torch.enable_grad():
        with follow(encoder) as forward_pass, _observing(encoder, forward_pass, observer, lowest, gate), context():
            logits_BC = output_of(encoder.model, inputs)
            value = loss(logits_BC)
        torch.autograd.grad(value, lowest)
    return logits_BC.detach()


@contextmanager
def _observing(
    encoder: Encoder, forward_pass: ForwardPass, observer: OutputObserver, lowest: list[Tensor], gate: float
) -> Iterator[None]:
    """Put hooks on the heads' outputs of each layer; ``lowest`` receives those of the first one."""
    family = encoder.family
    assert family is not None
    with keeping_values(encoder.distinct_sites) as projected:

        def attach(site: AttentionSite, output_BSD: Tensor) -> Tensor | None:
            layer = forward_pass.finish_call(site.module)
            projected_BSD = projected.pop(id(site.module)).detach()
            if layer is None:
                return None
            gated_BSD = in_graph(output_BSD * gate, lowest)

            def receive(gradient_BSD: Tensor) -> None:
                dtype = torch.promote_types(gradient_BSD.dtype, torch.float32)
                with torch.no_grad(), torch.autocast(gradient_BSD.device.type, enabled=False):
                    observer(
                        layer,
                        output_BSD.detach().unflatten(-1, (encoder.num_heads, -1)).to(dtype),
                        gradient_BSD.unflatten(-1, (encoder.num_heads, -1)).to(dtype),
                        family.values(site, projected_BSD, encoder.num_heads).to(dtype),
                    )

            gated_BSD.register_hook(receive)
            return gated_BSD

        with at_inputs(encoder.distinct_sites, "projection", attach):
            yield


def replacement_slopes(output_BSHd: Tensor, gradient_BSHd: Tensor, new_BSHd: Tensor | None) -> Tensor:
    """First-order change of a loss or logit if heads' outputs were replaced, ``[B, H]``: sum over tokens of g . (r -
    o).

    Args:
        output_BSHd: The heads' outputs o.
        gradient_BSHd: The gradient g with respect to them.
        new_BSHd: The replacement r, with S = 1 if it is the same at every token; None for zero.
    """
    current_BH = (gradient_BSHd * output_BSHd).sum((1, 3))
    if new_BSHd is None:
        return -current_BH
    if new_BSHd.shape[1] == 1:
        return (gradient_BSHd.sum(1) * new_BSHd[:, 0]).sum(-1) - current_BH
    return (gradient_BSHd * new_BSHd).sum((1, 3)) - current_BH


def weight_gradient_norms(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    loss: Callable[[Tensor], Tensor],
    context: Autocast = nullcontext,
) -> Tensor:
    """Frobenius norms of the gradient with respect to each head's query, key and value weights, ``[layers, heads, 3]``.

    Layers that share weights (ALBERT) share their gradient. No parameter receives a gradient; frozen parameters are
    allowed.

    Args:
        model: Any module that contains a transformers encoder with a task head, in evaluation mode.
        inputs: The model's keyword arguments, on its device.
        loss: Maps logits to a scalar.
        context: Context manager for the forward pass, e.g. the trainer's autocast.

    Raises:
        UserError: If the model's family has no adapter, or its heads do not have separate query, key and value weights.
    """
    encoder = describe(model)
    check_adapter(encoder, "Gradients of heads' weights need")
    assert encoder.family is not None
    weights_L = []
    for site in encoder.sites:
        *weights, _ = encoder.family.head_weights(site, encoder.num_heads)
        if len(weights) != 3:
            raise UserError(
                f"Model type '{encoder.base.config.model_type}' has one map for queries, keys and values, or heads "
                "that share keys; remove the measure weight_gradient, or give a model with separate maps, such as "
                "BERT."
            )
        weights_L.append(weights)
    parameters = {id(parameter): parameter for weights in weights_L for parameter, _, _ in weights}
    # Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
    with torch.inference_mode(False), torch.enable_grad(), requiring_gradients(encoder.model, parameters.values()):
        with context():
            value = loss(output_of(encoder.model, inputs))
        slopes = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    slope_of = dict(zip(parameters, slopes, strict=True))
    norms_L = []
    for weights in weights_L:
        norms_3 = []
        for parameter, shape, dimension in weights:
            slope = slope_of[id(parameter)]
            # A head that the loss does not depend on has a gradient of zero.
            slope = torch.zeros_like(parameter) if slope is None else slope
            norms_3.append(slope.float().view(shape).movedim(dimension, 0).flatten(1).norm(dim=1))
        norms_L.append(torch.stack(norms_3, -1))
    return torch.stack(norms_L).detach()
