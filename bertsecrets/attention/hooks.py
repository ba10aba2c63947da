"""Shared code of watching and overriding: the current layer of a forward pass, and listeners on attention calls."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder
from bertsecrets.models.families.base import AttentionSite

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
        # A mask may be shared by all heads.
        mask = self.mask[:, heads] if self.mask is not None and self.mask.shape[1] > 1 else self.mask
        dtype = torch.promote_types(query_BHQd.dtype, torch.float32)
        with torch.autocast(query_BHQd.device.type, enabled=False):
            # In place, because maps are the largest tensors.
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

_verified: WeakSet[nn.Module] = WeakSet()
"""Attention modules with a checked call."""
_VERIFIED_ROWS = 8

_owners: WeakKeyDictionary[nn.Module, list[threading.Thread]] = WeakKeyDictionary()
"""The thread that tracks each encoder, once per open context."""
_owners_lock = threading.Lock()

_eager_lock = threading.Lock()
_eager_contexts = 0
_eager_stance = ExitStack()


class ForwardPass:
    """The current layer and the attention mask of the forward pass that is running in one encoder.

    A module shared by several layers (ALBERT) computes them in the order of its calls. Outside a forward pass, for
    example when gradient checkpointing recomputes a layer, there is no current layer.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._layers_of: dict[int, list[int]] = {}
        for layer, site in enumerate(encoder.sites):
            self._layers_of.setdefault(id(site.module), []).append(layer)
        self._calls: dict[int, int] = {}
        # Callers pass the mask by position or by name; the signature resolves it.
        self._signature = inspect.signature(type(encoder.base).forward)
        self._other_positions = () if encoder.family is None else encoder.family.other_positions
        self._mask_BS: Tensor | None = None
        self._ids_BS: Tensor | None = None
        self._running = False
        self._handles = [
            encoder.base.register_forward_pre_hook(self._begin, with_kwargs=True),
            # Also after an error, so that a failed pass leaves no current layer behind.
            encoder.base.register_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Hooks and the current layer are shared by all threads, so a second thread would get the first one's edits.
        _check_owner(module)
        arguments = self._signature.bind_partial(module, *args, **kwargs).arguments
        for name in self._other_positions:
            if arguments.get(name) is not None:
                raise UserError(
                    f"The model received {name}, whose positions are not tokens of the text, so heads cannot be "
                    "watched or replaced; remove it."
                )
        self._mask_BS = arguments.get("attention_mask", kwargs.get("attention_mask"))
        self._ids_BS = arguments.get("input_ids", kwargs.get("input_ids"))
        self._calls.clear()
        self._running = True

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        # Mask and ids are kept, because gradient checkpointing recomputes layers after the pass.
        self._running = False

    def layer(self, attention: nn.Module) -> int | None:
        """The layer that this call of an attention module computes; None for a foreign module or outside a pass."""
        layers = self._layers_of.get(id(attention))
        if layers is None or not self._running:
            return None
        return layers[self._calls.get(id(attention), 0)]

    def finish_call(self, attention: nn.Module) -> int | None:
        """The layer of a finished call, as :meth:`layer`; the module's next call computes its next layer."""
        layer = self.layer(attention)
        self._calls[id(attention)] = self._calls.get(id(attention), 0) + 1
        return layer

    def real_BS(self, output_BSX: Tensor) -> Tensor:
        """Which tokens of an output of the pass are real (not padding), bool."""
        if self._mask_BS is None:
            return torch.ones(output_BSX.shape[:2], dtype=torch.bool, device=output_BSX.device)
        return self._mask_BS.to(device=output_BSX.device, dtype=torch.bool)

    def is_token_BS(self, ids: Sequence[int], device: torch.device) -> Tensor:
        """Which tokens have one of these ids, bool; raises UserError if the pass received no ``input_ids``."""
        if self._ids_BS is None:
            raise UserError(
                "Modes 'redirect', 'cut' and 'isolate' find tokens by their ids; pass input_ids to the model."
            )
        ids_BS = self._ids_BS.to(device)
        return torch.isin(ids_BS, torch.tensor(list(ids), dtype=ids_BS.dtype, device=device))


@contextmanager
def follow(encoder: Encoder) -> Iterator[ForwardPass]:
    """Track the encoder's forward passes while open; compiled code runs eagerly inside.

    Contexts nest within a thread. Other threads can neither track nor call the model meanwhile.

    Raises:
        UserError: If another thread tracks the encoder.
    """
    with eager_execution(), _owned(encoder.base):
        forward_pass = ForwardPass(encoder)
        try:
            yield forward_pass
        finally:
            forward_pass.close()


@contextmanager
def at_inputs(
    sites: Iterable[AttentionSite],
    part: Literal["projection", "probabilities"],
    listener: Callable[[AttentionSite, Tensor], Tensor | None],
) -> Iterator[None]:
    """Call ``listener(site, tensor)`` with the input of a part of every site while open; its return value replaces the
    input.

    The input of the projection is the heads' outputs ``[B, S, H * d]``; the input of the probability dropout is their
    maps. If the listener returns None, the input is unchanged.
    """
    with ExitStack() as stack:
        for site in sites:

            def hook(_: nn.Module, args: tuple[Tensor, ...], site: AttentionSite = site) -> tuple[Tensor, ...] | None:
                changed = listener(site, args[0])
                return None if changed is None else (changed, *args[1:])

            module: nn.Module = getattr(site, part)
            stack.callback(module.register_forward_pre_hook(hook).remove)
        yield


@contextmanager
def keeping_values(sites: Iterable[AttentionSite]) -> Iterator[dict[int, Tensor]]:
    """The latest output of each site's value map, ``[B, S, D]``, by the id of the attention module; to be removed when
    used.
    """
    projected: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for site in sites:

            def keep(_: nn.Module, args: Any, projected_BSD: Tensor, key: int = id(site.module)) -> None:
                projected[key] = projected_BSD

            assert site.value is not None
            stack.callback(site.value.register_forward_hook(keep).remove)
        yield projected


@contextmanager
def _owned(base: nn.Module) -> Iterator[None]:
    thread = threading.current_thread()
    with _owners_lock:
        _check_owner(base)
        _owners.setdefault(base, []).append(thread)
    try:
        yield
    finally:
        with _owners_lock:
            _owners[base].remove(thread)


def _check_owner(base: nn.Module) -> None:
    thread = threading.current_thread()
    # All contexts of an encoder belong to one thread, given by the first.
    owner = next(iter(_owners.get(base, ())), thread)
    if owner is not thread:
        raise UserError(
            f"Thread '{thread.name}' uses a model whose heads are watched or overridden in thread '{owner.name}'; use "
            "the model in one thread at a time, or give each thread a copy, e.g. copy.deepcopy(model)."
        )


@contextmanager
def eager_execution() -> Iterator[None]:
    """Run ``torch.compile``d code as plain Python while open, in the whole process.

    A compiled graph ignores hooks that were registered after compilation, so an override would silently have no
    effect. Contexts are counted, so threads may overlap.
    """
    global _eager_contexts
    with _eager_lock:
        # Without compiled code, do not import the compiler, which would take seconds.
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
            # Only for the outermost listener, so that the caller's implementation is restored.
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
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    mask, queries, keys = attention_mask, query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    # If the library passes a mask, it includes the order; a single query attends to all tokens before it.
    if mask is None and causal and queries > 1:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)[None, None]
    if position_bias is not None:
        kwargs["position_bias"] = position_bias
    output_BSHd, _ = sdpa_attention_forward(
        # SDPA treats a module without an is_causal attribute as causal; the mask already contains the order.
        module,
        query,
        key,
        value,
        mask,
        scaling=scaling,
        dropout=dropout,
        is_causal=False,
        **kwargs,
    )
    # Several heads may share keys and values (grouped-query attention).
    if (sharing := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(sharing, 1), value.repeat_interleave(sharing, 1)
    if scaling is None:
        scaling = float(query.shape[-1]) ** -0.5
    if position_bias is not None and mask is not None:
        # One additive mask, in T5.
        hidden = torch.finfo(position_bias.dtype).min
        position_bias = torch.where(mask, position_bias, hidden) if mask.dtype == torch.bool else mask + position_bias
    biased = mask if position_bias is None else position_bias
    call = AttentionCall(module, query, key, value, biased, scaling, output_BSHd)
    # Once per module, and not under dropout, whose output is not the product of map and values.
    if module not in _verified and not dropout:
        _verify(call)
        _verified.add(module)
    # A copy, because contexts may open and close while a pass runs.
    for listener in tuple(_listeners.get(module, ())):
        output_BSHd = listener(replace(call, output_BSHd=output_BSHd))
    return output_BSHd, None


@torch.no_grad()
def _verify(call: AttentionCall) -> None:
    """Check on some rows of a module's first call that its map times its values equals its output.

    Raises:
        UserError: If not, because something outside the call affects the weights.
    """
    mask = call.mask
    if mask is not None:
        mask = mask[:1, :, :_VERIFIED_ROWS]
    rows = replace(
        call,
        query_BHQd=call.query_BHQd[:1, :, :_VERIFIED_ROWS],
        key_BHKd=call.key_BHKd[:1],
        value_BHKd=call.value_BHKd[:1],
        mask=mask,
    )
    value_BHKd = rows.value_BHKd
    attention_BHQK = rows.attention_BHQK()
    expected_BHQd = attention_BHQK @ value_BHKd.to(attention_BHQK.dtype)
    error_BHQ = (call.output_BSHd[:1, :_VERIFIED_ROWS].transpose(1, 2) - expected_BHQd).abs().amax(-1)
    if mask is not None:
        # SDPA's output for a row without any allowed key corresponds to no map.
        allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        error_BHQ = error_BHQ * allowed.any(-1)
    # Half-precision and TF32 kernels differ more from a float32 product.
    exact = call.output_BSHd.dtype in (torch.float32, torch.float64) and call.output_BSHd.device.type == "cpu"
    if error_BHQ.max() > (1e-3 if exact else 0.05) * value_BHKd.abs().max():
        raise UserError(
            f"{type(call.module).__name__} computes attention in a way that its map does not reflect, so its heads "
            "can be neither watched nor overridden; report the model type."
        )


AttentionInterface.register(_IMPLEMENTATION, _attend)
# Without a mask function of the same name, the library passes no mask, so padding would be attended to.
AttentionMaskInterface.register(_IMPLEMENTATION, sdpa_mask)


def mean_over_real(values_BSHd: Tensor, real_BS: Tensor) -> Tensor:
    """Mean of each head's values over the real tokens, ``[B, H, d]``: the output of uniform attention."""
    weight_BS11 = real_BS.to(values_BSHd.dtype)[:, :, None, None]
    return (values_BSHd * weight_BS11).sum(1) / weight_BS11.sum(1)
