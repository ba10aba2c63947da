"""The interface of family adapters: module paths, and code where a family computes differently from BERT."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError

HeadWeight = tuple[nn.Parameter, tuple[int, ...], int]
"""A parameter, the shape to view it in, and the dimension of that view that counts the heads."""

LinearRows = tuple[nn.Linear, tuple[int, ...], int]
"""A linear map, the shape to view its rows in, and the dimension of that view that counts the heads or neurons."""


_MERGE = "merge the adapter into the weights, e.g. model = model.merge_and_unload()"


@dataclass(frozen=True)
class AttentionSite:
    """One self-attention module.

    Args:
        module: The module that computes the attention maps.
        projection: The output projection; its input ``[B, S, H * d]`` still has one slice per head. None in a family
            without an adapter, where heads are replaced inside the attention function instead.
        value: The linear map that computes the values; None as above.
        probabilities: For a family that bypasses the library's attention interface, the dropout that receives the
            attention map ``[B, H, Q, K]``; else None.
    """

    module: nn.Module
    projection: nn.Linear | None = None
    value: nn.Linear | None = None
    probabilities: nn.Module | None = None


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward part of one layer.

    Args:
        inputs: The linear maps that compute its neurons; several, or one with several rows per neuron, if gated.
        output: The linear map that reads them, one column per neuron.
    """

    inputs: tuple[LinearRows, ...]
    output: nn.Linear


def mean_of_real(value_BSX: Tensor, real_BS: Tensor) -> Tensor:
    """Mean over the tokens that are not padding, ``[B, X]``."""
    weight_BS1 = real_BS.to(value_BSX).unsqueeze(-1)
    return (value_BSX * weight_BS1).sum(1) / weight_BS1.sum(1)


