"""DeBERTa (the first version): one map projects query, key and value, head by head."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import AttentionSite, Family, HeadWeight


class Deberta(Family):
    """``encoder.layer.i.attention.self`` with ``in_proj``: its rows are query, key and value of one head after the other."""

    model_types = ("deberta",)
    unbatched = ("rel_embeddings", "relative_pos")

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        return list(encoder.layer)

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        extras = [getattr(encoder, "rel_embeddings", None)]
        return [base.embeddings, *(module for module in extras if module is not None)]

    def site(self, layer: Any) -> AttentionSite:
        attention = layer.attention
        if attention.self.talking_head:
            raise UserError(
                "This DeBERTa mixes its heads (config.talking_head is true), so its heads have no separate maps; "
                "use a DeBERTa without talking heads."
            )
        return AttentionSite(attention.self, attention.output.dense, attention.self.in_proj, attention.self.dropout)

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        attention: Any = site.module
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (num_heads, 3, -1))[..., 2, :]
        bias_Hd: Tensor = attention.v_bias.view(num_heads, -1)
        return values_BSHd + bias_Hd

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        assert site.projection is not None
        projection = site.projection
        return [
            (attention.in_proj.weight, (num_heads, -1), 0),
            (projection.weight, (projection.out_features, num_heads, -1), 1),
        ]

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.attention.output(output_BSD, hidden_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        logits_BC: Tensor = whole.classifier(whole.pooler(hidden_BSD))
        return logits_BC
