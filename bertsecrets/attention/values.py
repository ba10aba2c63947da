"""Watch maps and values together: what each head's output is made of, layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.hooks import AttentionCall, ForwardPass, follow
from bertsecrets.attention.watch import observed_calls
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder, describe

ValueObserver = Callable[[int, Tensor, Tensor], None]


@contextmanager
def watch_values(model: nn.Module, observer: ValueObserver) -> Iterator[None]:
    """Call ``observer(layer, attention_BHQK, value_BHKd)`` for each layer of every forward pass, in order, while open.

    A head's output, the input of the output projection, is ``attention @ value``. Both are float32 or wider and without
    gradient; otherwise as :func:`~bertsecrets.attention.watch.watch`.

    Args:
        model: Any module that contains a transformers encoder, compiled or not; a compiled model runs eagerly inside.
        observer: Called outside autograd.

    Raises:
        UserError: If the model's family has no adapter and bypasses the attention interface.
    """
    encoder = describe(model)
    through = _through_interface if encoder.uses_interface else _through_probabilities
    with follow(encoder) as forward_pass, through(encoder, forward_pass, observer):
        yield


def output_weights(model: nn.Module, layer: int) -> Tensor:
    """The columns of a layer's output projection that belong to each head, ``[H, D, d]``.

    Raises:
        UserError: If the model's family has no adapter.
    """
    encoder = describe(model)
    projection = encoder.sites[layer].projection
    if projection is None:
        raise UserError(
            f"Norms of values need an adapter, and model type '{encoder.base.config.model_type}' has none; add one in "
            "bertsecrets/models/families."
        )
    weights_DHd: Tensor = projection.weight.detach().unflatten(1, (encoder.num_heads, -1))
    return weights_DHd.transpose(0, 1)


@contextmanager
def _through_interface(encoder: Encoder, forward_pass: ForwardPass, observer: ValueObserver) -> Iterator[None]:
    def observe(layer: int, call: AttentionCall) -> None:
        map_BHQK = call.attention_BHQK()
        observer(layer, map_BHQK, call.value_BHKd.detach().to(map_BHQK.dtype))

    with observed_calls(encoder, forward_pass, observe):
        yield


@contextmanager
def _through_probabilities(encoder: Encoder, forward_pass: ForwardPass, observer: ValueObserver) -> Iterator[None]:
    family = encoder.family
    assert family is not None
    projected: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for site in encoder.distinct_sites:
            assert site.probabilities is not None
            assert site.value is not None

            def keep(_: nn.Module, args: Any, projected_BSD: Tensor, key: int = id(site.module)) -> None:
                projected[key] = projected_BSD.detach()

            def observe(_: nn.Module, args: tuple[Tensor, ...], site: Any = site) -> None:
                layer = forward_pass.layer(site.module)
                projected_BSD = projected.pop(id(site.module))
                if layer is not None:
                    map_BHQK = args[0].detach()
                    map_BHQK = map_BHQK.to(torch.promote_types(map_BHQK.dtype, torch.float32))
                    values_BSHd = family.values(site, projected_BSD, encoder.num_heads)
                    with torch.no_grad():
                        observer(layer, map_BHQK, values_BSHd.transpose(1, 2).to(map_BHQK.dtype))
                    forward_pass.finish_call(site.module)

            stack.callback(site.value.register_forward_hook(keep).remove)
            stack.callback(site.probabilities.register_forward_pre_hook(observe).remove)
        yield
