"""Parts of a forward pass that variants share: the unedited pass, and attention from chosen tokens only."""

import ctypes
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertsecrets.attention.hooks import at_inputs, eager_execution, keeping_values, mean_over_real
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder, same_logits
from bertsecrets.models.families.base import AttentionSite
from bertsecrets.task_heads.base import output_of, taken

Finish = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Maps the output of the last layer, the mask of real tokens and the labels to the output of a task head."""


class OwnForwardError(UserError):
    """A model's own forward does more than its family's layers and head."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(
            f"{type(encoder.model).__name__} does not compute its logits from its family's layers and head alone "
            f"({type(encoder.family).__name__}), so no pass can start at a given layer, as screened sweeps and direct "
            "effects require; use ablation.sweep=exact."
        )


@dataclass(frozen=True)
class CleanLayer:
    """What variants reuse of one layer of the clean pass.

    Args:
        hidden_BSD, next_BSD: The layer's input and output.
        output_BSD: The heads' outputs, concatenated: the input of the output projection.
        value_BHd: Each head's values, averaged over the real tokens.
        arguments: The other arguments of the layer's call, by name.
    """

    hidden_BSD: Tensor
    next_BSD: Tensor
    output_BSD: Tensor
    value_BHd: Tensor
    arguments: dict[str, Any]


def clean_pass(
    encoder: Encoder, inputs: Mapping[str, Tensor], run: Callable[[], Tensor] | None = None
) -> tuple[Tensor, list[CleanLayer]]:
    """Run the unedited model; return its logits ``[B, C]`` and what variants reuse of each layer.

    Args:
        encoder: The encoder.
        inputs: Keyword arguments of the model.
        run: Runs the model with them and returns its head's output; None for logits.

    Raises:
        OwnForwardError: If the encoder's sequences are not those of ``inputs``.
    """
    family = encoder.family
    assert family is not None
    real_BS = inputs["attention_mask"].bool()
    hidden: list[Tensor] = []
    results: list[Tensor] = []
    arguments: list[dict[str, Any]] = []
    outputs: list[Tensor] = []
    values: list[Tensor] = []
    signature = inspect.signature(type(encoder.layers[0]).forward)
    # The argument after self; families name it differently.
    name_of_hidden = list(signature.parameters)[1]

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # By name, even if the model passes them by position, because layers are called again with keyword arguments.
        bound = signature.bind(module, *args, **kwargs)
        named = {name: value for name, value in bound.arguments.items() if name not in ("self", "kwargs")}
        hidden.append(named.pop(name_of_hidden))
        arguments.append({**named, **bound.arguments.get("kwargs", {})})

    def leave(_: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        results.append(first_of(result))

    def project(site: AttentionSite, output_BSD: Tensor) -> None:
        if output_BSD.shape[:2] != real_BS.shape:
            raise OwnForwardError(encoder)
        outputs.append(output_BSD)
        value_BSHd = family.values(site, projected.pop(id(site.module)), encoder.num_heads)
        values.append(mean_over_real(value_BSHd, real_BS))

    with ExitStack() as stack:
        stack.enter_context(eager_execution())
        for layer in {id(layer): layer for layer in encoder.layers}.values():
            stack.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(leave).remove)
        projected = stack.enter_context(keeping_values(encoder.distinct_sites))
        stack.enter_context(at_inputs(encoder.distinct_sites, "projection", project))
        output = output_of(encoder.model, inputs) if run is None else run()
    layers = zip(hidden, results, outputs, values, arguments, strict=True)
    return output, [CleanLayer(*parts) for parts in layers]


