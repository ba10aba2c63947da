"""Gradient importance of attention to [SEP] and other tokens (Clark et al. 2019, section 3.2; methods C3)."""

from copy import copy
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from bertsecrets.data.batch import Batch
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import Differentiated, MaxExamples, Need, Passed
from bertsecrets.measures.surface import CLASSES, MARKS, Marks, TokenClasses
from bertsecrets.settings import typed

GRADIENT, PRODUCT, MINUS_OTHER = "gradient_", "product_", "_minus_other"
ALL = "all"

_GRADIENT = "mean |∂loss/∂attention|"
_PRODUCT = "|attention × gradient|, sum over a row"
_SPECIAL = {"sep_total": "[SEP]", "cls": "[CLS]"}
_LABELS = {**CLASSES, ALL: "any token"}


class GradientImportance(TokenClasses):
    """First-order change of the task loss with a head's attention to four classes of tokens.

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
    presenter = "bertsecrets.present.importance:GRADIENT"
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
        # Averaging over rows first leaves one number for each attended token.
        slope_BHK = (size_BHQK * row_B1Q1).sum(2)
        product_BHK = (size_BHQK * attention_BHQK * row_B1Q1).sum(2)
        count_B1C = class_BCS.sum(-1)[:, None]
        slope_BHC = slope_BHK @ class_BCS.transpose(1, 2) / count_B1C
        slope_BHC = slope_BHC.masked_fill(count_B1C == 0, torch.nan)
        names = list(_LABELS)
        other_BH = slope_BHC[..., names.index("other")]
        minus_BHC = torch.stack([slope_BHC[..., names.index(name)] - other_BH for name in _SPECIAL], -1)
        return torch.cat((slope_BHC, product_BHK @ class_BCS.transpose(1, 2), minus_BHC), -1)


class MaskedLMGradient(GradientImportance):
    """Gradient importance of the masked-language-model loss, as in the paper; needs no labels.

    In each example, 15 % of the non-special tokens (at least one) are drawn; 80 % of these become the mask token, 10 %
    a random token, and 10 % are unchanged (Devlin et al. 2019, section 3.1). The loss of an example is the mean
    cross-entropy of the drawn tokens. Classes are those of the tokens that the model reads; a mask belongs to the other
    tokens.

    The pre-trained masked-language-model head is applied to the measured encoder. A model that already has such a head,
    from ``AutoModelForMaskedLM``, is used unchanged.

    Args:
        share: Share of the tokens to predict.
        seed: Seed of the draw, which does not depend on an example's batch.

    For the columns see :class:`GradientImportance`, for other settings
    :class:`~bertsecrets.measures.surface.TokenClasses`.

    Raises:
        UserError: If the tokenizer has no mask token, or the model has no masked-language-model head.
    """

    name = "masked_lm_gradient"
    title = "Gradient importance of attention for masked words"
    needs = frozenset({Need.MASKED_LM})

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
        # In a list, so that it is not part of the measure's state.
        self._head: list[PreTrainedModel] = []

    def take_head(self, masked_lm: PreTrainedModel) -> None:
        self._head = [masked_lm]

    def prepare(self, split: EncodedSplit) -> None:
        super().prepare(split)
        self._mask_id = split.tokenizer.mask_token_id
        if self._mask_id is None:
            raise UserError(
                f"Measure '{self.name}' masks words, but the tokenizer has no mask token; remove the measure, or give "
                "a model that was trained on masked words."
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
                f"Measure '{self.name}' needs a masked-language-model head, and {type(model).__name__} has none; load "
                "the model with AutoModelForMaskedLM."
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
            # Drawn on the CPU from the example's number, independent of batch, device and process.
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
