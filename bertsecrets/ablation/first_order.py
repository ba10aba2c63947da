"""The effect of every variant on every logit to first order: one forward and one backward pass for each logit but one."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.partial_passes import CleanLayer, clean_pass, repeat_rows, return_freed_memory, wide
from bertsecrets.attention.head_outputs import mean_over_real, output_gradients, replacement_slopes
from bertsecrets.models.encoder import evaluating

_LESS_THAN_A_PASS = 4
"""A pass for slopes has so many times fewer tokens than one of the engine, as it keeps the activations of all layers."""


class FirstOrder(NamedTuple):
    """The unedited pass of a batch and the estimated effect of every variant.

    Args:
        clean_BC: Logits of the unedited model, float32 or wider.
        change_BVC: Estimated changes of every variant's logits. Only differences of logits matter: the change of the first
            one is 0, and those of the others are relative to it.
        layers: What exact evaluations reuse of each layer of the unedited pass.
    """

    clean_BC: Tensor
    change_BVC: Tensor
    layers: list[CleanLayer]


# Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
@torch.inference_mode(False)
def first_order_changes(
    engine: Engine,
    inputs: Mapping[str, Tensor],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    rough: Callable[[], AbstractContextManager[Any]] | None = None,
) -> FirstOrder:
    """Logits of the unedited model, the estimated changes of every variant's, and the layers of the unedited pass.

    With o a head's output at a token, r what the mode puts in its place and g the slope of a logit: the sum over tokens of
    g . (r - o), added up over the heads of a variant (attribution patching, Nanda 2023).

    Args:
        engine: The engine; its plan's mode is one of :data:`bertsecrets.ablation.pairs.MODES_OF_PAIRS`.
        inputs: Keyword arguments of the model with ``attention_mask``, on its device.
        context: Context manager of the unedited pass, e.g. the trainer's autocast.
        rough: Context manager of the passes for the slopes, e.g. autocast to bf16; None for ``context``. These passes take a
            few rows at a time, as they keep the activations of all layers.
    """
    inputs = {name: value.clone() for name, value in inputs.items()}
    rows, length = inputs["attention_mask"].shape
    size = max(1, engine.max_tokens // _LESS_THAN_A_PASS // length)
    changes = []
    for first in range(0, rows, size):
        part = {name: repeat_rows(value, rows, first, first + size, 1) for name, value in inputs.items()}
        changes.append(_changes_BVC(engine, part, rough or context))
        return_freed_memory()
    with torch.no_grad(), evaluating(engine.encoder.model), context():
        clean_BC, layers = clean_pass(engine.encoder, inputs)
    return FirstOrder(wide(clean_BC), torch.cat(changes).to(wide(clean_BC)), layers)


def _changes_BVC(
    engine: Engine, inputs: Mapping[str, Tensor], context: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    encoder, mode = engine.encoder, engine.plan.mode
    real_BS = inputs["attention_mask"].bool()
    slopes: list[Tensor] = []
    network = encoder.model
    with evaluating(network):
        for column in range(1, int(network.config.num_labels or 2)):
            slope_LBH = torch.zeros(encoder.num_layers, len(real_BS), encoder.num_heads, device=engine.device)

            def observe(
                layer: int,
                output_BSHd: Tensor,
                gradient_BSHd: Tensor,
                value_BSHd: Tensor,
                slope_LBH: Tensor = slope_LBH,
            ) -> None:
                new_BHd = None
                if mode == "uniform":
                    new_BHd = mean_over_real(value_BSHd, real_BS)
                elif mode != "zero":
                    assert engine.constants_LHd is not None
                    new_BHd = engine.constants_LHd[layer].to(output_BSHd)[None]
                slope_LBH[layer] = replacement_slopes(output_BSHd, gradient_BSHd, new_BHd).to(slope_LBH.dtype)

            def difference(logits_BC: Tensor, column: int = column) -> Tensor:
                return (logits_BC[:, column] - logits_BC[:, 0]).sum()

            output_gradients(network, inputs, difference, observe, context)
            slopes.append(slope_LBH)
    edited_VLH = torch.zeros(len(engine.edits_VL), encoder.num_layers, encoder.num_heads, device=engine.device)
    for variant, edits in enumerate(engine.edits_VL):
        for layer, heads in enumerate(edits):
            edited_VLH[variant, layer, list(heads)] = 1.0
    changes = [torch.einsum("lbh,vlh->bv", slope_LBH, edited_VLH) for slope_LBH in slopes]
    return torch.stack([torch.zeros_like(changes[0]), *changes], -1)
