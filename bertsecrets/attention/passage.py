"""Follows a forward pass through an encoder: which layer runs now, and which of its tokens are real."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bertsecrets.models.encoder import Encoder


class Passage:
    """The state of the forward pass that is under way in one encoder.

    A module that serves several layers (ALBERT) is told apart by the order of its calls. Outside a forward pass
    (when gradient checkpointing computes a layer again, for one) there is no current layer.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._layers_of: dict[int, list[int]] = {}
        for layer, site in enumerate(encoder.sites):
            self._layers_of.setdefault(id(site.module), []).append(layer)
        self._calls: dict[int, int] = {}
        self._signature = inspect.signature(type(encoder.base).forward)
        self._mask_BS: Tensor | None = None
        self.under_way = False
        self._handles: list[RemovableHandle] = [
            encoder.base.register_forward_pre_hook(self._begin, with_kwargs=True),
            encoder.base.register_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = self._signature.bind_partial(module, *args, **kwargs).arguments
        self._mask_BS = arguments.get("attention_mask", kwargs.get("attention_mask"))
        self._calls.clear()
        self.under_way = True

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        # The mask stays: gradient checkpointing computes layers again after the pass, and they need it.
        self.under_way = False

    def layer(self, attention: nn.Module) -> int | None:
        """The layer that this call of an attention module computes, or None if it is not ours or outside a pass."""
        layers = self._layers_of.get(id(attention))
        if layers is None or not self.under_way:
            return None
        return layers[self._calls.get(id(attention), 0)]

    def leave(self, attention: nn.Module) -> None:
        """Notes that the call of an attention module has ended, so that its next call is its next layer."""
        self._calls[id(attention)] = self._calls.get(id(attention), 0) + 1

    def real_BS(self, batch: int, length: int, device: torch.device) -> Tensor:
        """Which tokens are real, bool."""
        if self._mask_BS is None:
            return torch.ones(batch, length, dtype=torch.bool, device=device)
        return self._mask_BS.to(device=device, dtype=torch.bool)
