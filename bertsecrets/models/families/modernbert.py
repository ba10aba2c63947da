"""ModernBERT: pre-norm, one map for query, key and value, and sliding-window attention in most layers."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.models.encoder import AttentionSite
from bertsecrets.models.families.layout import HeadWeight


class ModernBert:
    """``layers.i.attn`` with ``Wqkv``, whose rows hold all queries, then all keys, then all values; ``Wo`` projects."""

    model_types: tuple[str, ...] = ("modernbert",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        layers: Any = base.layers
        return list(layers)

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        embeddings: Any = base.embeddings
        return [embeddings]

    def site(self, layer: Any) -> AttentionSite:
        return AttentionSite(layer.attn, layer.attn.Wo, layer.attn.Wqkv)

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (3, num_heads, -1))[..., 2, :, :]
        return values_BSHd

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        assert site.projection is not None
        projection = site.projection
        return [
            (attention.Wqkv.weight, (3, num_heads, -1), 1),
            (projection.weight, (projection.out_features, num_heads, -1), 1),
        ]
