"""Random maps and batches for the tests of patterns."""

import families
import torch
from torch import Tensor

from bertsecrets.data.batch import Batch


def random_maps(lengths: tuple[int, ...], heads: int, seed: int, left: bool = False, extra: int = 0) -> Tensor:
    """Sharp random maps of several lengths: padded keys get weight 0, padded queries attend like real ones."""
    size = max(lengths) + extra
    scores = 2 * torch.randn(len(lengths), heads, size, size, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~real_tokens(lengths, size, left)[:, None, None], -torch.inf).softmax(-1)


def real_tokens(lengths: tuple[int, ...], size: int, left: bool = False) -> Tensor:
    """Which tokens are not padding, ``[B, S]``; padding at the right or the left."""
    real_BS = torch.arange(size) < torch.tensor(lengths)[:, None]
    return real_BS.flip(-1) if left else real_BS


def cropped(attention_BHQK: Tensor, real_BS: Tensor, row: int, head: int) -> Tensor:
    """One map without its padding."""
    kept = real_BS[row].nonzero()[:, 0]
    return attention_BHQK[row, head][kept][:, kept]


def batch_of(real_BS: Tensor) -> Batch:
    """A batch with lengths only."""
    return families.batch_of(
        {"input_ids": torch.zeros_like(real_BS, dtype=torch.long), "attention_mask": real_BS.long()}
    )
