"""MPNet, which bypasses the library's attention interface and adds a relative position bias."""

from collections.abc import Mapping, Sequence
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


class MPNet(Family):
    """``encoder.layer.i.attention.attn`` with ``q``, ``k``, ``v``; its ``o`` projects."""

    model_types = ("mpnet",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        return list(encoder.layer)

    def embeddings(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        encoder: Any = base.encoder
        return [base.embeddings, encoder.relative_attention_bias]

    def site(self, layer: Any) -> AttentionSite:
        attention = layer.attention.attn
        return AttentionSite(attention, attention.o, attention.v, attention.dropout)

    def head_weights(self, site: AttentionSite, num_heads: int) -> Sequence[HeadWeight]:
        attention: Any = site.module
        return separate_projections((attention.q, attention.k, attention.v), attention.o, num_heads)

    def head_rows(self, site: AttentionSite, num_heads: int) -> Sequence[HeadRows] | None:
        attention: Any = site.module
        return separate_rows((attention.q, attention.k, attention.v), num_heads)

    def narrow(self, site: AttentionSite, kept: Sequence[int]) -> None:
        super().narrow(site, kept)
        heads = list(kept)

        def select(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            hidden_BSD, mask, bias_BHQK = args
            return (hidden_BSD, mask, bias_BHQK[:, heads]), kwargs

        # All layers share one position bias, which has all heads.
        site.module.register_forward_pre_hook(select, with_kwargs=True)

    def linear_attention_inputs(self, site: AttentionSite) -> tuple[nn.Linear, nn.Linear, nn.Linear] | None:
        attention: Any = site.module
        return attention.q, attention.k, attention.v

    def first_token_bias(self, arguments: Mapping[str, Any]) -> Tensor | None:
        bias_BHQK: Tensor | None = arguments.get("position_bias")
        return None if bias_BHQK is None else bias_BHQK[:1, :, 0]

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        attended_BSD = layer.attention.LayerNorm(layer.attention.attn.o(output_BSD) + hidden_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD)
        return result_BSD

    def classify(self, model: PreTrainedModel, hidden_BSD: Tensor, real_BS: Tensor) -> Tensor:
        whole: Any = model
        logits_BC: Tensor = whole.classifier(hidden_BSD)
        return logits_BC
