"""Gradients of a loss with respect to each head's own query, key and value weights."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, check_adapter, describe, requiring_gradients
from bertsecrets.task_heads.base import output_of


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
