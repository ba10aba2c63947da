"""DistilBERT."""

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


class DistilBert(Family):
    """``transformer.layer.i.attention`` with ``q_lin``, ``k_lin``, ``v_lin``; ``out_lin`` projects."""

    model_types = ("distilbert",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        transformer: Any = base.transformer
        return list(transformer.layer)

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        embeddings: Any = base.embeddings
        return [embeddings]

    def site(self, layer: Any) -> AttentionSite:
        return AttentionSite(layer.attention, layer.attention.out_lin, layer.attention.v_lin)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        return separate_projections((attention.q_lin, attention.k_lin, attention.v_lin), attention.out_lin, num_heads)

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[HeadRows] | None:
        attention: Any = site.module
        return separate_rows((attention.q_lin, attention.k_lin, attention.v_lin), num_heads)

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.sa_layer_norm(layer.attention.out_lin(output_BSD) + hidden_BSD)
        result_BSD: Tensor = layer.output_layer_norm(layer.ffn(attended_BSD) + attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        logits_BC: Tensor = whole.classifier(whole.pre_classifier(hidden_BSD[:, 0]).relu())
        return logits_BC

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        attention: Any = site.module
        return attention.q_lin, attention.k_lin, attention.v_lin
