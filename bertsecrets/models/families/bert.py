"""BERT and the families that share its module names: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, RemBERT, RoFormer,
BigBird, LUKE, MobileBERT and others.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import Family, FeedForward


class Bert(Family):
    """``encoder.layer.i.attention.self`` with ``query``, ``key``, ``value``; ``attention.output.dense`` projects."""

    model_types: tuple[str, ...] = (
        "bert",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "roberta",
        "xlm-roberta",
    )
    embedding_modules: tuple[str, ...] = ("embeddings", "embeddings_project")
    scaled_products = True


class RemBert(Bert):
    """As BERT, but it bypasses the library's attention interface, and widens its embeddings in the encoder."""

    model_types = ("rembert",)
    embedding_modules = ("embeddings", "encoder.embedding_hidden_mapping_in")
    dropout = "dropout"


class RoFormer(Bert):
    """As BERT, but it bypasses the library's attention interface, and rotates queries and keys by position."""

    model_types = ("roformer",)
    dropout = "dropout"
    scaled_products = False


class BigBird(Bert):
    """As BERT, but it bypasses the library's attention interface; rejected if it uses block-sparse attention."""

    model_types = ("big_bird",)
    dropout = "dropout"

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        attention_type = getattr(base, "attention_type", None)
        if attention_type != "original_full":
            raise UserError(
                f"This BigBird attends in blocks (attention_type is '{attention_type}'), so its heads have no map "
                "over all tokens; call set_attention_type('original_full'), which supports texts of up to 4,096 "
                "tokens."
            )
        return super().layers(base)

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        # Its pooler is a linear map that the task head does not use.
        logits_BC: Tensor = whole.classifier(hidden_BSD)
        return logits_BC


class PreNorm(Bert):
    """BERT's names, but each sublayer normalises its input first, and the last output is normalised."""

    model_types: tuple[str, ...] = ("esm", "roberta-prelayernorm", "xlm-roberta-xl")
    scaled_products = False
    last_norms: tuple[str, ...] = ("LayerNorm", "encoder.LayerNorm", "encoder.emb_layer_norm_after")
    """Possible paths of the last normalisation, from the encoder."""

    def last_hidden(self, base: PreTrainedModel, hidden_BSD: Tensor) -> Tensor:
        (norm,) = self.parts(base, self.last_norms)
        normed_BSD: Tensor = norm(hidden_BSD)
        return normed_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        base: Any = model.base_model
        return super().classify(model, self.last_hidden(base, hidden_BSD), real_BS)


class MegatronBert(PreNorm):
    """As :class:`PreNorm`, but it bypasses the library's attention interface."""

    model_types = ("megatron-bert",)
    dropout = "dropout"
    last_norms = ("encoder.ln",)


class Luke(Bert):
    """As BERT, but it bypasses the library's attention interface; used with words only, without entities."""

    model_types = ("luke",)
    dropout = "dropout"
    # Queries between words and entities: a text of words does not use them, but they have rows for each head.
    position_maps = ("w2e_query", "e2w_query", "e2e_query")
    other_positions = ("entity_ids",)


class MobileBert(Bert):
    """BERT's names, between linear maps into and out of a bottleneck, and with several feed-forward parts."""

    model_types = ("mobilebert",)
    scaled_products = False

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        # The attention's residual sum is in the bottleneck; only the layer's output is wide again.
        *_, narrow_BSD = layer.bottleneck(hidden_BSD)
        attended_BSD = layer.attention.output(output_BSD, narrow_BSD)
        for part in layer.ffn:
            attended_BSD = part(attended_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD, hidden_BSD)
        return result_BSD

    def feed_forward(self, layer: nn.Module) -> FeedForward:
        raise UserError(
            "A MobileBERT layer has several feed-forward parts, which are not supported; disable or remove only heads."
        )
