"""The special tokens whose attention analyses look at."""

from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase

from bertsecrets.errors import UserError, choices

SPECIAL_TOKENS = {"sep": "[SEP]", "cls": "[CLS]"}
"""Their names in settings, with their labels."""


def check_special_tokens(names: Iterable[str], analysis: str) -> tuple[str, ...]:
    """The names, each once; ``analysis`` says in the message which analysis they are for.

    Raises:
        UserError: If a name is not one of :data:`SPECIAL_TOKENS`.
    """
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in SPECIAL_TOKENS:
            raise UserError(f"Unknown special token '{name}' of {analysis}; {choices(str(name), SPECIAL_TOKENS)}.")
    return chosen


def special_token_ids(tokenizer: PreTrainedTokenizerBase, names: Iterable[str], setting: str) -> dict[str, int]:
    """The tokenizer's ids of special tokens; ``setting`` is the one that lists the names.

    Raises:
        UserError: If the tokenizer has no such token.
    """
    ids = {"sep": tokenizer.sep_token_id, "cls": tokenizer.cls_token_id}
    for name in names:
        if ids[name] is None:
            raise UserError(f"The tokenizer has no {SPECIAL_TOKENS[name]} token; leave it out of {setting}.")
    return {name: int(ids[name]) for name in names}
