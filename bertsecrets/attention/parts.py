"""Skip parts of layers: the attention sublayer, the feed-forward sublayer, a group of its neurons, or the block."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.hooks import follow
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder
from bertsecrets.results.components import ATTENTION, BLOCK, FEED_FORWARD, GROUP_OF_NEURONS

Rows = Mapping[str, Tensor]
"""Name of a part -> the rows of a batch in which it is skipped, bool ``[R, 1, 1]``."""


def check_parts(encoder: Encoder) -> None:
    """Raise UserError if parts of the encoder's layers cannot be skipped."""
    if encoder.family is None:
        raise UserError(
            f"Model type '{encoder.base.config.model_type}' has no adapter that locates its sublayers; disable heads "
            "or layers, or set model.family to a family that fits the model."
        )
    for layer in encoder.layers:
        encoder.family.feed_forward(layer)


@contextmanager
def left_out(encoder: Encoder, layer: int, rows_of: Callable[[], Rows]) -> Iterator[None]:
    """While open, set outputs of a layer's sublayers (before the residual stream) or neurons to 0 in some rows.

    Args:
        encoder: An encoder of a family with an adapter.
        layer: The layer; layers that share its weights are included.
        rows_of: Called at every call of a sublayer.
    """
    family, projection = encoder.family, encoder.sites[layer].projection
    assert family is not None
    assert projection is not None
    reader = family.feed_forward(encoder.layers[layer]).output
    neurons, groups_of_layer = reader.in_features, encoder.num_heads

    def silence(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        groups = {name: rows_R11 for name, rows_R11 in rows_of().items() if name.startswith(GROUP_OF_NEURONS)}
        if not groups:
            return None
        # A copy, because autograd and other hooks also read the neurons.
        neuron_RSF = args[0].clone()
        for name, rows_R11 in groups.items():
            group = int(name.removeprefix(GROUP_OF_NEURONS))
            first, end = (neurons * bound // groups_of_layer for bound in (group, group + 1))
            neuron_RSF[..., first:end].masked_fill_(rows_R11, 0)
        return (neuron_RSF, *args[1:])

    with ExitStack() as stack:
        stack.callback(reader.register_forward_pre_hook(silence).remove)
        for kind, module in ((ATTENTION, projection), (FEED_FORWARD, reader)):

            def zero(_: nn.Module, args: Any, output_RSD: Tensor, name: str = kind.name) -> Tensor:
                rows_R11 = rows_of().get(name)
                return output_RSD if rows_R11 is None else output_RSD.masked_fill(rows_R11, 0)

            stack.callback(module.register_forward_hook(zero).remove)
        yield


def skip(rows: Rows, hidden_RSD: Tensor, next_RSD: Tensor) -> Tensor:
    """The output of a layer, replaced by its input in rows without the block."""
    rows_R11 = rows.get(BLOCK.name)
    return next_RSD if rows_R11 is None else torch.where(rows_R11, hidden_RSD, next_RSD)


@contextmanager
def without_parts(encoder: Encoder, parts: Iterable[tuple[int, str]]) -> Iterator[None]:
    """Skip parts of layers, as in :class:`bertsecrets.ablation.plan.Variant`, in every forward pass while open.

    Raises:
        UserError: If the encoder's family has no adapter, or its adapter does not locate the feed-forward sublayers.
    """
    names_of: dict[int, list[str]] = {}
    for layer, name in parts:
        names_of.setdefault(layer, []).append(name)
    if not names_of:
        yield
        return
    check_parts(encoder)
    everywhere_111 = torch.ones(1, 1, 1, dtype=torch.bool, device=next(encoder.base.parameters()).device)
    with follow(encoder) as forward_pass, ExitStack() as stack:
        # One hook for layers that share a module; the pass tells which layer is running.
        for layer, module in {id(module): (layer, module) for layer, module in enumerate(encoder.layers)}.values():
            site = encoder.sites[layer].module

            def rows_of(site: nn.Module = site) -> Rows:
                current = forward_pass.layer(site)
                return {} if current is None else dict.fromkeys(names_of.get(current, ()), everywhere_111)

            def finish(
                _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, site: nn.Module = site
            ) -> Any:
                # Families and library versions pass hidden states by position or by name.
                hidden_BSD = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
                rows = rows_of(site)
                forward_pass.finish_call(site)
                if isinstance(output, tuple):
                    return (skip(rows, hidden_BSD, output[0]), *output[1:])
                return skip(rows, hidden_BSD, output)

            stack.enter_context(left_out(encoder, layer, rows_of))
            stack.callback(module.register_forward_hook(finish, with_kwargs=True).remove)
        yield
