"""What bertsecrets needs to know of an encoder: where its layers are and where its heads can be seen and replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError


@dataclass(frozen=True)
class AttentionSite:
    """One self-attention module.

    Args:
        module: The module that computes the attention maps.
        projection: The output projection; its input ``[B, S, H * d]`` still holds each head as a slice of its own.
            None in a family without adapter, whose heads are replaced inside the attention function instead.
        value: The linear map whose output holds the values; None as above.
        probabilities: For a family that bypasses the library's attention interface, the dropout whose input is the
            attention map ``[B, H, Q, K]``; else None.
    """

    module: nn.Module
    projection: nn.Linear | None = None
    value: nn.Linear | None = None
    probabilities: nn.Module | None = None


class Family(Protocol):
    """An adapter: how one family of models lays out its layers and heads."""

    model_types: tuple[str, ...]

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        """The layers in order; a module that serves several layers is repeated."""

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        """The modules below the first layer."""

    def site(self, layer: nn.Module) -> AttentionSite:
        """The self-attention of a layer."""

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        """The values ``[B, S, H, d]`` of each head, from the output of ``site.value``."""

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[tuple[nn.Parameter, tuple[int, ...], int]]:
        """The weights that belong to single heads.

        Each entry is a parameter, the shape to view it in, and the dimension of that view which counts the heads.
        """

    unbatched: tuple[str, ...]
    """Arguments of a layer's call that are tensors without a batch dimension."""

    def continues(self, model: PreTrainedModel) -> bool:
        """Whether a forward pass of this model can be taken up at any layer: nothing but layers lies between them."""

    def after_heads(self, layer: nn.Module, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        """The rest of a layer: from its heads' outputs (the input of the projection) and its input to its output."""

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        """Logits ``[B, C]`` from the output of the last layer; of ``first_token_decides``, the first token is enough."""

    def first_token_decides(self, model: PreTrainedModel) -> bool:
        """Whether the task head reads the first token alone."""

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        """The maps for query, key and value, where scores are their scaled products alone and they see the layer's input."""


@dataclass(frozen=True)
class Encoder:
    """A model's encoder, described.

    Args:
        model: The whole model, task head included.
        base: The encoder inside it.
        family: Its adapter, or None on the generic path.
        layers: Layer modules in order (repeated where weights are shared).
        sites: The self-attention of each layer, in the same order.
        embeddings: Modules below the first layer.
        num_heads: Heads of each layer.
        head_dim: Width of a head.
    """

    model: PreTrainedModel
    base: PreTrainedModel
    family: Family | None
    layers: tuple[nn.Module, ...]
    sites: tuple[AttentionSite, ...]
    embeddings: tuple[nn.Module, ...]
    num_heads: int
    head_dim: int
    uses_interface: bool = field(default=True)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def shares_layers(self) -> bool:
        """Whether one module serves several layers, as in ALBERT."""
        return len({id(layer) for layer in self.layers}) < len(self.layers)


def unwrap(module: nn.Module) -> PreTrainedModel:
    """The library model inside a wrapper (LightningModule, DistributedDataParallel, compiled module).

    Raises:
        UserError: If there is none.
    """
    if isinstance(module, PreTrainedModel):
        return module
    for child in module.modules():
        if isinstance(child, PreTrainedModel):
            return child
    raise UserError(
        f"{type(module).__name__} holds no transformers model; give a PreTrainedModel or a module that wraps one."
    )


def describe(module: nn.Module) -> Encoder:
    """The encoder inside a model, through its family's adapter or, without one, the generic path.

    Raises:
        UserError: If the family has no adapter and bypasses the library's attention interface.
    """
    from bertsecrets.models.families import FAMILIES
    from bertsecrets.models.families.generic import generic_sites

    model = unwrap(module)
    base: Any = model.base_model
    num_heads, hidden = model.config.num_attention_heads, model.config.hidden_size
    family = FAMILIES.get(model.config.model_type)
    if family is None:
        layers, sites = generic_sites(base)
        inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
        below = [
            child for child in base.children() if not any(id(parameter) in inside for parameter in child.parameters())
        ]
        return Encoder(model, base, None, tuple(layers), tuple(sites), tuple(below), num_heads, hidden // num_heads)
    layers = list(family.layers(base))
    sites = [family.site(layer) for layer in layers]
    projection = sites[0].projection
    width = projection.in_features if projection is not None else hidden
    return Encoder(
        model,
        base,
        family,
        tuple(layers),
        tuple(sites),
        tuple(family.embeddings(base)),
        num_heads,
        width // num_heads,
        uses_interface=all(site.probabilities is None for site in sites),
    )
