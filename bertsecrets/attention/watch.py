"""Watching: every attention map of a forward pass, layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from bertsecrets.attention.interface import listening
from bertsecrets.attention.passage import Passage
from bertsecrets.attention.uncompiled import uncompiled
from bertsecrets.models.encoder import Encoder, describe

Observer = Callable[[int, Tensor], None]


@contextmanager
def watch(model: nn.Module, observer: Observer) -> Iterator[None]:
    """While open, every forward pass calls ``observer(layer, attention_BHQK)`` for each layer in order.

    The maps are attention weights before dropout, float32 (float64 in a float64 model) and without gradient; rows of
    real tokens sum to one, padding receives exactly 0. One layer's maps are alive at a time, unless the observer
    keeps them. In a family that goes through the library's attention interface the model's output is bit-equal to
    SDPA's. Several observers may watch one model.

    Args:
        model: Any module that holds a transformers encoder. It may be compiled; compiled code runs plainly meanwhile.
        observer: Called outside autograd.

    Raises:
        UserError: If the model's family has no adapter and bypasses the attention interface.
    """
    encoder = describe(model)
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        passage = Passage(encoder)
        stack.callback(passage.close)
        if encoder.uses_interface:
            stack.enter_context(_through_interface(encoder, passage, observer))
        else:
            stack.enter_context(_through_probabilities(encoder, passage, observer))
        yield


@contextmanager
def _through_interface(encoder: Encoder, passage: Passage, observer: Observer) -> Iterator[None]:
    def listen(
        module: nn.Module,
        query_BHQd: Tensor,
        key_BHKd: Tensor,
        value_BHKd: Tensor,
        mask: Tensor | None,
        scaling: float,
        output_BSHd: Tensor,
    ) -> Tensor:
        layer = passage.layer(module)
        if layer is not None:
            observer(layer, attention_map(query_BHQd, key_BHKd, mask, scaling))
            passage.leave(module)
        return output_BSHd

    with listening(encoder.base, list({id(site.module): site.module for site in encoder.sites}.values()), listen):
        yield


@torch.no_grad()
def attention_map(query_BHQd: Tensor, key_BHKd: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Softmax of the scaled products, ``[B, H, Q, K]``, in float32 or wider whatever autocast says.

    ``mask`` is None, boolean (True: may be attended to) or additive, broadcastable to the map.
    """
    dtype = torch.promote_types(query_BHQd.dtype, torch.float32)
    with torch.autocast(query_BHQd.device.type, enabled=False):
        scores_BHQK = torch.matmul(query_BHQd.to(dtype), key_BHKd.to(dtype).transpose(-1, -2)).mul_(scaling)
        if mask is not None:
            if mask.dtype == torch.bool:
                scores_BHQK.masked_fill_(~mask, torch.finfo(dtype).min)
            else:
                scores_BHQK += mask
        return torch.softmax(scores_BHQK, dim=-1)


@contextmanager
def _through_probabilities(encoder: Encoder, passage: Passage, observer: Observer) -> Iterator[None]:
    """For families that compute attention themselves: the input of the dropout that follows their softmax."""
    with ExitStack() as stack:
        for module, probabilities in {
            id(site.module): (site.module, site.probabilities) for site in encoder.sites
        }.values():
            assert probabilities is not None

            def see(_: nn.Module, args: tuple[Tensor, ...], module: nn.Module = module) -> None:
                layer = passage.layer(module)
                if layer is not None:
                    with torch.no_grad():
                        map_BHQK = args[0].detach()
                        observer(layer, map_BHQK.to(torch.promote_types(map_BHQK.dtype, torch.float32)))
                    passage.leave(module)

            stack.callback(probabilities.register_forward_pre_hook(see).remove)
        yield