@torch.no_grad()
def check_forward(
    encoder: Encoder,
    output: Tensor,
    layers: list[CleanLayer],
    real_BS: Tensor,
    finish: Finish,
    label_B: Tensor | None = None,
    read_BW: Tensor | None = None,
) -> None:
    """Raise OwnForwardError unless each layer read the output of the one below, and the head reproduces the model's
    output.

    Args:
        encoder: The encoder.
        output, layers: From :func:`clean_pass`.
        real_BS: Which tokens are real, bool.
        finish: Maps the last layer's output, the mask of real tokens and the labels to the head's output.
        label_B: The labels.
        read_BW: Places of the only tokens that the head reads; None for all.
    """
    chained = all(
        below.next_BSD is above.hidden_BSD or torch.equal(below.next_BSD, above.hidden_BSD)
        for below, above in pairwise(layers)
    )
    if len(layers) != encoder.num_layers or not chained:
        raise OwnForwardError(encoder)
    hidden_BSD = layers[-1].next_BSD
    # In the way variants are completed: no tokens but those that the head reads are computed.
    if read_BW is not None:
        hidden_BSD, real_BS = taken(hidden_BSD, read_BW), real_BS.gather(1, read_BW)
    try:
        finished = finish(hidden_BSD, real_BS, label_B)
    # An unfamiliar head, called with unexpected arguments, may raise anything.
    except Exception as error:
        raise OwnForwardError(encoder) from error
    if not same_logits(output, finished):
        raise OwnForwardError(encoder)


def first_of(output: Any) -> Tensor:
    """A layer's output, which some families wrap in a tuple."""
    result: Tensor = output[0] if isinstance(output, tuple) else output
    return result


@contextmanager
def recorded_calls(modules: Iterable[nn.Module]) -> Iterator[list[tuple[tuple[Any, ...], Any]]]:
    """Records arguments and output of each call of some modules, in the order of the calls."""
    calls: list[tuple[tuple[Any, ...], Any]] = []

    def record(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls.append((args, output))

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(record).remove)
        yield calls


def repeat_rows(value: Any, batch: int, copies: int) -> Any:
    """A layer's argument, repeated ``copies`` times."""
    if isinstance(value, Tensor):
        # Without a row for each example it is the same for all, such as a bias by position.
        if value.dim() == 0 or value.shape[0] != batch:
            return value
        return value if copies == 1 else value.repeat(copies, *[1] * (value.dim() - 1))
    if isinstance(value, (tuple, list)):
        return type(value)(repeat_rows(part, batch, copies) for part in value)
    return value


