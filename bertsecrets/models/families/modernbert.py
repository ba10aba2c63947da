"""ModernBERT: pre-norm, one map for query, key and value, and sliding-window attention in most layers."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.models.families.base import AttentionSite, Family, HeadWeight, LinearRows, mean_of_real


class ModernBert(Family):
    """``layers.i.attn`` with ``Wqkv`` (rows: all queries, all keys, all values) and the projection ``Wo``."""

    model_types = ("modernbert",)
    layer_list = "layers"
    attention = "attn"
    query = key = value = "Wqkv"
    projection = "attn.Wo"
    feed_forward_inputs = ("mlp.Wi",)
    feed_forward_output = "mlp.Wo"

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (3, num_heads, -1))[..., 2, :, :]
        return values_BSHd

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        # With one map for all three, the default view would mix query, key and value heads.
        *_, projection = super().head_weights(site, num_heads)
        attention: Any = site.module
        return [(attention.Wqkv.weight, (3, num_heads, -1), 1), projection]

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[LinearRows] | None:
        attention: Any = site.module
        return [(attention.Wqkv, (3, num_heads, -1), 1)]

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = hidden_BSD + layer.attn.Wo(output_BSD)
        result_BSD: Tensor = attended_BSD + layer.mlp(layer.mlp_norm(attended_BSD))
        return result_BSD

    def last_hidden(self, base: Any, hidden_BSD: Tensor) -> Tensor:
        normed_BSD: Tensor = base.final_norm(hidden_BSD)
        return normed_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        hidden_BSD = self.last_hidden(whole.model, hidden_BSD)
        pooled_BD = hidden_BSD[:, 0] if self.first_token_decides(model) else mean_of_real(hidden_BSD, real_BS)
        logits_BC: Tensor = whole.classifier(whole.head(pooled_BD))
        return logits_BC

    def first_token_decides(self, model: PreTrainedModel) -> bool:
        return bool(model.config.classifier_pooling == "cls")
