"""BERT and the families that share its module names: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA and others."""

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


class Bert(Family):
    """``encoder.layer.i.attention.self`` with ``query``, ``key``, ``value``; ``attention.output.dense`` projects."""

    model_types = (
        "bert",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
    )

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        return list(encoder.layer)

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        return [getattr(base, name) for name in ("embeddings", "embeddings_project") if hasattr(base, name)]

    def site(self, layer: Any) -> AttentionSite:
        attention = layer.attention
        return AttentionSite(attention.self, attention.output.dense, attention.self.value)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        assert site.projection is not None
        return separate_projections((attention.query, attention.key, attention.value), site.projection, num_heads)

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[HeadRows] | None:
        attention: Any = site.module
        return separate_rows((attention.query, attention.key, attention.value), num_heads)

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        result_BSD: Tensor = layer.feed_forward_chunk(layer.attention.output(output_BSD, hidden_BSD))
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        base: Any = model.base_model
        if model.config.model_type == "roberta-prelayernorm":
            hidden_BSD = base.LayerNorm(hidden_BSD)
        pooled = hidden_BSD if getattr(base, "pooler", None) is None else base.pooler(hidden_BSD)
        logits_BC: Tensor = whole.classifier(pooled)
        return logits_BC

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        attention: Any = site.module
        if attention.config.model_type == "roberta-prelayernorm":
            return None
        return attention.query, attention.key, attention.value
