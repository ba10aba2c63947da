"""First-order effect of every variant on every logit: one forward and one backward pass for each logit except one."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.partial_passes import parts_within, pick_rows, return_freed_memory
from bertsecrets.attention.head_outputs import mean_over_real, output_gradients, replacement_slopes
from bertsecrets.models.encoder import Autocast, evaluating

_LESS_THAN_A_PASS = 4
"""A pass for slopes takes this many times fewer tokens than a pass of the engine, as it keeps the activations of all
layers.
"""


# Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
@torch.inference_mode(False)
def first_order_changes(
    engine: Engine,
    inputs: Mapping[str, Tensor],
    context: Autocast = nullcontext,
) -> Tensor:
    """Estimated changes of every variant's logits, ``[B, V, C]``, float32.

    With a head's output o at a token, the mode's replacement r, and the slope g of a logit: the sum of g . (r - o) over
    tokens and over the heads of a variant (attribution patching, Nanda 2023). Only differences between logits matter,
    so each logit's change is relative to that of the first, which is 0.

    The passes take a few rows at a time, as they keep the activations of all layers.

    Args:
        engine: The engine; its plan's mode is one that :func:`bertsecrets.ablation.pairs.can_run_pairs` allows.
        inputs: Keyword arguments of the model with ``attention_mask``, on its device.
        context: Context manager of the forward passes, e.g. autocast.
    """
    # Copies, because tensors created in inference mode cannot be saved for a backward pass.
    inputs = {name: value.clone() for name, value in inputs.items()}
    rows, length = inputs["attention_mask"].shape
    edited_VLH = engine.edited_VLH.float().to(engine.device)
    changes = []
    for row_R in parts_within(rows, length, engine.max_tokens // _LESS_THAN_A_PASS):
        part = {name: pick_rows(value, rows, row_R.to(engine.device)) for name, value in inputs.items()}
        slopes = _slopes_LBH(engine, part, context)
        parts = [torch.einsum("lbh,vlh->bv", slope_LBH, edited_VLH) for slope_LBH in slopes]
        changes.append(torch.stack([torch.zeros_like(parts[0]), *parts], -1))
        return_freed_memory(engine.device)
    return torch.cat(changes)


def _slopes_LBH(engine: Engine, inputs: Mapping[str, Tensor], context: Autocast) -> list[Tensor]:
    """The first-order effect of every head on each logit except the first, relative to the first."""
    encoder = engine.encoder
    real_BS = inputs["attention_mask"].bool()
    slopes: list[Tensor] = []
    network = encoder.model
    with evaluating(network):
        # Only differences between logits matter, so one pass fewer than there are classes is enough.
        for column in range(1, int(network.config.num_labels or 2)):
            slope_LBH = torch.zeros(encoder.num_layers, len(real_BS), encoder.num_heads, device=engine.device)

            def observe(
                layer: int,
                output_BSHd: Tensor,
                gradient_BSHd: Tensor,
                value_BSHd: Tensor,
                slope_LBH: Tensor = slope_LBH,
            ) -> None:
                new_BSHd = engine.replacement(layer, output_BSHd, lambda: mean_over_real(value_BSHd, real_BS))
                slope_LBH[layer] = replacement_slopes(output_BSHd, gradient_BSHd, new_BSHd).to(slope_LBH.dtype)

            def difference(logits_BC: Tensor, column: int = column) -> Tensor:
                return (logits_BC[:, column] - logits_BC[:, 0]).sum()

            output_gradients(network, inputs, difference, observe, context)
            slopes.append(slope_LBH)
    return slopes
