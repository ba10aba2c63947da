"""The mean output of every head over a reference set, for overriding with mode ``mean``."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.passage import Passage
from bertsecrets.attention.uncompiled import uncompiled
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import AttentionSite, describe


@torch.no_grad()
def mean_head_outputs(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """Mean over all real tokens of each head's output, ``[layers, heads, head width]`` float64.

    Args:
        model: Any module that holds a transformers encoder; put it in evaluation mode first.
        batches: Keyword arguments of the model, on its device.

    Raises:
        UserError: If there is no batch, the model is in training mode, or its family has no adapter.
    """
    encoder = describe(model)
    if encoder.base.training:
        raise UserError("Mean head outputs of a model in training mode would include dropout; call model.eval() first.")
    if encoder.family is None:
        raise UserError(
            f"Mode 'mean' needs an adapter, and model type '{encoder.base.config.model_type}' has none; "
            "use another mode or add an adapter in bertsecrets/models/families."
        )
    device = next(encoder.base.parameters()).device
    total_LHd = torch.zeros(encoder.num_layers, encoder.num_heads, encoder.head_dim, dtype=torch.float64, device=device)
    count = 0
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        passage = Passage(encoder)
        stack.callback(passage.close)
        for site in {id(site.module): site for site in encoder.sites}.values():

            def add(_: nn.Module, args: tuple[Tensor, ...], site: AttentionSite = site) -> None:
                layer = passage.layer(site.module)
                passage.leave(site.module)
                if layer is not None:
                    output_BSHd = args[0].unflatten(-1, (encoder.num_heads, -1)).to(torch.float64)
                    real_BS = passage.real_BS(args[0].shape[0], args[0].shape[1], args[0].device)
                    total_LHd[layer] += output_BSHd[real_BS].sum(0)

            assert site.projection is not None
            stack.callback(site.projection.register_forward_pre_hook(add).remove)
        for batch in batches:
            inputs: dict[str, Any] = dict(batch)
            encoder.model(**inputs)
            count += int(inputs["attention_mask"].sum())
    if count == 0:
        raise UserError("The reference set is empty; mode 'mean' needs at least one example.")
    return total_LHd / count
