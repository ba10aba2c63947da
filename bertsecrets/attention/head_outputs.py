"""Gradients of a loss with respect to every head's output, at the input of the attention output projection."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from bertsecrets.attention.gradients import in_graph
from bertsecrets.attention.hooks import ForwardPass, at_inputs, follow, keeping_values
from bertsecrets.models.encoder import Autocast, Encoder, check_adapter, describe
from bertsecrets.models.families.base import AttentionSite
from bertsecrets.task_heads.base import output_of

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


def mean_over_real(values_BSHd: Tensor, real_BS: Tensor) -> Tensor:
    """Mean of each head's values over the real tokens, ``[B, H, d]``: the output of uniform attention."""
    weight_BS11 = real_BS.to(values_BSHd.dtype)[:, :, None, None]
    return (values_BSHd * weight_BS11).sum(1) / weight_BS11.sum(1)
