"""DeBERTa-v2 and v3, whose disentangled attention bypasses the library's attention interface."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.models.encoder import AttentionSite
from bertsecrets.models.families.layout import HeadWeight, separate_projections, split_heads


class DebertaV2:
    """``encoder.layer.i.attention.self`` with ``query_proj``, ``key_proj``, ``value_proj``."""

    model_types: tuple[str, ...] = ("deberta-v2",)
    unbatched: tuple[str, ...] = ("rel_embeddings", "relative_pos")

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

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        return split_heads(projected_BSD, num_heads)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        assert site.projection is not None
        inputs = (attention.query_proj, attention.key_proj, attention.value_proj)
        return separate_projections(inputs, site.projection, num_heads)

    def continues(self, model: PreTrainedModel) -> bool:
        base: Any = model.base_model
        # The convolution of the extra-large models lies between layers 0 and 1.
        return getattr(base.encoder, "conv", None) is None

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.attention.output(output_BSD, hidden_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        logits_BC: Tensor = whole.classifier(whole.pooler(hidden_BSD))
        return logits_BC

    def first_token_decides(self, model: PreTrainedModel) -> bool:
        return True

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        return None
