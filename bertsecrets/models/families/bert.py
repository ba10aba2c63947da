"""BERT and the families that share its module names: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA and others."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.models.families.base import AttentionSite, Family


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
    embedding_modules = ("embeddings", "embeddings_project")
    scaled_products = True

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        if model.config.model_type == "roberta-prelayernorm":
            base: Any = model.base_model
            hidden_BSD = base.LayerNorm(hidden_BSD)
        return super().classify(model, hidden_BSD, real_BS)

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        attention: Any = site.module
        # Its maps read the layer's input after a normalisation.
        is_normalised = attention.config.model_type == "roberta-prelayernorm"
        return None if is_normalised else super().linear_attention_inputs(site)
