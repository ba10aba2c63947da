"""ALBERT: layers share their weights, and one module is called once per layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.models.families.base import Family


class Albert(Family):
    """``encoder.albert_layer_groups.g.albert_layers.j.attention``, called group by group."""

    model_types = ("albert",)
    embedding_modules = ("embeddings", "encoder.embedding_hidden_mapping_in")
    attention = "attention"
    projection = "attention.dense"
    feed_forward_inputs = ("ffn",)
    feed_forward_output = "ffn_output"
    shared = True
    scaled_products = True

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        groups, depth = base.config.num_hidden_groups, base.config.num_hidden_layers
        # The library maps layer i to group int(i / (depth / groups)), and runs every inner layer of the group.
        return [
            inner
            for i in range(depth)
            for inner in encoder.albert_layer_groups[int(i / (depth / groups))].albert_layers
        ]

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.attention.LayerNorm(hidden_BSD + layer.attention.dense(output_BSD))
        result_BSD: Tensor = layer.full_layer_layer_norm(layer.ff_chunk(attended_BSD) + attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        base: Any = model.base_model
        logits_BC: Tensor = whole.classifier(base.pooler_activation(base.pooler(hidden_BSD[:, 0])))
        return logits_BC
