"""Remove heads and neurons physically: a smaller model with the same logits as the gated one, saved as a folder with
one additional small file.

A head's rows of the query, key and value maps and its columns of the output projection are cut out, and a neuron's rows
and columns of the feed-forward part. The result equals override mode ``zero``: a removed head contributes nothing, and
the output projection keeps its bias (Michel et al. 2019 multiply the head's output by zero). A layer without heads or
without neurons only adds that bias.
"""

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from bertsecrets.ablation.plan import Head, check_heads
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import REMOVED_HEADS, Encoder, describe
from bertsecrets.models.families.base import Family, check_merged
from bertsecrets.models.files import HEADS, check_config_file, is_file
from bertsecrets.results.files import atomic_write, folder_write, write_text
from bertsecrets.settings import shown
from bertsecrets.task_heads.choice import score_single_choices

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Kept:
    """The heads and neurons that a pruned model keeps.

    Args:
        num_heads: Heads of a layer before pruning.
        layers: For each layer, the kept heads by their numbers before pruning, ascending; empty for a layer without
            heads.
        neurons: The same for the neurons of each feed-forward part; None if all are kept.

    Raises:
        UserError: If heads or neurons are not in ascending order, a head is out of range, or no head is kept.
    """

    num_heads: int
    layers: tuple[tuple[int, ...], ...]
    neurons: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        for layer, kept in enumerate(self.layers):
            if list(kept) != sorted(set(kept)) or not all(0 <= head < self.num_heads for head in kept):
                raise UserError(
                    f"Layer {layer} keeps the heads {list(kept)}; expected distinct numbers from 0 to "
                    f"{self.num_heads - 1} in ascending order."
                )
        for layer, neurons in enumerate(self.neurons or ()):
            if list(neurons) != sorted(set(neurons)) or min(neurons, default=0) < 0:
                raise UserError(
                    f"The kept neurons of layer {layer} are not distinct numbers from 0 in ascending order."
                )
        if self.neurons is not None and len(self.neurons) != len(self.layers):
            raise UserError(
                f"Neurons are given for {len(self.neurons)} layers and heads for {len(self.layers)}; give both for "
                "every layer."
            )
        if not any(self.layers):
            raise UserError(
                f"All {len(self.layers) * self.num_heads} heads would be removed; keep at least one head of the model."
            )

    @property
    def count(self) -> int:
        """Number of kept heads in all layers."""
        return sum(len(kept) for kept in self.layers)

    @property
    def removed(self) -> tuple[Head, ...]:
        """The removed heads, in order of layer and head."""
        return tuple(
            (layer, head)
            for layer, kept in enumerate(self.layers)
            for head in range(self.num_heads)
            if head not in kept
        )


def kept_heads(num_layers: int, num_heads: int, removed: Iterable[Sequence[int]]) -> Kept:
    """The kept parts of a model of this size after removing some heads.

    Raises:
        UserError: If a head does not exist or is listed twice, or none would be kept.
    """
    heads = [(int(layer), int(head)) for layer, head in removed]
    if heads:
        check_heads(heads, num_layers, num_heads, "The list of heads to remove")
    layers = tuple(
        tuple(head for head in range(num_heads) if (layer, head) not in heads) for layer in range(num_layers)
    )
    return Kept(num_heads, layers)


def remove_heads(model: nn.Module, heads: Iterable[Sequence[int]]) -> PreTrainedModel:
    """A copy of a model without some heads; its logits equal override mode ``zero``.

    Args:
        model: Any module that contains a transformers model.
        heads: ``(layer, head)`` pairs, counted from 0.

    Raises:
        UserError: If ``heads`` are not pairs of whole numbers, a head does not exist, none would be kept, or heads of
            this family cannot be removed because its layers share weights or one matrix interleaves queries, keys and
            values by head.
    """
    encoder = describe(model)
    try:
        pairs = [(index(layer), index(head)) for layer, head in heads]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"heads is {shown(heads)}; give (layer, head) pairs, e.g. [(0, 1)] for head 1 of layer 0."
        ) from error
    return keep_only(model, kept_heads(encoder.num_layers, encoder.num_heads, pairs))


