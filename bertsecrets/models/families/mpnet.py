"""MPNet, which bypasses the library's attention interface and adds a relative position bias."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from bertsecrets.models.families.base import AttentionSite, Family


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