class Family:
    """An adapter: how one family of models lays out its layers and heads.

    A subclass gives the paths of the modules and overrides what its family computes differently; the defaults are
    BERT's.
    """

    model_types: tuple[str, ...]
    """Values of ``config.model_type``."""

    layer_list = "encoder.layer"
    """Path of the list of layers, from the encoder (``model.base_model``)."""

    embedding_modules: tuple[str, ...] = ("embeddings",)
    """Paths of the modules below the first layer, from the encoder; all but the first are optional."""

    attention = "attention.self"
    """Path of the module that computes the attention maps, from the layer."""

    query, key, value = "query", "key", "value"
    """Paths of the linear maps, from the attention module; the same one for a family with one map for all three."""

    projection = "attention.output.dense"
    """Path of the output projection, from the layer."""

    feed_forward_inputs: tuple[str, ...] = ("intermediate.dense",)
    """Paths of the linear maps that compute the neurons of the feed-forward part, from the layer."""

    feed_forward_output = "output.dense"
    """Path of the linear map that reads the neurons, from the layer."""

    dropout: str | None = None
    """For a family that bypasses the library's attention interface: path of the dropout that receives the attention
    map, from the attention module."""

    position_maps: tuple[str, ...] = ()
    """Optional paths of further linear maps with rows for each head, from the attention module."""

    shared = False
    """Whether attention weights are shared by several heads or layers, so that heads cannot be removed."""

    scaled_products = False
    """Whether the scores are scaled products of queries and keys of the layer's input plus a bias."""

    unbatched: tuple[str, ...] = ()
    """Tensor arguments of a layer's call that have no batch dimension."""

    other_positions: tuple[str, ...] = ()
    """Model arguments that add positions besides the text's tokens; passes with one are rejected."""

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        """The layers in order; a module that serves several layers is repeated."""
        return list(self.part(base, self.layer_list))

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        """The modules below the first layer."""
        first, *others = self.embedding_modules
        return [self.part(base, first), *self.parts(base, others)]

    def site(self, layer: nn.Module) -> AttentionSite:
        """The self-attention of a layer.

        Raises:
            UserError: If a path of the family does not exist in the layer, or does not lead to a linear map.
        """
        module = self.part(layer, self.attention)
        dropout = None if self.dropout is None else self.part(module, self.dropout)
        # Check all paths here, so that a wrong one is rejected before anything is computed.
        _, _, value = (self._linear(module, path) for path in (self.query, self.key, self.value))
        return AttentionSite(module, self._linear(layer, self.projection), value, dropout)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        """The weights that belong to single heads.

        Raises:
            UserError: If an adapter wraps them.
        """
        for part in (site.module, site.projection):
            check_merged(part)
        projection: Any = site.projection
        inputs: Sequence[Any] = self._inputs(site)
        weights: list[HeadWeight] = [(linear.weight, (num_heads, -1), 0) for linear in inputs]
        return [*weights, (projection.weight, (projection.out_features, num_heads, -1), 1)]

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[LinearRows] | None:
        """The linear maps that feed single heads; None if heads cannot be removed from their rows."""
        if self.shared:
            return None
        linears: list[nn.Linear] = [*self._inputs(site), *self.parts(site.module, self.position_maps)]
        return [(linear, (num_heads, -1), 0) for linear in linears]

    def feed_forward(self, layer: nn.Module) -> FeedForward:
        """The feed-forward part of a layer.

        Raises:
            UserError: If a path of the family does not exist in the layer, or does not lead to a linear map.
        """
        output = self._linear(layer, self.feed_forward_output)
        # A gated part may compute gates and values in one map with several rows per neuron.
        inputs = [self._linear(layer, path) for path in self.feed_forward_inputs]
        return FeedForward(tuple((linear, (-1, output.in_features), 1) for linear in inputs), output)

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        """The rest of a layer: from the heads' outputs (the input of the projection) and the layer's input."""
        result_BSD: Tensor = layer.feed_forward_chunk(layer.attention.output(output_BSD, hidden_BSD))
        return result_BSD

    def last_hidden(self, base: PreTrainedModel, hidden_BSD: Tensor) -> Tensor:
        """The encoder's last hidden states from the output of its last layer."""
        return hidden_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        """Logits ``[B, C]`` from the last layer's output; only the first token is needed if ``first_token_decides``."""
        whole: Any = model
        base: Any = model.base_model
        # Of multiple choice, where ELECTRA's classifier has no pooler of its own.
        pooler = getattr(base, "pooler", None) or getattr(whole, "sequence_summary", None)
        pooled = hidden_BSD if pooler is None else pooler(hidden_BSD)
        logits_BC: Tensor = whole.classifier(pooled)
        return logits_BC

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        """The values of each head, ``[B, S, H, d]``, from the output of ``site.value``."""
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (num_heads, -1))
        return values_BSHd

    def continues(self, model: PreTrainedModel) -> bool:
        """Whether a forward pass can start at any layer, that is, nothing else is computed between layers."""
        return True

    def first_token_decides(self, model: PreTrainedModel) -> bool:
        """Whether the task head reads only the first token."""
        return True

    def narrow(self, site: AttentionSite, kept: Sequence[int]) -> None:
        """Adapt the other head counts of an attention module after all but the ``kept`` heads were removed."""
        counts = {"num_attention_heads": len(kept), "n_heads": len(kept)}
        if site.value is not None:
            counts["all_head_size"] = site.value.out_features
        for name, count in counts.items():
            if hasattr(site.module, name):
                setattr(site.module, name, count)

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        """Query, key and value maps, if they read the layer's input and scores are their scaled products plus a
        bias.
        """
        inputs = self._inputs(site)
        return inputs if self.scaled_products and not any(map(is_lora, inputs)) else None

    def score_bias(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """What a layer adds to the scores of every example, ``[H, Q, K]``, from the layer's arguments; None for
        nothing.
        """
        return None

    def part(self, module: nn.Module, path: str) -> Any:
        """The module at a path below another; raises UserError with the family and the path if there is none."""
        value: Any = module
        for name in path.split("."):
            if not hasattr(value, name):
                raise UserError(
                    f"The family {type(self).__name__} names '{path}' in {type(module).__name__}, where "
                    f"{type(value).__name__} has no '{name}'; correct the path in {inspect.getfile(type(self))}."
                )
            value = getattr(value, name)
        return value

    def parts(self, module: nn.Module, paths: Sequence[str]) -> list[Any]:
        """The modules at the paths that exist below another module."""
        values = []
        for path in paths:
            value: Any = module
            for name in path.split("."):
                value = getattr(value, name, None)
            if value is not None:
                values.append(value)
        return values

    def _inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        query, key, value = (self._linear(site.module, path) for path in (self.query, self.key, self.value))
        return query, key, value

    def _linear(self, module: nn.Module, path: str) -> nn.Linear:
        """The linear map at a path, or the module that wraps it and has the same input and output."""
        linear = self.part(module, path)
        inner = getattr(linear, "base_layer", linear)
        plain = isinstance(inner, nn.Linear) and inner.weight.is_floating_point()
        if plain and (inner is linear or is_lora(linear)):
            checked: nn.Linear = linear
            return checked
        kind = type(linear)
        if plain:
            advice = f"an adapter wraps it: {_MERGE}"
        elif isinstance(inner, nn.Linear) or "quant" in type(inner).__module__:
            advice = "its weights are quantised: load the model unquantised, in float32, bfloat16 or float16"
        else:
            advice = "expected the path of a linear map"
        raise UserError(
            f"The family {type(self).__name__} names '{path}' in {type(module).__name__}, which is {kind.__name__}; "
            f"{advice}."
        )


def is_lora(linear: Any) -> bool:
    """Whether a module only adds LoRA products to a linear map (unlike DoRA)."""
    return (
        all(hasattr(linear, name) for name in ("base_layer", "lora_A", "get_delta_weight", "active_adapters"))
        and not getattr(linear, "lora_variant", None)
        and not getattr(linear, "lora_magnitude_vector", None)
    )


def weight_of(linear: Any) -> Tensor:
    """The effective weights of a map: its own plus the products of active adapters."""
    if not is_lora(linear):
        weight: Tensor = linear.weight
        return weight
    weight = linear.base_layer.weight
    if linear.merged or linear.disable_adapters:
        return weight
    return sum((linear.get_delta_weight(name) for name in linear.active_adapters if name in linear.lora_A), weight)


def check_merged(module: nn.Module | None) -> None:
    """Raise UserError if an adapter wraps part of a module, so that its parameters are not its effective weights."""
    for part in () if module is None else module.modules():
        if hasattr(part, "base_layer"):
            raise UserError(f"An adapter ({type(part).__name__}) wraps weights of the model; {_MERGE}.")
