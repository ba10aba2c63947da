"""Encoders with rotary positions: ModernBERT, Nomic BERT, GTE, Jina v3 and EuroBERT."""

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


class NomicBert(Family):
    """``layers.i.self_attn`` with ``q_proj``, ``k_proj``, ``v_proj``; its ``o_proj`` projects; a gated feed-forward
    part.
    """

    model_types: tuple[str, ...] = ("nomic_bert", "gte")
    layer_list = "layers"
    attention = "self_attn"
    query, key, value = "q_proj", "k_proj", "v_proj"
    projection = "self_attn.o_proj"
    feed_forward_inputs: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    feed_forward_output = "mlp.down_proj"

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.post_attention_layernorm(hidden_BSD + layer.self_attn.o_proj(output_BSD))
        result_BSD: Tensor = layer.post_mlp_layernorm(attended_BSD + layer.mlp(attended_BSD))
        return result_BSD


class JinaV3(NomicBert):
    """As :class:`NomicBert`, with an ungated feed-forward part."""

    model_types = ("jina_embeddings_v3",)
    feed_forward_inputs = ("mlp.fc1",)
    feed_forward_output = "mlp.fc2"


class EuroBert(NomicBert):
    """As :class:`NomicBert`, but pre-norm; several heads may share keys and values (grouped queries)."""

    model_types = ("eurobert",)
    embedding_modules = ("embed_tokens",)

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        attention: Any = site.module
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (-1, attention.head_dim))
        # Neighbouring heads share a value, as in the library's repeat_kv.
        return values_BSHd.repeat_interleave(num_heads // values_BSHd.shape[2], dim=2)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        query, *others, projection = super().head_weights(site, num_heads)
        return [query, projection] if self._is_grouped(site) else [query, *others, projection]

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[LinearRows] | None:
        return None if self._is_grouped(site) else super().head_rows(site, num_heads)

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = hidden_BSD + layer.self_attn.o_proj(output_BSD)
        result_BSD: Tensor = attended_BSD + layer.mlp(layer.post_attention_layernorm(attended_BSD))
        return result_BSD

    def last_hidden(self, base: Any, hidden_BSD: Tensor) -> Tensor:
        normed_BSD: Tensor = base.norm(hidden_BSD)
        return normed_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        hidden_BSD, pooling = self.last_hidden(whole.model, hidden_BSD), model.config.classifier_pooling
        if pooling == "late":
            return mean_of_real(whole.classifier(whole.activation(whole.dense(hidden_BSD))), real_BS)
        pooled_BD = hidden_BSD[:, 0] if pooling == "bos" else mean_of_real(hidden_BSD, real_BS)
        logits_BC: Tensor = whole.classifier(whole.activation(whole.dense(pooled_BD)))
        return logits_BC

    def first_token_decides(self, model: PreTrainedModel) -> bool:
        return bool(model.config.classifier_pooling == "bos")

    def _is_grouped(self, site: AttentionSite) -> bool:
        query, key, _ = self._inputs(site)
        return key.out_features < query.out_features
