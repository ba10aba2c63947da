"""Logits of single pairs of a variant that edits one layer and an example: exact, and to first order."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from bertsecrets.ablation.engine import Engine, shares_passes
from bertsecrets.ablation.partial_passes import (
    CleanLayer,
    check_forward,
    clean_pass,
    first_of,
    is_out_of_memory,
    parts_within,
    pick_rows,
    read_output,
    return_freed_memory,
)
from bertsecrets.ablation.plan import Plan
from bertsecrets.attention.gradients import output_gradients, replacement_slopes
from bertsecrets.attention.hooks import mean_over_real
from bertsecrets.attention.modes import ModeNeed, find_mode
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, Encoder, evaluating
from bertsecrets.task_heads.base import first_places, wide


class Pairs:
    """Run chosen pairs of a variant and an example through the layers above the variant's edit.

    A pair costs the rest of the edited layer and the layers above it; the layers below come from the unedited pass,
    which runs once per batch. If the task head reads only the first token, the last layer is computed for that token
    only.

    Args:
        engine: An engine that shares layers; its plan's variants edit one layer each, in a mode that needs neither
            donors nor the values or weights of single tokens.

    Raises:
        ValueError: If the engine does not meet these conditions.
    """

    def __init__(self, engine: Engine) -> None:
        if not can_run_pairs(engine.encoder, engine.plan):
            raise ValueError(
                "pairs need variants of one layer each, a mode without donors, and a model whose passes can start at "
                "any layer"
            )
        self.engine = engine
        self.layer_V = [next(layer for layer, edit in enumerate(edits) if edit) for edits in engine.edits_VL]
        self.edited_VH = engine.edited_VLH.any(1).to(engine.device)

    @torch.no_grad()
    def begin(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[CleanLayer]]:
        """Run the unedited pass of a batch: its logits ``[B, C]``, float32 or wider, and what pairs reuse of each
        layer.

        Args:
            inputs: Keyword arguments of the model with ``attention_mask``, on its device.

        Raises:
            OwnForwardError: If the model's own forward gives logits that differ from those of its family's layers and
                head.
        """
        with evaluating(self.engine.encoder.model):
            clean_BC, layers = clean_pass(self.engine.encoder, inputs)
            encoder, real_BS = self.engine.encoder, inputs["attention_mask"].bool()
            check_forward(
                encoder,
                clean_BC,
                layers,
                real_BS,
                lambda hidden_BSD, real_BS, _: encoder.head(hidden_BSD, real_BS),
                read_BW=first_places(len(real_BS), real_BS.device) if encoder.first_token_decides else None,
            )
        return wide(clean_BC), layers

    @torch.no_grad()
    def run_above(
        self,
        clean_BC: Tensor,
        layers: list[CleanLayer],
        real_BS: Tensor,
        wanted_BV: Tensor,
        progress: Callable[[int], object] | None = None,
    ) -> Tensor:
        """Logits of the wanted pairs, ``[P, C]``, ordered by example and variant, from a recorded unedited pass.

        Args:
            clean_BC: Logits of the unedited model.
            layers: The recorded layers of its pass.
            real_BS: Which tokens are real, bool.
            wanted_BV: The pairs to run, bool.
            progress: Called with the number of newly completed pairs.

        Raises:
            UserError: If memory runs out for a single pair.
        """
        network = self.engine.encoder.model
        with evaluating(network):
            row_P, variant_P = wanted_BV.to(self.engine.device).nonzero(as_tuple=True)
            logits_PC = wide(clean_BC)[row_P]
            layer_P = torch.tensor(self.layer_V, device=row_P.device)[variant_P]
            for layer, clean in enumerate(layers):
                pair_rows = (layer_P == layer).nonzero()[:, 0]
                for part_R in parts_within(len(pair_rows), real_BS.shape[1], self.engine.max_tokens):
                    part = pair_rows[part_R.to(pair_rows.device)]
                    logits_PC[part] = self._run(layers, layer, clean, real_BS, row_P[part], variant_P[part])
                    if progress is not None:
                        progress(len(part))
            return_freed_memory(row_P.device)
            return logits_PC

    def _run(
        self, layers: list[CleanLayer], layer: int, clean: CleanLayer, real_BS: Tensor, row_R: Tensor, variant_R: Tensor
    ) -> Tensor:
        try:
            return self._through(layers, layer, clean, real_BS, row_R, variant_R)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(row_R) < 2:
                raise UserError(
                    f"Memory ran out for a single variant of an example of {real_BS.shape[1]} tokens; lower "
                    "task.training.batch_size or task.training.max_length."
                ) from error
        # Outside the except block, which would keep the failed pass's tensors alive.
        halves = zip(row_R.chunk(2), variant_R.chunk(2), strict=True)
        return torch.cat([self._run(layers, layer, clean, real_BS, *half) for half in halves])

    def _through(
        self, layers: list[CleanLayer], layer: int, clean: CleanLayer, real_BS: Tensor, row_R: Tensor, variant_R: Tensor
    ) -> Tensor:
        encoder, family = self.engine.encoder, self.engine.encoder.family
        assert family is not None
        last = encoder.num_layers - 1
        first_only = family.first_token_decides(encoder.model)
        tokens = slice(0, 1) if layer == last and first_only else slice(None)
        hidden_RSD, output_RSD = clean.hidden_BSD[row_R, tokens], clean.output_BSD[row_R, tokens]
        edited_R1H1 = self.edited_VH[variant_R][:, None, :, None]
        replaced_RSD = self.engine.replaced(layer, output_RSD, clean.value_BHd[row_R], edited_R1H1)
        hidden_RSD = family.after_heads(encoder.layers[layer], replaced_RSD, hidden_RSD)
        real_RS = real_BS[row_R]
        for above in range(layer + 1, encoder.num_layers):
            linears = family.linear_attention_inputs(encoder.sites[above]) if above == last and first_only else None
            if linears is not None:
                first_R1, bias_HQK = first_places(len(row_R), row_R.device), family.score_bias(layers[above].arguments)
                output_R1D = read_output(linears, hidden_RSD, first_R1, real_RS, encoder.num_heads, bias_HQK)
                hidden_RSD = family.after_heads(encoder.layers[above], output_R1D, hidden_RSD[:, :1])
            else:
                arguments = {
                    name: value if name in family.unbatched else pick_rows(value, len(real_BS), row_R)
                    for name, value in layers[above].arguments.items()
                }
                hidden_RSD = first_of(encoder.layers[above](hidden_RSD, **arguments))
        return wide(family.classify(encoder.model, hidden_RSD, real_RS[:, : hidden_RSD.shape[1]]))


def can_run_pairs(encoder: Encoder, plan: Plan) -> bool:
    """Whether single pairs of the plan can be run: each variant disables heads of one layer, in a mode that needs
    neither donors nor the values or weights of single tokens.
    """
    one_layer = all(len(variant.layers) == 1 and not variant.parts for variant in plan.variants)
    return one_layer and shares_passes(encoder, plan) and ModeNeed.DONORS not in find_mode(plan.mode).needs


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
