"""Confidence of heads: the largest weight of a row, on average (Voita et al. 2019, section 4; methods V1)."""

from typing import Literal

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import MaxExamples
from bertsecrets.measures.ratio import RatioMeasure
from bertsecrets.settings import typed

MeanOver = Literal["tokens", "examples"]
Rows = Literal["all", "words"]

_UNIT = "mean of the largest weight of a row"


class Confidence(RatioMeasure):
    """Mean over tokens of the largest attention weight.

    Columns:
        ``confidence``: the largest weight on any token except [SEP], as published; 0..1.
        ``to_words``: the largest weight on a token that is not special.
        ``to_any``: the largest weight on any token.

    Args:
        mean_over: ``tokens`` weighs all tokens equally, so that long texts weigh more, as published; ``examples``
            weighs texts equally. Standard errors account for the correlation of tokens in a text.
        rows: Tokens whose attention counts: ``all``, or ``words`` (without special tokens). The paper does not specify
            this.

    Raises:
        UserError: If ``mean_over`` or ``rows`` does not exist.
    """

    name = "confidence"
    title = "Confidence of heads"
    shown = Shown(
        about="Confidence is the mean over tokens of the largest attention weight, ignoring attention to [SEP] (Voita "
        "et al. 2019). It depends only on the maps: a head with focused attention need not matter for the task.",
    )
    presenter = "bertsecrets.present.importance:CONFIDENCE"
    columns = (
        Column("confidence", "to any token except [SEP]", _UNIT, (0.0, 1.0), keep="high"),
        Column("to_words", "to words", _UNIT, (0.0, 1.0), keep="high"),
        Column("to_any", "to any token", _UNIT, (0.0, 1.0), keep="high"),
    )

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        mean_over: MeanOver = "tokens",
        rows: Rows = "all",
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.mean_over, self.rows = mean_over, rows

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        special_BS = batch.special_BS & real_BS
        rows_BS = self._rows_BS(batch)
        weight_BQ = rows_BS.to(attention_BHQK.dtype)
        means = []
        for keys_BS in (real_BS & ~batch.separators_BS, real_BS & ~special_BS, real_BS):
            largest_BHQ = attention_BHQK.masked_fill(~keys_BS[:, None, None], 0).amax(-1)
            mean_BH = (largest_BHQ * weight_BQ[:, None]).sum(-1) / weight_BQ.sum(-1, keepdim=True)
            # An example without such tokens has no largest weight; 0 would lower the mean.
            means.append(mean_BH.masked_fill(~keys_BS.any(-1, keepdim=True), torch.nan))
        return torch.stack(means, -1)

    def _rows_BS(self, batch: Batch) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        return real_BS & ~batch.special_BS if self.rows == "words" else real_BS

    def weights(self, batch: Batch) -> Tensor:
        rows_B1 = self._rows_BS(batch).sum(-1, keepdim=True)
        return rows_B1 if self.mean_over == "tokens" else torch.ones_like(rows_B1)
