"""DeBERTa-v2 and v3: disentangled attention that bypasses the library's attention interface."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.models.families.base import (
    AttentionSite,
    Family,
    HeadRows,
    HeadWeight,
    separate_projections,
    separate_rows,
)


class DebertaV2(Family):
    """``encoder.layer.i.attention.self`` with ``query_proj``, ``key_proj``, ``value_proj``."""

    model_types = ("deberta-v2",)
    unbatched = ("rel_embeddings", "relative_pos")

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        return list(encoder.layer)

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        extras = [getattr(encoder, name, None) for name in ("rel_embeddings", "LayerNorm", "conv")]
        return [base.embeddings, *(module for module in extras if module is not None)]

    def site(self, layer: Any) -> AttentionSite:
        attention = layer.attention
        return AttentionSite(attention.self, attention.output.dense, attention.self.value_proj, attention.self.dropout)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        assert site.projection is not None
        inputs = (attention.query_proj, attention.key_proj, attention.value_proj)
        return separate_projections(inputs, site.projection, num_heads)

    def continues(self, model: PreTrainedModel) -> bool:
        base: Any = model.base_model
        # The extra-large models have a convolution between layers 0 and 1.
        return getattr(base.encoder, "conv", None) is None

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[HeadRows] | None:
        attention: Any = site.module
        names = ("query_proj", "key_proj", "value_proj", "pos_key_proj", "pos_query_proj")
        return separate_rows((getattr(attention, name) for name in names if hasattr(attention, name)), num_heads)

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.attention.output(output_BSD, hidden_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        logits_BC: Tensor = whole.classifier(whole.pooler(hidden_BSD))
        return logits_BC
