"""Gradient importance of attention to [SEP] and other tokens (Clark et al. 2019, section 3.2; methods C3)."""

import math
from collections.abc import Mapping
from copy import copy
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from bertsecrets.data.batch import Batch
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.base import Differentiated, MaxExamples, Need, Passed
from bertsecrets.measures.surface import CLASSES, MARKS, Marks, TokenClasses
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import number
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.settings import typed
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero

GRADIENT, PRODUCT, MINUS_OTHER = "gradient_", "product_", "_minus_other"
ALL = "all"

_GRADIENT = "mean |∂loss/∂attention|"
_PRODUCT = "|attention × gradient|, sum over a row"
_SPECIAL = {"sep_total": "[SEP]", "cls": "[CLS]"}
_LABELS = {**CLASSES, ALL: "any token"}

Array = NDArray[np.float64]
Grid = tuple[Array, Array, NDArray[np.int64]]
"""Values, standard errors and counts of a column, ``[layers, heads]`` each."""


class GradientImportance(TokenClasses):
    """How much the task loss changes with a head's attention to four classes of tokens, to first order.

    With a the attention of token i to token j and g the derivative of the example's loss with respect to it, all other
    weights held fixed:

    Columns:
        ``gradient_<class>``: mean of |g| over all i and the tokens j of the class; an example without such tokens does
            not count. Classes are those of the measure ``surface``, and ``all``.
        ``product_<class>``: mean over i of the sum over the tokens j of the class of |a g|; an example without such
            tokens counts as 0. The four classes add up to ``product_all``.
        ``sep_total_minus_other``, ``cls_minus_other``: ``gradient_sep_total`` (``gradient_cls``) minus
            ``gradient_other``, example by example, to test whether they differ.

    For the settings see :class:`~bertsecrets.measures.surface.TokenClasses`.
    """

    name = "gradient_importance"
    title = "Gradient importance of attention"
    shown = Shown(reads_task=True)
    loss: ClassVar[str] = "the loss"
    loss_in_words: ClassVar[str] = "that of the task; the paper's is that of masked words (masked_lm_gradient)"
    columns = (
        *(
            Column(GRADIENT + name, f"gradient, {label}", _GRADIENT, keep="high" if name == ALL else None)
            for name, label in _LABELS.items()
        ),
        *(
            Column(PRODUCT + name, f"attention × gradient, {label}", _PRODUCT, keep="high" if name == ALL else None)
            for name, label in _LABELS.items()
        ),
        *(
            Column(name + MINUS_OTHER, f"gradient, {label} minus other tokens", f"difference of {_GRADIENT}")
            for name, label in _SPECIAL.items()
        ),
    )
    tracked = (GRADIENT + "sep_total", GRADIENT + ALL)

    needs = frozenset({Need.GRADIENT})

    def values(self, passed: Passed) -> Tensor:
        attention_BHQK, gradient_BHQK, batch = passed.attention_BHQK, passed.gradient_BHQK, passed.batch
        real_BS = batch.attention_mask_BS.bool()
        class_BCS = torch.cat((self.token_classes(batch), real_BS[:, None]), 1).to(attention_BHQK.dtype)
        row_BS = real_BS.to(attention_BHQK.dtype)
        row_B1Q1 = (row_BS / row_BS.sum(-1, keepdim=True))[:, None, :, None]
        size_BHQK = gradient_BHQK.abs()
        # The mean over rows first: what remains is one number for each token attended to.
        slope_BHK = (size_BHQK * row_B1Q1).sum(2)
        product_BHK = (size_BHQK * attention_BHQK * row_B1Q1).sum(2)
        count_B1C = class_BCS.sum(-1)[:, None]
        slope_BHC = slope_BHK @ class_BCS.transpose(1, 2) / count_B1C
        slope_BHC = slope_BHC.masked_fill(count_B1C == 0, torch.nan)
        names = list(_LABELS)
        other_BH = slope_BHC[..., names.index("other")]
        minus_BHC = torch.stack([slope_BHC[..., names.index(name)] - other_BH for name in _SPECIAL], -1)
        return torch.cat((slope_BHC, product_BHK @ class_BCS.transpose(1, 2), minus_BHC), -1)

    def extras(self, grid: HeadGrid, model: nn.Module) -> dict[str, Any]:
        """For each special token the layers' mean gradients over those for other tokens, and numbers of heads that differ."""
        columns: dict[str, Grid] = {
            column: (
                grid.value_LHC[..., index].numpy(),
                grid.stderr_LHC[..., index].numpy(),
                grid.count_LHC[..., index].numpy(),
            )
            for index, column in enumerate(grid.columns)
        }
        differs = _differs(columns)
        return {
            name: {
                "ratio_by_layer": [None if math.isnan(ratio) else ratio for ratio in _ratios(columns, name).tolist()],
                "heads": int(differs[name].size),
                "less": int((differs[name] & (columns[name + MINUS_OTHER][0] < 0)).sum()),
                "more": int((differs[name] & (columns[name + MINUS_OTHER][0] > 0)).sum()),
            }
            for name in _SPECIAL
        }

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Figure 3 of the paper: gradients by layer for each class, with attention times gradient, and a test by head."""
        if not view.has(GRADIENT + ALL):
            return None
        note = sample_size(view.count(GRADIENT + ALL))
        shown = ("cls", "sep_total", "punctuation", ALL)
        figures = []
        for prefix, unit, name, title in (
            (GRADIENT, _GRADIENT, cls.name, f"Gradient of {cls.loss} with respect to attention"),
            (PRODUCT, _PRODUCT, f"{cls.name}_product", "Attention times gradient"),
        ):
            lines = [LayerLine(_LABELS[column], view.value(prefix + column)) for column in shown]
            figure = layer_scatter({"": lines}, title=f"{title}, by layer", unit=unit, note=note)
            caption = (
                "Figure 3 of Clark et al." if prefix == GRADIENT else "Each class's share of the first-order effect."
            )
            figures.append(
                FigureBlock(
                    name, figure, f"{caption} A dot for each head.", f"Scatter of heads by layer: {title.lower()}."
                )
            )
        columns = {column.name: view.grid(column.name) for column in view.columns if view.has(column.name)}
        differs = _differs(columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            panels = [
                HeadPanel(
                    f"{_SPECIAL[name]} ÷ other tokens",
                    np.log2(view.value(GRADIENT + name) / view.value(GRADIENT + "other")),
                    differs[name],
                )
                for name in _SPECIAL
            ]
        heads = head_panels(
            panels,
            title="Gradients with respect to attention to special tokens, over those to other tokens",
            unit="log2 of the ratio",
            note=f"pale: may be chance (paired t test over examples, false discovery rate {LEVEL:.0%}); {note}",
            signed=True,
        )
        figures.append(FigureBlock(f"{cls.name}_heads", heads, "Head by head.", "Heatmaps of ratios."))
        return Section(
            view.title,
            [
                _finding(columns, name, differs[name], cls.loss)
                for name in _SPECIAL
                if np.isfinite(view.value(GRADIENT + name)).any()
            ],
            [
                "The gradient of an example's loss with respect to a head's attention from one token to another, all other "
                "weights held fixed, in absolute value, averaged over all pairs with a token of the class, then over "
                f"examples (Clark et al. 2019, section 3.2). The loss is {cls.loss_in_words}. "
                "Layers differ in scale, so that only classes within a layer can be compared. A small gradient "
                "says that a small change of the attention hardly changes the loss; what turning all of it away does is "
                "tested by analysis=sinks."
            ],
            [_table(view)],
            figures,
        )


class MaskedLMGradient(GradientImportance):
    """Gradient importance of the masked-language-model loss, as in the paper; needs no labels.

    Of each example's tokens other than special ones 15 % are drawn, at least one; 80 % of these become the mask token, 10 %
    a random token and 10 % stay (Devlin et al. 2019, section 3.1). The loss of an example is the mean cross-entropy of the
    drawn tokens. Classes of tokens are those of what the model reads: a mask is one of the other tokens.

    The head is that of the pre-trained weights, on the encoder as it is measured. A model that has such a head itself, from
    ``AutoModelForMaskedLM``, is taken as it is.

    Args:
        share: Share of the tokens to predict.
        seed: Seed of the draw; which tokens of an example are drawn does not depend on its batch.

    For the columns see :class:`GradientImportance`, for other settings :class:`~bertsecrets.measures.surface.TokenClasses`.

    Raises:
        UserError: If the tokenizer has no mask token, or the model no masked-language-model head.
    """

    name = "masked_lm_gradient"
    title = "Gradient importance of attention for masked words"
    needs = frozenset({Need.MASKED_LM})
    loss = "the loss of masked words"
    loss_in_words = "that of masked words, as in the paper"

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        marks: Marks = MARKS,
        share: Annotated[float, Field(gt=0, le=1, description="a number above 0 and up to 1")] = 0.15,
        seed: Annotated[int, Field(ge=0, description="a whole number from 0")] = 0,
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(num_layers, num_heads, marks, max_examples)
        self.share = share
        self.seed = seed
        self._mask_id: int | None = None
        # In a list, so that it is no part of the measure's state.
        self._head: list[PreTrainedModel] = []

    def take_head(self, masked_lm: PreTrainedModel) -> None:
        self._head = [masked_lm]

    def prepare(self, split: EncodedSplit) -> None:
        super().prepare(split)
        self._mask_id = split.tokenizer.mask_token_id
        if self._mask_id is None:
            raise UserError(
                f"Measure '{self.name}' masks words, but the tokenizer has no mask token; leave the measure out, or give a "
                "model that was trained on masked words."
            )

    def values(self, passed: Passed) -> Tensor:
        batch = passed.batch
        values_BHC = super().values(passed)
        # A text without words has no loss.
        worded_B = (batch.attention_mask_BS.bool() & ~batch.special_BS).any(-1)
        return values_BHC.masked_fill(~worded_B[:, None, None], torch.nan)

    def differentiated(self, model: PreTrainedModel, batch: Batch) -> Differentiated:
        masked, drawn_BS = self._masked(batch, model.config.vocab_size)

        def loss(logits_BSV: Tensor) -> Tensor:
            logits_BSV = logits_BSV.to(torch.promote_types(logits_BSV.dtype, torch.float32))
            loss_N = functional.cross_entropy(logits_BSV[drawn_BS], batch.input_ids_BS[drawn_BS], reduction="none")
            return (loss_N / drawn_BS.sum(-1).repeat_interleave(drawn_BS.sum(-1))).sum()

        return Differentiated(self._with_head(model), masked, loss)

    def _with_head(self, model: PreTrainedModel) -> PreTrainedModel:
        if type(model).__name__.endswith("ForMaskedLM"):
            return model
        if not self._head:
            raise UserError(
                f"Measure '{self.name}' needs a masked-language-model head, and {type(model).__name__} has none; load the model "
                "with AutoModelForMaskedLM."
            )
        [masked_lm] = self._head
        nn.Module.to(masked_lm, device=model.device, dtype=model.dtype)
        setattr(masked_lm, masked_lm.base_model_prefix, model.base_model)
        return masked_lm

    def _masked(self, batch: Batch, vocabulary: int) -> tuple[Batch, Tensor]:
        """The batch as the model reads it, and which of its tokens are to be predicted, ``[B, S]`` bool."""
        if self._mask_id is None:
            raise ValueError("the mask token is the tokenizer's: call prepare(split) before the first batch")
        ids_BS = batch.input_ids_BS.clone()
        drawn_BS = torch.zeros_like(ids_BS, dtype=torch.bool)
        ordinary_BS = batch.attention_mask_BS.bool() & ~batch.special_BS
        for row, index in enumerate(batch.index_B.tolist()):
            position_N = ordinary_BS[row].nonzero()[:, 0].cpu()
            # On the CPU and from the example's number: no batch, device or process changes what is drawn.
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
            shuffled_N = position_N[torch.randperm(len(position_N), generator=generator)]
            position_N = shuffled_N[: max(1, round(self.share * len(position_N)))]
            chance_N = torch.rand(len(position_N), generator=generator)
            read_N = torch.randint(vocabulary, (len(position_N),), generator=generator)
            read_N[chance_N < 0.8] = self._mask_id
            changed_N = chance_N < 0.9
            drawn_BS[row, position_N] = True
            ids_BS[row, position_N[changed_N]] = read_N[changed_N].to(ids_BS.device)
        masked = copy(batch)
        masked.input_ids_BS = ids_BS
        return masked, drawn_BS


def _differs(columns: Mapping[str, Grid]) -> Mapping[str, NDArray[np.bool_]]:
    """For each special token the heads whose gradients differ from those of other tokens, corrected over all of them."""
    p_values = [mean_differs_from_zero(*columns[name + MINUS_OTHER]) for name in _SPECIAL]
    # NaN (nothing to test) compares as not significant.
    return dict(zip(_SPECIAL, corrected(np.stack(p_values)) <= LEVEL, strict=True))


def _ratios(columns: Mapping[str, Grid], name: str) -> Array:
    """Each layer's mean gradient for a class over that for other tokens."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio_L: Array = _layer_means(columns[GRADIENT + name][0]) / _layer_means(columns[GRADIENT + "other"][0])
    return ratio_L