def keep_only(model: nn.Module, kept: Kept) -> PreTrainedModel:
    """A copy of a model with only some heads and neurons.

    Args:
        model: Any module that contains a transformers model.
        kept: The kept parts.

    Raises:
        UserError: If it does not fit the model, or heads of this family cannot be removed (see :func:`remove_heads`).
    """
    encoder = describe(model)
    check_removable(encoder)
    smaller = describe(copy.deepcopy(encoder.model))
    _remove(smaller, kept)
    return smaller.model


def save_pruned(model: nn.Module, folder: str | Path) -> None:
    """Write a pruned model to a folder: ``config.json``, ``model.safetensors`` and ``heads.json``.

    transformers alone cannot load it, because ``config.json`` describes the shapes before pruning; use
    :func:`load_pruned`, or an exported program.

    Raises:
        UserError: If :func:`remove_heads` removed no head of the model, or the folder cannot be written.
    """
    kept = getattr(model, REMOVED_HEADS, None)
    if not isinstance(model, PreTrainedModel) or not isinstance(kept, Kept):
        raise UserError(
            f"No head of this {type(model).__name__} was removed; call remove_heads first, or save the whole model "
            "with save_pretrained."
        )
    folder = Path(folder)
    with folder_write(folder):
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    with atomic_write(folder / _WEIGHTS) as temporary:
        save_model(model, str(temporary), metadata={"format": "pt"})
    content: dict[str, Any] = {"format": 1, "num_heads": kept.num_heads, "kept": [list(heads) for heads in kept.layers]}
    if kept.neurons is not None:
        # Only their number matters, for the shapes.
        content["neurons"] = [len(neurons) for neurons in kept.neurons]
    write_text(folder / HEADS, json.dumps(content, indent=1))


def load_pruned(folder: str | Path) -> PreTrainedModel:
    """Load a pruned model from a folder written by :func:`save_pruned`, on the CPU, in evaluation mode.

    Raises:
        UserError: If ``heads.json`` or another file is missing, cannot be read, or does not fit the others.
    """
    folder = Path(folder)
    kept = _read_heads(folder)
    check_config_file(folder)
    config = AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, str((config.architectures or [None])[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise UserError(
            f"'{folder / 'config.json'}' has the architecture {shown(config.architectures)}, which transformers does "
            "not have; save the model again with save_pruned."
        )
    make: Any = kind
    model: PreTrainedModel = make(config)
    encoder = describe(model)
    if (encoder.num_layers, encoder.num_heads) != (len(kept.layers), kept.num_heads):
        raise UserError(
            f"'{folder / HEADS}' has {len(kept.layers)} layers of {kept.num_heads} heads, but config.json has "
            f"{encoder.num_layers} layers of {encoder.num_heads}; give the files of one model."
        )
    check_removable(encoder)
    _remove(encoder, kept)
    path = folder / _WEIGHTS
    try:
        with safe_open(path, "pt") as file:
            dtypes = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
        # A model saved in half precision keeps it.
        if len(floating := {dtype for dtype in dtypes if dtype.is_floating_point}) == 1:
            model.to(floating.pop())
        load_model(model, path)
    # torch raises RuntimeError for wrong names or shapes.
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"The weights in '{path}' do not fit '{folder / HEADS}' ({' '.join(str(error).split())[:200]}); give the "
            "files of one model."
        ) from error
    score_single_choices(model.eval())
    return model


def _read_heads(folder: Path) -> Kept:
    path = folder / HEADS
    if not is_file(path):
        raise UserError(
            f"'{folder}' has no {HEADS}, which lists the kept heads of a pruned model; copy it from where the model "
            "was saved, or load an unpruned model with from_pretrained."
        )
    try:
        content = json.loads(path.read_text("utf-8"))
        layers = tuple(tuple(map(_whole, heads)) for heads in content["kept"])
        counts = content.get("neurons")
        neurons = None if counts is None else tuple(tuple(range(_whole(count))) for count in counts)
        return Kept(_whole(content["num_heads"]), layers, neurons)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"'{path}' cannot be read as a list of kept heads ({error}); copy the pruned model's folder again."
        ) from error


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{shown(number)} is not a whole number")
    return number


