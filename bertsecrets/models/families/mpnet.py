"""MPNet, which computes its attention itself, with a relative position bias."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.models.encoder import AttentionSite
from bertsecrets.models.families.layout import HeadWeight, separate_projections, split_heads


class MPNet:
    """``encoder.layer.i.attention.attn`` with ``q``, ``k``, ``v``; its ``o`` projects."""

    model_types: tuple[str, ...] = ("mpnet",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        return list(encoder.layer)

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        return [base.embeddings, encoder.relative_attention_bias]

    def site(self, layer: Any) -> AttentionSite:
        attention = layer.attention.attn
        return AttentionSite(attention, attention.o, attention.v, attention.dropout)

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        return split_heads(projected_BSD, num_heads)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        return separate_projections((attention.q, attention.k, attention.v), attention.o, num_heads)
