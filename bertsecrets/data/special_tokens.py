"""The special tokens whose attention is analysed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from bertsecrets.errors import UserError

# Pages name the tokens without loading transformers.
if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL_TOKENS = {"sep": "[SEP]", "cls": "[CLS]"}
"""Their names in settings, with their labels."""

TokenNames = Annotated[Sequence[Literal["sep", "cls"]], Field(min_length=1, description="a list of sep and cls")]
"""A setting that lists special tokens."""


def special_token_ids(tokenizer: "PreTrainedTokenizerBase", names: Iterable[str], setting: str) -> dict[str, int]:
    """The tokenizer's ids of special tokens; ``setting`` is the setting that lists their names.

    Raises:
        UserError: If the tokenizer lacks one of the tokens.
    """
    ids = {"sep": tokenizer.sep_token_id, "cls": tokenizer.cls_token_id}
    for name in names:
        if ids[name] is None:
            raise UserError(f"The tokenizer has no {SPECIAL_TOKENS[name]} token; remove it from {setting}.")
    return {name: int(ids[name]) for name in names}
