"""The special tokens whose attention analyses look at."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bertsecrets.errors import UserError

# Pages name the tokens without loading transformers.
if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL_TOKENS = {"sep": "[SEP]", "cls": "[CLS]"}
"""Their names in settings, with their labels."""


def special_token_ids(tokenizer: "PreTrainedTokenizerBase", names: Iterable[str], setting: str) -> dict[str, int]:
    """The tokenizer's ids of special tokens; ``setting`` is the one that lists the names.

    Raises:
        UserError: If the tokenizer has no such token.
    """
    ids = {"sep": tokenizer.sep_token_id, "cls": tokenizer.cls_token_id}
    for name in names:
        if ids[name] is None:
            raise UserError(f"The tokenizer has no {SPECIAL_TOKENS[name]} token; leave it out of {setting}.")
    return {name: int(ids[name]) for name in names}
