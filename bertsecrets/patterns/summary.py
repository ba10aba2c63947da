"""Numbers that sum a map up: what its columns, diagonals and squares hold."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from bertsecrets.patterns.pooling import BINS, COLUMNS, OFFSETS, log_ratio

RANKS = 16
"""How many columns, from the one that receives most, are summed up."""

_COMMON = (1, 3, 6)
HELD = 2 * COLUMNS + 2 * len(OFFSETS) + RANKS + len(_COMMON) + 7
"""How many numbers there are."""


def summarise(
    strips_BHGP: Tensor,
    picture_BHPP: Tensor,
    ranked_BHR: Tensor,
    ink_BH1: Tensor,
    best_BHQ: Tensor,
    mean_BQ: Tensor,
) -> Tensor:
    """What columns and diagonals hold all in all, ``[B, H, HELD]``.

    In order: the sums of the first to the first six columns; the mean weight on each diagonal, and of the three and five
    about the main one; the ink of the six columns, of the whole map, and of the diagonals; the mean of a row's largest
    weight and norm; the share of rows whose largest weight stands in the commonest such column, the three and the six
    commonest; what the columns receive, from the first to the sixteenth, as :func:`log_ratio`; the share of rows whose
    largest weight stands at the commonest offset up to two; and what the two squares hold that hold most, beyond what they
    would hold of uniform attention.
    """
    offsets, size = len(OFFSETS), best_BHQ.shape[-1]
    mean_BHG = strips_BHGP.mean(-1)
    diagonal_BHO, columns_BHC = mean_BHG[..., :offsets], mean_BHG[..., -COLUMNS:]
    middle = offsets // 2
    length_B11 = (mean_BQ > 0).sum(-1)[:, None, None]
    weight_BHQ = mean_BQ[:, None].expand_as(best_BHQ)
    largest_BHK = weight_BHQ.new_zeros(weight_BHQ.shape).scatter_add(-1, best_BHQ, weight_BHQ)
    common_BHC = _highest(largest_BHK, max(_COMMON)).cumsum(-1)[..., [count - 1 for count in _COMMON]]
    # Offsets up to two, and a place at each end for all that are farther.
    apart_BHQ = (best_BHQ - torch.arange(size, device=best_BHQ.device)).clamp(-3, 3) + 3
    aligned = weight_BHQ.new_zeros((*apart_BHQ.shape[:2], 7)).scatter_add(-1, apart_BHQ, weight_BHQ)[..., 1:-1]
    return torch.cat(
        (
            columns_BHC.cumsum(-1),
            diagonal_BHO,
            diagonal_BHO[..., middle - 1 : middle + 2].sum(-1, keepdim=True),
            diagonal_BHO[..., middle - 2 : middle + 3].sum(-1, keepdim=True),
            columns_BHC * ink_BH1,
            ink_BH1 / length_B11,
            diagonal_BHO * ink_BH1,
            mean_BHG[..., offsets : offsets + 2],
            common_BHC,
            log_ratio(ranked_BHR, length_B11),
            aligned.amax(-1, keepdim=True),
            _squares(picture_BHPP)[..., None],
        ),
        dim=-1,
    )


def _highest(values_BHK: Tensor, count: int) -> Tensor:
    """The largest values in order, ``[B, H, count]``; 0 where there are fewer."""
    kept = min(count, values_BHK.shape[-1])
    return pad(values_BHK.topk(kept, dim=-1).values, (0, count - kept))


def _squares(picture_BHPP: Tensor) -> Tensor:
    """The most that two squares along the diagonal hold, less their share of the area, over all boundaries, ``[B, H]``."""
    total_BHPP = picture_BHPP.cumsum(-1).cumsum(-2)
    first_BHP = total_BHPP.diagonal(dim1=-2, dim2=-1)
    second_BHP = first_BHP[..., -1:] - total_BHPP[..., -1] - total_BHPP[..., -1, :] + first_BHP
    cut_P = torch.arange(1, BINS + 1, device=picture_BHPP.device, dtype=picture_BHPP.dtype) / BINS
    # A bin of the picture is a mean of weights; its row's attention is the mean times the row's length.
    share_BHP = (first_BHP + second_BHP) / first_BHP[..., -1:].clamp(min=1e-6)
    excess_BHP = share_BHP - cut_P.square() - (1 - cut_P).square()
    return excess_BHP[..., 2:-3].amax(-1)
