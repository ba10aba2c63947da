"""The generic path: find the layers of a family without an adapter by running one tiny batch through the model."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import AttentionSite

_PROBE = "bertsecrets_probe"


@dataclass(frozen=True)
class Layout:
    """What a forward pass reveals about a model.

    Args:
        layers, sites: The layers and the attention site of each, in the order of their calls.
        num_heads: Heads per layer.
        head_dim: Width of a head's output, which may differ from the hidden size divided by the number of heads.
    """

    layers: tuple[nn.Module, ...]
    sites: tuple[AttentionSite, ...]
    num_heads: int
    head_dim: int


_layouts: WeakKeyDictionary[nn.Module, Layout] = WeakKeyDictionary()


def generic_layout(base: PreTrainedModel) -> Layout:
    """The layers, attention sites and heads of a model without an adapter; probed once per model.

    Raises:
        UserError: If the model does not use the library's attention interface.
    """
    # Cached, because a probe runs the model, and a sweep opens thousands of contexts.
    layout = _layouts.get(base)
    if layout is None:
        modules, num_heads, head_dim = _probe(base)
        layers = tuple(_layer_of(base, module) for module in modules)
        layout = _layouts[base] = Layout(layers, tuple(map(AttentionSite, modules)), num_heads, head_dim)
    return layout


def _probe(base: PreTrainedModel) -> tuple[list[nn.Module], int, int]:
    """The attention modules called by one forward pass, in order, their number of heads and the head width.

    Mode and attention implementation are restored.
    """
    called: list[nn.Module] = []
    shape: tuple[int, int] = 0, 0

    def record(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        nonlocal shape
        called.append(module)
        output_BSHd, _ = sdpa_attention_forward(module, *args, **kwargs)
        shape = output_BSHd.shape[2], output_BSHd.shape[3]
        return output_BSHd, None

    AttentionInterface.register(_PROBE, record)
    AttentionMaskInterface.register(_PROBE, sdpa_mask)
    implementation, training = base.config._attn_implementation, base.training
    device = next(base.parameters()).device
    try:
        base.set_attn_implementation(_PROBE)
        base.eval()
        with torch.no_grad():
            # Four real tokens: id 1 is in every vocabulary, and its meaning does not matter.
            base(input_ids=torch.ones(1, 4, dtype=torch.long, device=device))
    finally:
        base.set_attn_implementation(implementation)
        base.train(training)
    if not called:
        raise UserError(
            f"Model type '{base.config.model_type}' has no adapter and does not use the library's attention "
            "interface, so its heads cannot be watched; add an adapter in bertsecrets/models/families."
        )
    return called, *shape


def _layer_of(base: PreTrainedModel, attention: nn.Module) -> nn.Module:
    """The layer that contains an attention module: the member of the outermost ModuleList."""
    for module in base.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                # Outermost first, as modules() goes from the top: inner lists, such as experts, hold parts of a layer.
                if any(child is attention for child in layer.modules()):
                    return layer
    return attention
