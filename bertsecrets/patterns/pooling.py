"""How a map of any length becomes a picture of one size."""

import torch
from torch import Tensor

BINS = 16
"""Places along each axis into which a map is pooled."""

OFFSETS = tuple(range(-3, 4))
"""Offsets of the diagonals that are looked at one by one."""

COLUMNS = 6
"""How many of the columns that receive most attention have a strip."""

_FLOOR = 0.05


def bin_weights(real_BS: Tensor) -> Tensor:
    """How much of each position lies in each bin, ``[B, BINS, S]``; every bin sums to 1.

    The real tokens, a contiguous run, are spread evenly over the bins: position i of L covers i/L to (i+1)/L, and bin b
    covers b/BINS to (b+1)/BINS. Maps shorter than the bins are stretched. Rows without a real token are 0.
    """
    length_B = real_BS.sum(-1)
    start_B = real_BS.to(torch.int8).argmax(-1)
    place_BS = torch.arange(real_BS.shape[1], device=real_BS.device) - start_B[:, None]
    width_B11 = BINS / length_B.clamp(min=1).to(torch.float32)[:, None, None]
    low_B1S = place_BS[:, None] * width_B11
    bin_P1 = torch.arange(BINS, device=real_BS.device, dtype=torch.float32)[:, None]
    overlap_BPS = torch.minimum(low_B1S + width_B11, bin_P1 + 1) - torch.maximum(low_B1S, bin_P1)
    return overlap_BPS.clamp(min=0) * real_BS[:, None]


def log_ratio(weight: Tensor, length: Tensor) -> Tensor:
    """ln(L w + 0.05), at 0 where a weight is about what uniform attention gives; ``length`` broadcasts to ``weight``."""
    return (weight * length + _FLOOR).log()


def diagonal_places(offset: int, size: int) -> tuple[slice, slice]:
    """The queries that have a key at this offset, and these keys."""
    first, last = max(0, -offset), size - max(0, offset)
    return slice(first, last), slice(first + offset, last + offset)
