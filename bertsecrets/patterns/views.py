"""What the classifier sees of a map: a small picture of one size, whatever the map's length, and strips along its rows."""

from typing import NamedTuple

import torch
from torch import Tensor

BINS = 16
"""Places along each axis into which a map is pooled."""

OFFSETS = tuple(range(-3, 4))
"""Offsets of the diagonals that have a strip."""

COLUMNS = 4
"""How many of the columns that receive most attention have a strip."""

STRIPS = len(OFFSETS) + COLUMNS + 2
_FLOOR = 0.05


class Views(NamedTuple):
    """Views of maps, float32.

    Args:
        picture_NGPP: The pooled map ``[N, 2, BINS, BINS]``: square roots of the weights and :func:`log_ratio`.
        strips_NGP: The strips ``[N, 2 * STRIPS, BINS]`` along the queries, in the same two scales: the weights on each
            diagonal of ``OFFSETS``, in each of the ``COLUMNS`` columns that receive most, the largest of a row, and
            the root of the sum of a row's squares.
    """

    picture_NGPP: Tensor
    strips_NGP: Tensor


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


def make_views(attention_BHQK: Tensor, real_BS: Tensor) -> Views:
    """The views of every map, N = B * H, examples first.

    Args:
        attention_BHQK: Weights in 0..1, floating, rows of real queries summing to 1 over the real keys.
        real_BS: Which tokens are real, bool; a contiguous run in each example. Padding has no influence.
    """
    batch, heads, size = attention_BHQK.shape[:3]
    attention_BHQK = attention_BHQK.float()
    pool_BPS = bin_weights(real_BS)
    mean_B1S = real_BS[:, None] / real_BS.sum(-1).clamp(min=1)[:, None, None]
    # One product gives the rows' bins and, as its last row, the mean that each column receives.
    rows_BHPK = torch.cat((pool_BPS, mean_B1S), dim=1)[:, None] @ attention_BHQK
    rows_BHPK, received_BHK = rows_BHPK[:, :, :-1], rows_BHPK[:, :, -1]
    along_BSP = pool_BPS.transpose(1, 2)
    picture_BHPP = rows_BHPK @ along_BSP[:, None]

    # A padded query attends as a real one does, but its weight in every bin is 0; a padded key receives nothing.
    diagonals = attention_BHQK.new_zeros(batch, heads, len(OFFSETS), size)
    for place, offset in enumerate(OFFSETS):
        if abs(offset) < size:
            first, last = max(0, -offset), size - max(0, offset)
            diagonals[:, :, place, first:last] = attention_BHQK.diagonal(offset, dim1=-2, dim2=-1)
    largest_BHQ = attention_BHQK.amax(-1)
    norm_BHQ = torch.linalg.vector_norm(attention_BHQK, dim=-1)
    by_query = torch.cat((diagonals, largest_BHQ[:, :, None], norm_BHQ[:, :, None]), dim=2) @ along_BSP[:, None]

    kept = min(COLUMNS, size)
    most_BHC = received_BHK.topk(kept, dim=-1).indices
    columns = rows_BHPK.gather(-1, most_BHC[:, :, None].expand(-1, -1, BINS, -1)).transpose(2, 3)
    if kept < COLUMNS:
        columns = torch.nn.functional.pad(columns, (0, 0, 0, COLUMNS - kept))
    strips_BHGP = torch.cat((by_query, columns), dim=2)

    length_B111 = real_BS.sum(-1).to(torch.float32)[:, None, None, None]
    pictures = torch.stack((picture_BHPP.sqrt(), log_ratio(picture_BHPP, length_B111)), dim=2)
    strips = torch.cat((strips_BHGP.sqrt(), log_ratio(strips_BHGP, length_B111)), dim=2)
    return Views(pictures.flatten(0, 1), strips.flatten(0, 1))
