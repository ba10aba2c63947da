"""DeBERTa: disentangled attention that bypasses the library's attention interface."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import AttentionSite, Family, HeadWeight


class DebertaV2(Family):
    """``encoder.layer.i.attention.self`` with ``query_proj``, ``key_proj``, ``value_proj``."""

    model_types = ("deberta-v2",)
    embedding_modules: tuple[str, ...] = ("embeddings", "encoder.rel_embeddings", "encoder.LayerNorm", "encoder.conv")
    query, key, value = "query_proj", "key_proj", "value_proj"
    dropout = "dropout"
    position_maps = ("pos_key_proj", "pos_query_proj")
    unbatched = ("rel_embeddings", "relative_pos")

    def continues(self, model: PreTrainedModel) -> bool:
        base: Any = model.base_model
        # The extra-large models have a convolution between layers 0 and 1.
        return getattr(base.encoder, "conv", None) is None

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.attention.output(output_BSD, hidden_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        logits_BC: Tensor = whole.classifier(whole.pooler(hidden_BSD))
        return logits_BC


class Deberta(DebertaV2):
    """The first version, with ``in_proj``: its rows are query, key and value of one head after the other."""

    model_types = ("deberta",)
    embedding_modules = ("embeddings", "encoder.rel_embeddings")
    query = key = value = "in_proj"
    shared = True

    def site(self, layer: Any) -> AttentionSite:
        if layer.attention.self.talking_head:
            raise UserError(
                "This DeBERTa mixes its heads (config.talking_head is true), so its heads have no separate maps; "
                "use a DeBERTa without talking heads."
            )
        return super().site(layer)

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        attention: Any = site.module
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (num_heads, 3, -1))[..., 2, :]
        bias_Hd: Tensor = attention.v_bias.view(num_heads, -1)
        return values_BSHd + bias_Hd

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        *_, fused, projection = super().head_weights(site, num_heads)
        return [fused, projection]
