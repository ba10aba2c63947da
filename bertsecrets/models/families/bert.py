"""BERT, the families that share its module names, and its other relatives with absolute or relative positions.

Longformer and ConvBERT are rejected: attention within windows, and convolutions that read padding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import AttentionSite, Family, FeedForward, HeadWeight


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


class MPNet(Family):
    """``encoder.layer.i.attention.attn`` with ``q``, ``k``, ``v``; its ``o`` projects."""

    model_types = ("mpnet",)
    embedding_modules = ("embeddings", "encoder.relative_attention_bias")
    attention = "attention.attn"
    query, key, value = "q", "k", "v"
    projection = "attention.attn.o"
    dropout = "dropout"
    scaled_products = True

    def narrow(self, site: AttentionSite, kept: Sequence[int]) -> None:
        super().narrow(site, kept)
        heads = list(kept)

        def select(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            hidden_BSD, mask, bias_BHQK = args
            return (hidden_BSD, mask, bias_BHQK[:, heads]), kwargs

        # All layers share one position bias, which has all heads.
        site.module.register_forward_pre_hook(select, with_kwargs=True)

    def score_bias(self, arguments: Mapping[str, Any]) -> Tensor | None:
        bias_BHQK: Tensor | None = arguments.get("position_bias")
        return None if bias_BHQK is None else bias_BHQK[0]

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.attention.LayerNorm(layer.attention.attn.o(output_BSD) + hidden_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD)
        return result_BSD


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


class Deberta(DebertaV2):
    """The first version, with ``in_proj``: its rows are query, key and value of one head after the other."""

    model_types = ("deberta",)
    embedding_modules = ("embeddings", "encoder.rel_embeddings")
    query = key = value = "in_proj"
    shared = True

    def site(self, layer: Any) -> AttentionSite:
        if layer.attention.self.talking_head:
            raise UserError(
                "This DeBERTa mixes its heads (config.talking_head is true), so its heads have no separate maps; "
                "use a DeBERTa without talking heads."
            )
        return super().site(layer)

    def values(self, site: AttentionSite, projected_BSD: Tensor, num_heads: int) -> Tensor:
        attention: Any = site.module
        values_BSHd: Tensor = projected_BSD.unflatten(-1, (num_heads, 3, -1))[..., 2, :]
        bias_Hd: Tensor = attention.v_bias.view(num_heads, -1)
        return values_BSHd + bias_Hd

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        *_, fused, projection = super().head_weights(site, num_heads)
        return [fused, projection]


class ConvBert(Family):
    """Attention heads next to convolutions over neighbouring tokens, with kernels computed from the heads' queries."""

    model_types = ("convbert",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        raise UserError(
            "ConvBERT convolves each token with its neighbours, including padding, so its output for a text depends "
            "on the longest text of the batch and heads cannot be evaluated; give an encoder without convolutions, "
            "such as ELECTRA."
        )


class Longformer(Family):
    """Each token attends to a window around it and to a few global tokens."""

    model_types = ("longformer",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        raise UserError(
            "Longformer attends within windows, so its heads have no map over all tokens; give an encoder with full "
            "attention, such as ModernBERT for texts of up to 8,192 tokens."
        )