def pick_rows(value: Any, batch: int, row_R: Tensor) -> Any:
    """A layer's argument for chosen rows of the batch."""
    if isinstance(value, Tensor):
        return value[row_R] if value.dim() and value.shape[0] == batch else value
    if isinstance(value, (tuple, list)):
        return type(value)(pick_rows(part, batch, row_R) for part in value)
    return value


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error means that memory ran out on any device."""
    # On a CPU it is a plain RuntimeError, recognisable only by its text.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def parts_within(rows: int, length: int, max_tokens: int) -> Iterator[Tensor]:
    """Indices of rows in parts of nearly equal size, each with at most this many tokens or a single row."""
    size = max(1, max_tokens // length)
    if rows:
        # Of nearly equal size, because a small last part would cost as many kernel launches as a full one.
        yield from torch.arange(rows).tensor_split(-(-rows // size))


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def return_freed_memory(device: torch.device) -> None:
    """Return memory freed by passes on the CPU to the system; glibc would keep it otherwise.

    Batches differ in length, and the memory that a backward pass frees is fragmented: the next batch fits into few of
    the gaps, so the process would grow with each batch.

    Args:
        device: The device of the passes; nothing happens on any other than the CPU.
    """
    if _malloc_trim is not None and device.type == "cpu":
        _malloc_trim(0)


def read_output(
    linears: tuple[nn.Linear, nn.Linear, nn.Linear],
    hidden_RSD: Tensor,
    read_RW: Tensor,
    real_RS: Tensor,
    num_heads: int,
    bias_HQK: Tensor | None = None,
) -> Tensor:
    """Output of the heads at chosen tokens only, ``[R, W, H * d]``.

    The score of token s is q W_k h_s, which is (W_k' q) h_s: mapping few queries costs a fraction of mapping all
    tokens to keys. Likewise the weighted mean of the values is W_v applied to the weighted mean of the hidden states.
    These are the same sums in a different order, not an approximation.

    Args:
        linears: The projections to query, key and value.
        hidden_RSD: The layer's input.
        read_RW: Places of the tokens.
        real_RS: Which tokens are real.
        num_heads: Heads of the layer.
        bias_HQK: Added to the scores.
    """
    query, key, value = linears
    query_RHWd = query(taken(hidden_RSD, read_RW)).unflatten(-1, (num_heads, -1)).transpose(1, 2)
    bias_RHWS = None if bias_HQK is None else bias_HQK[:, read_RW].transpose(0, 1)
    (_, tokens, width), reads = hidden_RSD.shape, read_RW.shape[1]
    # Multiplications per row: queries and means through the maps of H heads, against keys and values of all tokens.
    if reads * (width + num_heads * tokens) >= tokens * width:
        key_RHSd, value_RHSd = (
            linear(hidden_RSD).unflatten(-1, (num_heads, -1)).transpose(1, 2) for linear in (key, value)
        )
        mask_RHWS = real_RS[:, None, None, :]
        if bias_RHWS is not None:
            mask_RHWS = bias_RHWS.to(query_RHWd.dtype).masked_fill(~mask_RHWS, torch.finfo(query_RHWd.dtype).min)
        attended_RHWd = functional.scaled_dot_product_attention(query_RHWd, key_RHSd, value_RHSd, mask_RHWS)
        return attended_RHWd.transpose(1, 2).flatten(2)
    scaling = float(query_RHWd.shape[-1]) ** -0.5
    key_HdD = key.weight.unflatten(0, (num_heads, -1))
    # The key bias adds the same number to all scores of a row, which does not change the softmax.
    back_RHWD = (
        torch.matmul(query_RHWd.transpose(0, 1).flatten(1, 2), key_HdD).unflatten(1, (-1, reads)).transpose(0, 1)
    )
    scores_RHWS = torch.matmul(back_RHWD.flatten(1, 2), hidden_RSD.transpose(1, 2)).unflatten(1, (num_heads, reads))
    scores_RHWS = scores_RHWS * scaling
    if bias_RHWS is not None:
        scores_RHWS = scores_RHWS + bias_RHWS
    scores_RHWS = scores_RHWS.masked_fill(~real_RS[:, None, None, :], torch.finfo(scores_RHWS.dtype).min)
    attention_RHWS = torch.softmax(scores_RHWS, dim=-1).to(hidden_RSD.dtype)
    mixed_RHWD = torch.matmul(attention_RHWS.flatten(1, 2), hidden_RSD).unflatten(1, (num_heads, reads))
    value_HDd = value.weight.unflatten(0, (num_heads, -1)).transpose(1, 2)
    output_HRWd = torch.matmul(mixed_RHWD.transpose(0, 1).flatten(1, 2), value_HDd).unflatten(1, (-1, reads))
    output_RWHd: Tensor = output_HRWd.permute(1, 2, 0, 3)
    if value.bias is not None:
        output_RWHd = output_RWHd + value.bias.unflatten(0, (num_heads, -1))
    return output_RWHd.flatten(2)


def mean_values(value: nn.Linear, hidden_RSD: Tensor, real_RS: Tensor, num_heads: int) -> Tensor:
    """Mean of each head's values over the real tokens, ``[R, H, d]``, from the layer's input."""
    weight_RS1 = real_RS.to(hidden_RSD.dtype).unsqueeze(-1)
    mean_RD = (hidden_RSD * weight_RS1).sum(1) / weight_RS1.sum(1)
    mean_RHd: Tensor = value(mean_RD).unflatten(-1, (num_heads, -1))
    return mean_RHd
