"""From attention between tokens to attention between words, and the words that it points to."""

from typing import Literal

import torch
from torch import Tensor

FromWord = Literal["mean", "first"]


def word_maps(attention_BHQK: Tensor, word_BS: Tensor, words: int, from_word: FromWord = "mean") -> Tensor:
    """Attention between W words, ``[B, H, W, W]``: summed into a word's tokens, averaged over those it comes from.

    Tokens of no word, such as [CLS] and [SEP], are left out, so a row may sum to less than 1. A word without tokens has
    a row and a column of zeros.

    Args:
        attention_BHQK: Attention between tokens.
        word_BS: Word of each token, -1 for none.
        words: Number of words, W.
        from_word: ``mean`` over the tokens that a word has, as in the paper, or its ``first`` token only, the default of the
            paper's code.
    """
    number_W = torch.arange(words, device=word_BS.device)
    member_BSW = word_BS[..., None] == number_W
    rows_BSW = member_BSW & (member_BSW.cumsum(1) == 1) if from_word == "first" else member_BSW
    into_BSW = member_BSW.to(attention_BHQK.dtype)
    from_BSW = rows_BSW.to(attention_BHQK.dtype)
    from_BSW = from_BSW / from_BSW.sum(1, keepdim=True).clamp(min=1)
    return from_BSW.transpose(1, 2)[:, None] @ (attention_BHQK @ into_BSW[:, None])


def pointed_to(word_BHWW: Tensor, candidate_BWW: Tensor) -> Tensor:
    """The candidate that each word points to, ``[B, D, H, W]`` int64, for both directions D.

    Direction 0 is the word that a word attends to most (from a dependent to its head); direction 1 is the word that attends to
    it most (a head to its dependent).

    Args:
        word_BHWW: Attention between words.
        candidate_BWW: Whether the second word may be the head of the first, symmetric, bool. The first word stands in for a
            word without candidates.
    """
    barred_B1WW = ~candidate_BWW[:, None]
    return torch.stack(
        [
            direction_BHWW.masked_fill(barred_B1WW, -1.0).argmax(-1)
            for direction_BHWW in (word_BHWW, word_BHWW.transpose(-1, -2))
        ],
        1,
    )
