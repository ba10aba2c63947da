"""The generic path: finds the layers of a family that has no adapter by watching one tiny batch go through."""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import AttentionSite

_PROBE = "bertsecrets_probe"


def generic_sites(base: PreTrainedModel) -> tuple[list[nn.Module], list[AttentionSite]]:
    """Layers and attention modules of a model, in the order in which a forward pass calls them.

    Raises:
        UserError: If the model computes its attention without the library's attention interface.
    """
    called: list[nn.Module] = []

    def record(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        called.append(module)
        return sdpa_attention_forward(module, *args, **kwargs)

    AttentionInterface.register(_PROBE, record)
    AttentionMaskInterface.register(_PROBE, sdpa_mask)
    before, training = base.config._attn_implementation, base.training
    device = next(base.parameters()).device
    try:
        base.set_attn_implementation(_PROBE)
        base.eval()
        with torch.no_grad():
            base(input_ids=torch.ones(1, 4, dtype=torch.long, device=device))
    finally:
        base.set_attn_implementation(before)
        base.train(training)
    if not called:
        raise UserError(
            f"Model type '{base.config.model_type}' has no adapter and does not use the library's attention "
            "interface, so its heads cannot be watched; add an adapter in bertsecrets/models/families."
        )
    return [_layer_of(base, module) for module in called], [AttentionSite(module) for module in called]


def _layer_of(base: PreTrainedModel, attention: nn.Module) -> nn.Module:
    """The member of a ModuleList that holds an attention module: the outermost one is the layer."""
    for module in base.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(child is attention for child in layer.modules()):
                    return layer
    return attention
