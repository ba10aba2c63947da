"""What an adapter says about its family of models, and what most adapters share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

HeadWeight = tuple[nn.Parameter, tuple[int, ...], int]
"""A parameter, the shape to view it in, and the dimension of that view that counts the heads."""

HeadRows = tuple[nn.Linear, tuple[int, ...], int]
"""A linear map, the shape to view its rows in, and the dimension of that view that counts the heads."""


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


class Family(ABC):
    """An adapter: how one family of models lays out its layers and heads. The defaults are those of BERT's attention."""

    model_types: tuple[str, ...]
    """Values of ``config.model_type``."""

    unbatched: tuple[str, ...] = ()
    """Tensor arguments of a layer's call that have no batch dimension."""

    @abstractmethod
    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        """The layers in order; a module that serves several layers is repeated."""

    @abstractmethod
    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        """The modules below the first layer."""

    @abstractmethod
    def site(self, layer: nn.Module) -> AttentionSite:
        """The self-attention of a layer."""

    @abstractmethod
    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        """The weights that belong to single heads."""

    @abstractmethod
    def after_heads(self, layer: nn.Module, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        """The rest of a layer: from the heads' outputs (the input of the projection) and the layer's input."""

    @abstractmethod
    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        """Logits ``[B, C]`` from the last layer's output; only the first token is needed if ``first_token_decides``."""

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        """The values of each head, ``[B, S, H, d]``, from the output of ``site.value``."""
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (num_heads, -1))
        return values_BSHd

    def continues(self, model: PreTrainedModel) -> bool:
        """Whether a forward pass can start at any layer, that is, whether only layers lie between the layers."""
        return True

    def first_token_decides(self, model: PreTrainedModel) -> bool:
        """Whether the task head reads the first token alone."""
        return True

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[HeadRows] | None:
        """The linear maps that feed single heads; None if heads cannot be removed from their rows."""
        return None

    def narrow(self, site: AttentionSite, kept: Sequence[int]) -> None:
        """Adapt what else of an attention module counts heads, after all but the ``kept`` ones were removed."""
        counts = {"num_attention_heads": len(kept), "n_heads": len(kept)}
        if site.value is not None:
            counts["all_head_size"] = site.value.out_features
        for name, count in counts.items():
            if hasattr(site.module, name):
                setattr(site.module, name, count)

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        """Query, key and value maps, if they read the layer's input and scores are their scaled products plus a bias."""
        return None

    def first_token_bias(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """What a layer adds to the first token's scores, ``[1, H, S]``, from the layer's arguments; None for nothing."""
        return None


def separate_projections(inputs: Sequence[Any], projection: Any, num_heads: int) -> list[HeadWeight]:
    """Head weights where query, key and value have one linear map each, and of the output projection."""
    weights: list[HeadWeight] = [(linear.weight, (num_heads, -1), 0) for linear in inputs]
    return [*weights, (projection.weight, (projection.out_features, num_heads, -1), 1)]


def separate_rows(inputs: Iterable[nn.Linear], num_heads: int) -> list[HeadRows]:
    """Head rows where query, key and value have one linear map each."""
    return [(linear, (num_heads, -1), 0) for linear in inputs]
