"""DistilBERT."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.models.families.base import Family


class DistilBert(Family):
    """``transformer.layer.i.attention`` with ``q_lin``, ``k_lin``, ``v_lin``; ``out_lin`` projects."""

    model_types = ("distilbert",)
    layer_list = "transformer.layer"
    attention = "attention"
    query, key, value = "q_lin", "k_lin", "v_lin"
    projection = "attention.out_lin"
    feed_forward_inputs = ("ffn.lin1",)
    feed_forward_output = "ffn.lin2"
    scaled_products = True

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.sa_layer_norm(layer.attention.out_lin(output_BSD) + hidden_BSD)
        result_BSD: Tensor = layer.output_layer_norm(layer.ffn(attended_BSD) + attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        logits_BC: Tensor = whole.classifier(whole.pre_classifier(hidden_BSD[:, 0]).relu())
        return logits_BC