def _finding(columns: Mapping[str, Grid], name: str, differs_LH: NDArray[np.bool_], loss: str) -> str:
    delta_LH = columns[name + MINUS_OTHER][0]
    less, more = (int((differs_LH & (sign * delta_LH > 0)).sum()) for sign in (-1, 1))
    counted = (
        f"{loss[0].upper()}{loss[1:]} depends significantly less on attention to {_SPECIAL[name]} than on attention to other tokens in {less} "
        f"of {delta_LH.size} heads, and more in {more}"
    )
    ratio_L = _ratios(columns, name)
    if not np.isfinite(ratio_L).any():
        return f"{counted}."
    low, high = int(np.nanargmin(ratio_L)), int(np.nanargmax(ratio_L))
    return (
        f"{counted}; a layer's mean gradient for {_SPECIAL[name]} is between {number(float(ratio_L[low]), 2)} (layer {low}) "
        f"and {number(float(ratio_L[high]), 2)} (layer {high}) times that for other tokens."
    )


def _layer_means(value_LH: Array) -> Array:
    defined_L = np.isfinite(value_LH).any(axis=1)
    mean_L = np.full(len(value_LH), math.nan)
    mean_L[defined_L] = np.nanmean(value_LH[defined_L], axis=1)
    return mean_L


def _table(view: MeasureView) -> Table:
    gradients = {name: _layer_means(view.value(GRADIENT + name)) for name in _LABELS}
    products = {name: _layer_means(view.value(PRODUCT + name)) for name in CLASSES}
    total_L = _layer_means(view.value(PRODUCT + ALL))
    rows = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for layer in range(len(total_L)):
            row = [str(layer), f"{gradients[ALL][layer]:.2e}"]
            row += [number(float(gradients[name][layer] / gradients[ALL][layer]), 2) for name in CLASSES]
            row += [number(float(100 * products[name][layer] / total_L[layer]), 1) for name in CLASSES]
            rows.append(row)
    header = ["layer", "mean |gradient|"]
    header += [f"{label} ÷ any token" for label in CLASSES.values()]
    header += [f"{label}, % of attention × gradient" for label in CLASSES.values()]
    return Table(header, rows, "Means over the heads of each layer", folded=True)
