"""Gate attention: multiply every head's output by a number, at the input of the attention output projection."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from bertsecrets.attention.hooks import at_inputs, follow
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import check_adapter, describe
from bertsecrets.models.families.base import AttentionSite


@contextmanager
def gated(model: nn.Module, gates: Callable[[], Tensor]) -> Iterator[None]:
    """Multiply the output of every head by its gate while open; gradients flow to model and gates.

    A gate of 0 is override mode ``zero``, a gate of 1 changes nothing. Not for the disabling engine, whose partial
    passes would apply the gates twice.

    Args:
        model: Any module that contains a transformers encoder.
        gates: Called at the start of every forward pass of the encoder; returns ``[layers, heads]``, or ``[layers,
            heads, B]`` for separate gates per example of the batch.

    Raises:
        UserError: If the family has no adapter, or the gates have another shape.
    """
    encoder = describe(model)
    check_adapter(encoder, "Gates need")
    current: list[Tensor] = []

    def draw(*_: Any) -> None:
        gate_LH = gates()
        expected = [encoder.num_layers, encoder.num_heads]
        if list(gate_LH.shape[:2]) != expected or gate_LH.dim() not in (2, 3):
            raise UserError(f"The gates have shape {list(gate_LH.shape)}; this model needs {expected}.")
        current[:] = [gate_LH]

    with ExitStack() as stack:
        # Drawn before the pass starts, so that invalid gates do not leave a partial pass.
        stack.callback(encoder.base.register_forward_pre_hook(draw).remove)
        forward_pass = stack.enter_context(follow(encoder))

        def multiply(site: AttentionSite, output_BSD: Tensor) -> Tensor:
            layer = forward_pass.finish_call(site.module)
            if layer is None:
                # Gradient checkpointing recomputes a layer outside the pass, so its heads are gated again.
                if encoder.shares_layers:
                    raise UserError(
                        "A model with shared layers can only be gated in whole forward passes; call "
                        "model.gradient_checkpointing_disable() first."
                    )
                layer = encoder.sites.index(site)
            gate_H = current[0][layer]
            gate_BSHd = gate_H[:, None] if gate_H.dim() == 1 else gate_H.t()[:, None, :, None]
            output_BSHd: Tensor = output_BSD.unflatten(-1, (encoder.num_heads, -1))
            return (output_BSHd * gate_BSHd.to(output_BSD)).flatten(2)

        with at_inputs(encoder.distinct_sites, "projection", multiply):
            yield
