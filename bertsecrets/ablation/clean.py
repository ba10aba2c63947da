"""The clean pass: one forward pass of the model as it is, keeping what its variants share."""

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.uncompiled import uncompiled
from bertsecrets.models.encoder import Encoder


@dataclass(frozen=True)
class CleanLayer:
    """What one layer of the clean pass leaves for its variants.

    Args:
        hidden_BSD: Its input.
        output_BSD: The heads' outputs side by side, the input of the output projection.
        value_BHd: Each head's values, averaged over the real tokens.
        arguments: Its call's other arguments, by name.
    """

    hidden_BSD: Tensor
    output_BSD: Tensor
    value_BHd: Tensor
    arguments: dict[str, Any]


def mean_over_real(values_BSHd: Tensor, real_BS: Tensor) -> Tensor:
    """The values of each head averaged over the real tokens, ``[B, H, d]``: what uniform attention gives."""
    weight_BS11 = real_BS.to(values_BSHd.dtype)[:, :, None, None]
    return (values_BSHd * weight_BS11).sum(1) / weight_BS11.sum(1)


def clean_pass(encoder: Encoder, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[CleanLayer]]:
    """Logits ``[B, C]`` of the model as it is, and what each layer leaves for its variants."""
    family = encoder.family
    assert family is not None
    real_BS = inputs["attention_mask"].bool()
    hidden: list[Tensor] = []
    arguments: list[dict[str, Any]] = []
    outputs: list[Tensor] = []
    values: list[Tensor] = []
    signature = inspect.signature(type(encoder.layers[0]).forward)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = signature.bind(module, *args, **kwargs)
        given = {name: value for name, value in bound.arguments.items() if name not in ("self", "kwargs")}
        hidden.append(given.pop("hidden_states"))
        arguments.append({**given, **bound.arguments.get("kwargs", {})})

    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        for layer in {id(layer): layer for layer in encoder.layers}.values():
            stack.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
        for site in {id(site.module): site for site in encoder.sites}.values():
            assert site.projection is not None
            assert site.value is not None

            def project(_: nn.Module, args: tuple[Tensor, ...]) -> None:
                outputs.append(args[0])

            def value(_: nn.Module, args: Any, projected_BSD: Tensor, site: Any = site) -> None:
                values.append(mean_over_real(family.values(site, projected_BSD, encoder.num_heads), real_BS))

            stack.callback(site.projection.register_forward_pre_hook(project).remove)
            stack.callback(site.value.register_forward_hook(value).remove)
        logits_BC: Tensor = encoder.model(**inputs).logits
    layers = [CleanLayer(*parts) for parts in zip(hidden, outputs, values, arguments, strict=True)]
    return logits_BC, layers


def first_of(output: Any) -> Tensor:
    """A layer's output, which some families wrap in a tuple."""
    result: Tensor = output[0] if isinstance(output, tuple) else output
    return result


def repeat_rows(value: Any, batch: int, first: int, last: int, copies: int) -> Any:
    """A layer's argument for rows ``first`` to ``last`` of the batch, ``copies`` times over."""
    if isinstance(value, Tensor):
        if value.dim() == 0 or value.shape[0] != batch:
            return value
        part = value[first:last]
        return part if copies == 1 else part.repeat(copies, *[1] * (value.dim() - 1))
    if isinstance(value, (tuple, list)):
        return type(value)(repeat_rows(each, batch, first, last, copies) for each in value)
    return value


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out, on whatever device."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
