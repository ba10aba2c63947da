"""Our entry in the library's attention interface: SDPA's output, with a listener beside it.

The output is computed by the library's own SDPA function from the same arguments, so that a model's numbers do not
depend on whether it is watched. It is registered together with a mask function: without one the library passes no
mask at all, and padding is attended to.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "bertsecrets"

Listener = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor | None, float, Tensor], Tensor]
"""``(module, query, key, value, mask, scaling, output_BSHd) -> output_BSHd``: sees one attention call."""

_listeners: weakref.WeakKeyDictionary[nn.Module, list[Listener]] = weakref.WeakKeyDictionary()
_implementation_before: weakref.WeakKeyDictionary[PreTrainedModel, str] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


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
        output_BSHd = listener(module, query, key, value, attention_mask, scaling, output_BSHd)
    return output_BSHd, None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def listening(base: PreTrainedModel, modules: list[nn.Module], listener: Listener) -> Iterator[None]:
    """While open, ``listener`` sees every attention call of ``modules``, which belong to ``base``."""
    with _lock:
        if not any(_listeners.get(module) for module in modules):
            _implementation_before[base] = base.config._attn_implementation
            base.set_attn_implementation(NAME)
        for module in modules:
            _listeners.setdefault(module, []).append(listener)
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                _listeners[module].remove(listener)
            if not any(_listeners.get(module) for module in modules):
                base.set_attn_implementation(_implementation_before.pop(base))
