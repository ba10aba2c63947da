"""Attention to [CLS], [SEP], punctuation and all other tokens (Clark et al. 2019, section 3.2; methods C2)."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import MaxExamples, Measure
from bertsecrets.measures.linguistic.features import attention_received
from bertsecrets.settings import typed

CLASSES = {"cls": "[CLS]", "sep_total": "[SEP]", "punctuation": "punctuation", "other": "other tokens"}
"""Classes that partition the tokens, with their labels."""

UNIFORM = "_uniform"

_UNIT = "attention, mean over a text's tokens"
Marks = Annotated[
    Sequence[Annotated[str, Field(pattern=r"\S")]], Field(description="a list of tokens, e.g. ['.', ',']")
]
MARKS = (".", ",")
_TO, _FROM = "attention to", "attention to [SEP] from"


class TokenClasses(Measure):
    """A measure by class of token: :data:`CLASSES`.

    Args:
        marks: The tokens that are punctuation.

    Raises:
        UserError: If ``marks`` is not a list of strings.
    """

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        marks: Marks = MARKS,
        max_examples: MaxExamples = None,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.marks = tuple(marks)
        self._mark_ids: Tensor | None = None

    def prepare(self, split: EncodedSplit) -> None:
        self._mark_ids = torch.tensor(mark_ids(split.tokenizer, self.marks), dtype=torch.int64)

    def token_classes(self, batch: Batch) -> Tensor:
        """:func:`token_classes` of a batch, ``[B, 4, S]`` bool."""
        if self._mark_ids is None:
            raise ValueError("punctuation is found by the tokenizer: call prepare(split) before the first batch")
        return token_classes(batch, self._mark_ids)


class Surface(TokenClasses):
    """Attention to four classes of tokens, which add up to 1.

    A text's number is the mean over its L real tokens, special tokens included, of a token's total weight on the class;
    a text without such tokens counts as 0.

    Columns:
        ``cls``: attention to the first special token; ``sep_total``: total attention to all other special tokens;
            ``punctuation``: to tokens spelt like one of ``marks``; ``other``: to all other tokens. 0..1.
        ``sep_to_sep``, ``other_to_sep``: ``sep_total`` for the separators' rows, and for all other rows; texts without
            a separator do not count.
        ``<class>_uniform``: the same under uniform attention: the share of the L tokens that are of the class.

    The paper uses about 1000 texts. For the settings see :class:`TokenClasses`.
    """

    name = "surface"
    title = "Attention to special tokens and punctuation"
    columns = (
        *(Column(name, label, _UNIT, (0.0, 1.0)) for name, label in CLASSES.items()),
        Column("sep_to_sep", "[SEP] → [SEP]", _UNIT, (0.0, 1.0)),
        Column("other_to_sep", "other tokens → [SEP]", _UNIT, (0.0, 1.0)),
        *(
            Column(name + UNIFORM, f"{label}, uniform attention", _UNIT, (0.0, 1.0), role="baseline")
            for name, label in CLASSES.items()
        ),
    )
    shown = Shown(
        about="Each number is a head's total attention to a class of tokens, averaged over a text's tokens and then "
        "over texts (Clark et al. 2019, section 3.2; figure 2 shows the dots by layer). The four classes add up "
        "to 1. Under uniform attention, a class receives its share of the tokens.",
        each=("sep_total", "cls", "punctuation"),
        beyond=0.5,
        by_layer={"cls": _TO, "sep_total": _TO, "punctuation": _TO, "sep_to_sep": _FROM, "other_to_sep": _FROM},
    )
    tracked = ("cls", "sep_total", "punctuation")

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        token_class_BCS = self.token_classes(batch)
        separator_BS = token_class_BCS[:, 1]
        class_BCS = token_class_BCS.to(attention_BHQK.dtype)
        received_BHC = attention_received(attention_BHQK, real_BS) @ class_BCS.transpose(1, 2)
        to_separators_BHQ = (attention_BHQK @ separator_BS.to(attention_BHQK.dtype)[:, None, :, None])[..., 0]
        by_row_BH2 = torch.stack(
            [
                (to_separators_BHQ * rows_BQ[:, None]).sum(-1) / rows_BQ.sum(-1)[:, None]
                for rows_BQ in (separator_BS, real_BS & ~separator_BS)
            ],
            -1,
        ).masked_fill(~separator_BS.any(-1)[:, None, None], torch.nan)
        uniform_B1C = (class_BCS.sum(-1) / real_BS.sum(-1, keepdim=True))[:, None]
        return torch.cat((received_BHC, by_row_BH2, uniform_B1C.expand_as(received_BHC)), -1)


def token_classes(batch: Batch, mark_ids: Tensor) -> Tensor:
    """Masks of the tokens in the four :data:`CLASSES`, ``[B, 4, S]`` bool; padding is in none.

    Args:
        batch: A batch.
        mark_ids: The ids of punctuation, from :func:`mark_ids`.
    """
    real_BS = batch.attention_mask_BS.bool()
    special_BS = batch.special_BS & real_BS
    mark_BS = real_BS & ~special_BS & torch.isin(batch.input_ids_BS, mark_ids.to(batch.input_ids_BS.device))
    other_BS = real_BS & ~special_BS & ~mark_BS
    return torch.stack((special_BS & ~batch.separators_BS, batch.separators_BS, mark_BS, other_BS), 1)


def mark_ids(tokenizer: PreTrainedTokenizerFast, marks: Sequence[str]) -> list[int]:
    """The ids of tokens that spell a mark, with or without a preceding space."""
    # Byte-level and SentencePiece vocabularies have a token for the mark after a word and another after a space.
    text = "".join(f"a{mark} a {mark} " for mark in marks)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return sorted(
        {
            token
            for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
            if text[start:end].strip() in marks and token != tokenizer.unk_token_id
        }
    )
