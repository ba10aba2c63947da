"""Confidence of heads: the largest weight of a row, on average (Voita et al. 2019, section 4; METHODS V1)."""

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Feed, MaxExamples, Measure
from bertsecrets.results.report.content import Section
from bertsecrets.results.sections import describe_columns
from bertsecrets.results.views import MeasureView

MeanOver = Literal["tokens", "examples"]
Rows = Literal["all", "words"]

_UNIT = "mean of the largest weight of a row"
_CONFIDENT = 0.8


class Confidence(Measure):
    """Mean over tokens of the largest attention weight.

    Columns:
        ``confidence``: the largest weight given to any token but the end of a sentence ([SEP]), as published; 0..1.
        ``to_words``: the largest weight given to a token that is not special.
        ``to_any``: the largest weight given to any token.

    Args:
        num_layers, num_heads: Size of the grid.
        mean_over: ``tokens`` weighs all tokens equally, so that long texts weigh more, as published; ``examples`` weighs
            texts equally. Standard errors allow for the tokens of one text being alike.
        rows: Tokens whose attention counts: ``all``, or ``words``, which are not special. The paper does not say which.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If ``mean_over`` or ``rows`` does not exist.
    """

    name = "confidence"
    title = "Confidence of heads"
    columns = (
        Column("confidence", "to any token but [SEP]", _UNIT, (0.0, 1.0), keep="high"),
        Column("to_words", "to words", _UNIT, (0.0, 1.0), keep="high"),
        Column("to_any", "to any token", _UNIT, (0.0, 1.0), keep="high"),
    )

    weighted_LHC: Tensor
    weight_LHC: Tensor
    products_LHC: Tensor
    weight_squares_LHC: Tensor
    weighted_squares_LHC: Tensor

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        mean_over: MeanOver = "tokens",
        rows: Rows = "all",
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(num_layers, num_heads)
        for key, value, valid in (("mean_over", mean_over, get_args(MeanOver)), ("rows", rows, get_args(Rows))):
            if value not in valid:
                raise UserError(f"Unknown {key} '{value}' of the confidence measure; {choices(str(value), valid)}.")
        self.mean_over, self.rows = mean_over, rows
        self.feed = Feed(max_examples=max_examples)
        for name in ("weighted", "weight", "products", "weight_squares", "weighted_squares"):
            self.add_state(f"{name}_LHC", torch.zeros_like(self.total_LHC), dist_reduce_fx="sum")

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        special_BS = batch.special_BS & real_BS
        end_BS = special_BS & (special_BS.cumsum(-1) > 1)
        rows_BS = self._rows_BS(batch)
        weight_BQ = rows_BS.to(attention_BHQK.dtype)
        means = []
        for keys_BS in (real_BS & ~end_BS, real_BS & ~special_BS, real_BS):
            largest_BHQ = attention_BHQK.masked_fill(~keys_BS[:, None, None], 0).amax(-1)
            mean_BH = (largest_BHQ * weight_BQ[:, None]).sum(-1) / weight_BQ.sum(-1, keepdim=True)
            means.append(mean_BH.masked_fill(~keys_BS.any(-1, keepdim=True), torch.nan))
        return torch.stack(means, -1)

    def _rows_BS(self, batch: Batch) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        return real_BS & ~batch.special_BS if self.rows == "words" else real_BS

    def _add(self, layer: int, batch: Batch, values_BHC: Tensor | None) -> None:
        super()._add(layer, batch, values_BHC)
        assert values_BHC is not None
        value_BHC = values_BHC.to(self.total_LHC.device).to(torch.float64)
        rows_B = self._rows_BS(batch).sum(-1).to(value_BHC)
        known_BHC = value_BHC.isfinite()
        weight_BHC = rows_B[:, None, None] * known_BHC
        weighted_BHC = weight_BHC * value_BHC.nan_to_num()
        self.weighted_LHC[layer] += weighted_BHC.sum(0)
        self.weight_LHC[layer] += weight_BHC.sum(0)
        self.products_LHC[layer] += (weight_BHC * weighted_BHC).sum(0)
        self.weight_squares_LHC[layer] += weight_BHC.square().sum(0)
        self.weighted_squares_LHC[layer] += weighted_BHC.square().sum(0)

    def compute(self) -> HeadGrid:
        """Mean, standard error and count, reduced over all processes."""
        if self.mean_over == "examples":
            return super().compute()
        mean_LHC = self.weighted_LHC / self.weight_LHC
        # Ratio estimator: the spread of each text's sum about the mean times its number of tokens.
        spread_LHC = (
            self.weighted_squares_LHC - 2 * mean_LHC * self.products_LHC + mean_LHC.square() * self.weight_squares_LHC
        ).clamp(min=0)
        few_LHC = self.count_LHC < 2
        scale_LHC = self.count_LHC / (self.count_LHC - 1).clamp(min=1)
        stderr_LHC = (spread_LHC * scale_LHC).sqrt() / self.weight_LHC
        return HeadGrid(self.name, self.averaged, mean_LHC, stderr_LHC.masked_fill(few_LHC, torch.nan), self.count_LHC)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Every column by head, and the number of confident heads."""
        section = describe_columns(view)
        if section is None or not view.has("confidence"):
            return section
        value_LH = view.value("confidence")
        sentence = (
            f"{int((value_LH > _CONFIDENT).sum())} of {value_LH.size} heads have a confidence above {_CONFIDENT:g}, the level of "
            "positional heads in the paper."
        )
        paragraph = (
            "Confidence is the mean over tokens of the largest attention weight, attention to [SEP] left out (Voita et al. "
            "2019). It is read off the maps alone: a head that is sure of where to look need not matter to the task."
        )
        return replace(section, findings=[*section.findings, sentence], paragraphs=[*section.paragraphs, paragraph])
