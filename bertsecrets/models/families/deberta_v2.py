"""DeBERTa-v2 and v3: disentangled attention that bypasses the library's attention interface."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.models.families.base import Family


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
