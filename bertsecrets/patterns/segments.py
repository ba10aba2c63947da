"""Where the first of two segments ends, and how far a map keeps to its segments."""

import torch
from torch import Tensor

from bertsecrets.patterns.pooling import BINS

ONE, UNKNOWN = 0, -1
"""In place of the tokens of the first of two segments."""

APART = 8
"""How many numbers say how far a map keeps to its segments."""

_CLEARLY = 1.2
_FAINT = 1e-3


def first_segments(special_BS: Tensor, real_BS: Tensor) -> Tensor:
    """Tokens of the first of two segments, with [CLS] and its separator, ``[B]`` int64; ``ONE`` where there is one.

    The second segment begins behind the first special token that does not begin the sequence. ``UNKNOWN`` where there is
    no such token.

    Args:
        special_BS: Which tokens the tokenizer added, bool.
        real_BS: Which tokens are real, bool; a contiguous run in each example.
    """
    place_BS = real_BS.cumsum(-1)
    separator_BS = special_BS & real_BS & (place_BS > 1)
    size_B = place_BS.gather(-1, separator_BS.int().argmax(-1, keepdim=True))[:, 0]
    second_B = (real_BS & ~special_BS & (place_BS > size_B[:, None])).any(-1)
    first_B = torch.where(second_B, size_B, ONE)
    return first_B.masked_fill(~separator_BS.any(-1), UNKNOWN)


def segment_sides(pool_BPS: Tensor, real_BS: Tensor, first_segment_B: Tensor) -> Tensor:
    """Which segment each bin lies in, ``[B, BINS]``: 1 in the first, -1 in the second, between them where it lies in both.

    0 for one segment, or where it is not known.
    """
    side_BS = 2 * (real_BS.cumsum(-1) <= first_segment_B[:, None]).to(pool_BPS.dtype) - 1
    return (pool_BPS @ side_BS[..., None])[..., 0] * (first_segment_B > 0)[:, None]


def segments_apart(picture_BHPP: Tensor, side_BP: Tensor, first_segment_B: Tensor, length_B: Tensor) -> Tensor:
    """How much more the rows of a segment attend within it than others do, ``[B, H, APART]``.

    For each of the two, over its columns and leaving out what is near the diagonal: the difference of what its own rows
    and the other's give; the logarithm of their ratio; and the share of columns that clearly get more from their own.
    Columns count that have rows of both kinds away from the diagonal; 0 where there are none. Then 1 for a map of two
    segments, and 1 for a map of one. All 0 where nothing is known.
    """
    place_P = torch.arange(BINS, device=picture_BHPP.device)
    far_PP = ((place_P[:, None] - place_P).abs() > 1).to(picture_BHPP.dtype)
    # Of a row's attention a bin holds as much as it does whatever the map's length.
    share_BHPP = picture_BHPP * (length_B / BINS)[:, None, None, None]
    first_BP, second_BP = side_BP.clamp(min=0), (-side_BP).clamp(min=0)
    numbers = []
    for own_BP, other_BP in ((first_BP, second_BP), (second_BP, first_BP)):
        seen_BP = (own_BP @ far_PP > 0) & (other_BP @ far_PP > 0)
        column_B1P = (own_BP * seen_BP)[:, None]
        rows = [_mean_of_rows(share_BHPP, rows_BP[:, :, None] * far_PP) for rows_BP in (own_BP, other_BP)]
        own_BH, other_BH = ((given_BHP * column_B1P).sum(-1) for given_BHP in rows)
        more_BHP = (rows[0] > _CLEARLY * rows[1]) * column_B1P
        numbers += [
            own_BH - other_BH,
            (own_BH.clamp(min=_FAINT) / other_BH.clamp(min=_FAINT)).log(),
            more_BHP.sum(-1) / column_B1P.sum(-1).clamp(min=0.5),
        ]
    two_B1, one_B1 = (first_segment_B > 0)[:, None], (first_segment_B == ONE)[:, None]
    flags = [flag_B1.to(picture_BHPP.dtype).expand_as(numbers[0]) for flag_B1 in (two_B1, one_B1)]
    return torch.stack([*(number * two_B1 for number in numbers), *flags], dim=-1)


def _mean_of_rows(picture_BHPP: Tensor, weight_BPP: Tensor) -> Tensor:
    """Mean of each column over rows that count by weight, ``[B, H, BINS]``."""
    sum_BHP = (picture_BHPP * weight_BPP[:, None]).sum(-2)
    return sum_BHP / weight_BPP.sum(-2).clamp(min=0.5)[:, None]
