"""DeBERTa (the first version): one map projects query, key and value, head by head."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import AttentionSite, HeadWeight
from bertsecrets.models.families.deberta_v2 import DebertaV2


class Deberta(DebertaV2):
    """``encoder.layer.i.attention.self`` with ``in_proj``: its rows are query, key and value of one head after the
    other.
    """

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
