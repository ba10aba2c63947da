"""What watching and overriding share: the current layer of a forward pass, and listeners on attention calls."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder

_IMPLEMENTATION = "bertsecrets"
"""Name of our attention function in the library's attention interface."""


@dataclass(frozen=True)
class AttentionCall:
    """One call of an encoder's attention function.

    Args:
        module: The attention module that called.
        query_BHQd, key_BHKd, value_BHKd: The heads' projections.
        mask: None, boolean (True: may be attended to) or additive, broadcastable to the map.
        scaling: Factor of the products of queries and keys.
        output_BSHd: The heads' outputs.
    """

    module: nn.Module
    query_BHQd: Tensor
    key_BHKd: Tensor
    value_BHKd: Tensor
    mask: Tensor | None
    scaling: float
    output_BSHd: Tensor

    def attention_BHQK(self, heads: slice = slice(None)) -> Tensor:
        """Attention weights of the heads, in float32 or wider even under autocast; differentiable."""
        query_BHQd, key_BHKd = self.query_BHQd[:, heads], self.key_BHKd[:, heads]
        # A mask may have one map for all heads.
        mask = self.mask[:, heads] if self.mask is not None and self.mask.shape[1] > 1 else self.mask
        dtype = torch.promote_types(query_BHQd.dtype, torch.float32)
        with torch.autocast(query_BHQd.device.type, enabled=False):
            scores_BHQK = torch.matmul(query_BHQd.to(dtype), key_BHKd.to(dtype).transpose(-1, -2)).mul_(self.scaling)
            if mask is not None:
                if mask.dtype == torch.bool:
                    scores_BHQK.masked_fill_(~mask, torch.finfo(dtype).min)
                else:
                    scores_BHQK += mask
            return torch.softmax(scores_BHQK, dim=-1)


Listener = Callable[[AttentionCall], Tensor]
"""Called at every attention call; returns the heads' outputs, changed or not."""

_listeners: WeakKeyDictionary[nn.Module, list[Listener]] = WeakKeyDictionary()
_previous_implementation: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()
_listeners_lock = threading.RLock()

_eager_lock = threading.Lock()
_eager_contexts = 0
_eager_stance = ExitStack()


class ForwardPass:
    """The current layer and the attention mask of the forward pass that is running in one encoder.

    A module that serves several layers (ALBERT) computes them in the order of its calls. There is no current layer
    outside a forward pass, for example when gradient checkpointing recomputes a layer.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._layers_of: dict[int, list[int]] = {}
        for layer, site in enumerate(encoder.sites):
            self._layers_of.setdefault(id(site.module), []).append(layer)
        self._calls: dict[int, int] = {}
        self._signature = inspect.signature(type(encoder.base).forward)
        self._mask_BS: Tensor | None = None
        self._ids_BS: Tensor | None = None
        self._running = False
        self._handles = [
            encoder.base.register_forward_pre_hook(self._begin, with_kwargs=True),
            encoder.base.register_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = self._signature.bind_partial(module, *args, **kwargs).arguments
        self._mask_BS = arguments.get("attention_mask", kwargs.get("attention_mask"))
        self._ids_BS = arguments.get("input_ids", kwargs.get("input_ids"))
        self._calls.clear()
        self._running = True

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        # Mask and ids are kept: gradient checkpointing recomputes layers after the pass, and they need them.
        self._running = False

    def layer(self, attention: nn.Module) -> int | None:
        """The layer that this call of an attention module computes; None for a foreign module or outside a pass."""
        layers = self._layers_of.get(id(attention))
        if layers is None or not self._running:
            return None
        return layers[self._calls.get(id(attention), 0)]

    def finish_call(self, attention: nn.Module) -> None:
        """Record that a call of an attention module has ended: its next call computes its next layer."""
        self._calls[id(attention)] = self._calls.get(id(attention), 0) + 1

    def real_BS(self, batch: int, length: int, device: torch.device) -> Tensor:
        """Which tokens are real (not padding), bool."""
        if self._mask_BS is None:
            return torch.ones(batch, length, dtype=torch.bool, device=device)
        return self._mask_BS.to(device=device, dtype=torch.bool)

    def is_token_BS(self, ids: Sequence[int], device: torch.device) -> Tensor:
        """Which tokens have one of these ids, bool; raises UserError if the pass got no ``input_ids``."""
        if self._ids_BS is None:
            raise UserError(
                "Modes 'redirect', 'cut' and 'isolate' find tokens by their ids; pass input_ids to the model."
            )
        ids_BS = self._ids_BS.to(device)
        return torch.isin(ids_BS, torch.tensor(list(ids), dtype=ids_BS.dtype, device=device))


@contextmanager
def follow(encoder: Encoder) -> Iterator[ForwardPass]:
    """Follow the encoder's forward passes while open; compiled code runs eagerly inside."""
    with eager_execution():
        forward_pass = ForwardPass(encoder)
        try:
            yield forward_pass
        finally:
            forward_pass.close()


@contextmanager
def eager_execution() -> Iterator[None]:
    """Run ``torch.compile``d code as plain Python while open, in the whole process.

    A compiled graph ignores hooks that were registered after compilation, so an override would silently have no
    effect. Contexts are counted, so threads may overlap.
    """
    global _eager_contexts
    with _eager_lock:
        # Without compiled code the compiler is not imported either: that would take seconds.
        if _eager_contexts == 0 and "torch._dynamo" in sys.modules:
            _eager_stance.enter_context(torch.compiler.set_stance("force_eager"))
        _eager_contexts += 1
    try:
        yield
    finally:
        with _eager_lock:
            _eager_contexts -= 1
            if _eager_contexts == 0:
                _eager_stance.close()


@contextmanager
def listening(encoder: Encoder, listener: Listener) -> Iterator[None]:
    """Call ``listener`` at every attention call of the encoder while open.

    The output comes from the library's own SDPA function with the same arguments, so watching does not change a
    model's numbers.
    """
    base, modules = encoder.base, [site.module for site in encoder.distinct_sites]
    with _listeners_lock:
        if not any(_listeners.get(module) for module in modules):
            _previous_implementation[base] = base.config._attn_implementation
            base.set_attn_implementation(_IMPLEMENTATION)
        for module in modules:
            _listeners.setdefault(module, []).append(listener)
    try:
        yield
    finally:
        with _listeners_lock:
            for module in modules:
                _listeners[module].remove(listener)
            if not any(_listeners.get(module) for module in modules):
                base.set_attn_implementation(_previous_implementation.pop(base))


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    output_BSHd, _ = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
    )
    if scaling is None:
        scaling = float(query.shape[-1]) ** -0.5
    for listener in tuple(_listeners.get(module, ())):
        output_BSHd = listener(AttentionCall(module, query, key, value, attention_mask, scaling, output_BSHd))
    return output_BSHd, None


AttentionInterface.register(_IMPLEMENTATION, _attend)
# Without a mask function of the same name the library passes no mask, and padding would be attended to.
AttentionMaskInterface.register(_IMPLEMENTATION, sdpa_mask)