def check_removable(encoder: Encoder) -> None:
    """Raise UserError if heads of this family cannot be removed from the weights."""
    check_merged(encoder.model)
    kind = encoder.model.config.model_type
    if encoder.shares_layers:
        raise UserError(
            f"The layers of model type '{kind}' share one set of weights, so removing a head from one layer would "
            "remove it from all; disable heads of single layers with override mode 'zero' instead."
        )
    family = encoder.family
    if family is None:
        raise UserError(
            f"Removing heads needs an adapter, and model type '{kind}' has none; add one in "
            "bertsecrets/models/families, or disable heads with override mode 'zero' instead."
        )
    if family.head_rows(encoder.sites[0], encoder.num_heads) is None:
        raise UserError(
            f"Heads of model type '{kind}' cannot be removed, because its queries, keys and values are not separated "
            "by head; disable them with override mode 'zero' instead."
        )


def _remove(encoder: Encoder, kept: Kept) -> None:
    """Remove heads and neurons in place."""
    assert encoder.family is not None
    neurons = kept.neurons or (None,) * encoder.num_layers
    for layer, heads, layer_neurons in zip(encoder.layers, kept.layers, neurons, strict=True):
        narrow_layer(encoder.family, layer, encoder.num_heads, heads, layer_neurons)
    setattr(encoder.model, REMOVED_HEADS, kept)


@torch.no_grad()
def narrow_layer(
    family: Family, layer: nn.Module, num_heads: int, heads: Sequence[int], neurons: Sequence[int] | None = None
) -> None:
    """Keep only some heads and neurons of one layer, in place.

    Args:
        family: The layer's family, which supports removing heads.
        layer: The layer.
        num_heads: Its number of heads before.
        heads, neurons: The kept ones, ascending; None for all.

    Raises:
        UserError: If a neuron does not exist.
    """
    site = family.site(layer)
    projection = site.projection
    assert projection is not None
    if not heads:
        bias = _Bias(projection)
        inside = any(module is projection for module in site.module.modules())
        _replace(layer, site.module, _NoHeads(bias if inside else None))
        if not inside:
            _replace(layer, projection, bias)
    elif len(heads) < num_heads:
        index = torch.tensor(heads)
        for linear, shape, dimension in family.head_rows(site, num_heads) or ():
            _keep_rows(linear, shape, dimension, index)
        _keep_columns(projection, torch.arange(projection.in_features).view(num_heads, -1)[index].flatten())
        family.narrow(site, heads)
    if neurons is None:
        return
    # Some families do not locate it.
    part = family.feed_forward(layer)
    total = part.output.in_features
    if len(neurons) == total:
        return
    if max(neurons, default=0) >= total:
        raise UserError(f"Neuron {max(neurons)} does not exist: each feed-forward part of the model has {total}.")
    index = torch.tensor(neurons, dtype=torch.int64)
    for linear, shape, dimension in part.inputs:
        if len(neurons):
            _keep_rows(linear, shape, dimension, index)
        else:
            _replace(layer, linear, _NoNeurons())
    if len(neurons):
        _keep_columns(part.output, index)
    else:
        _replace(layer, part.output, _Bias(part.output))


def _keep_rows(linear: nn.Linear, shape: Sequence[int], dimension: int, index: Tensor) -> None:
    """Keep some heads or neurons, which the view of a map's rows with this shape counts in one dimension."""
    rows = torch.arange(linear.out_features).view(*shape).index_select(dimension, index).flatten()
    linear.weight = _part(linear.weight, rows, 0)
    if linear.bias is not None:
        linear.bias = _part(linear.bias, rows, 0)
    linear.out_features = len(rows)


def _keep_columns(linear: nn.Linear, columns: Tensor) -> None:
    linear.weight = _part(linear.weight, columns, 1)
    linear.in_features = len(columns)


def _part(parameter: Tensor, index: Tensor, dimension: int) -> nn.Parameter:
    part = parameter.index_select(dimension, index.to(parameter.device)).contiguous()
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


class _Bias(nn.Module):
    """The rest of an output projection without heads."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.width = projection.out_features
        self.bias = projection.bias

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        shape = (*hidden_BSD.shape[:-1], self.width)
        return hidden_BSD.new_zeros(shape) if self.bias is None else self.bias.expand(shape)


class _NoNeurons(nn.Module):
    """A feed-forward part without neurons: width 0, even if gated parts are split into halves."""

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        return hidden_BSD[..., :0]


class _NoHeads(nn.Module):
    """Self-attention without heads: an output of width 0, or only the bias if it includes the projection."""

    def __init__(self, projection: _Bias | None) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        # Some layers pass it under the library's name.
        return (hidden_states[..., :0] if self.projection is None else self.projection(hidden_states)), None


def _replace(layer: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in layer.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)
                return
