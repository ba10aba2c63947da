"""What the classifier sees of a map: a small picture of one size, whatever the map's length, and strips along its rows."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

BINS = 16
"""Places along each axis into which a map is pooled."""

OFFSETS = tuple(range(-3, 4))
"""Offsets of the diagonals that have a strip."""

COLUMNS = 6
"""How many of the columns that receive most attention have a strip."""

PICTURES = 3
"""Scales on which the pooled map is given."""

STRIPS = len(OFFSETS) + COLUMNS + 2

RANKS = 16
"""How many columns, from the one that receives most, are summed up."""

_COMMON = (1, 3, 6)
SUMMARY = 2 * COLUMNS + 3 * len(OFFSETS) + RANKS + len(_COMMON) + COLUMNS + 7
"""Numbers that sum a map up."""

_FLOOR = 0.05


class Views(NamedTuple):
    """Views of N maps, float32. An annotator sees weight / the map's largest as ink, and beside it the root of that.

    Args:
        picture_NGPP: The pooled map ``[N, PICTURES, BINS, BINS]``: ink, its root, and as :func:`log_ratio`.
        strips_NGP: The strips ``[N, (PICTURES + 1) * STRIPS, BINS]`` along the queries, as weights, ink, its root, and as
            :func:`log_ratio`: the weights on each diagonal of ``OFFSETS``, the largest of a row, the root of the sum of a
            row's squares, and the weights in each of the ``COLUMNS`` columns that receive most.
        summary_NM: What columns and diagonals hold all in all, see :func:`_summary`, ``[N, SUMMARY]``.
    """

    picture_NGPP: Tensor
    strips_NGP: Tensor
    summary_NM: Tensor


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
    # All heads of an example in one product: only the examples differ in their bins.
    picture_BHPP = (rows_BHPK.flatten(1, 2) @ along_BSP).unflatten(1, (heads, -1))

    # A padded query attends as a real one does, but its weight in every bin is 0; a padded key receives nothing.
    diagonals = attention_BHQK.new_zeros(batch, heads, len(OFFSETS), size)
    for place, offset in enumerate(OFFSETS):
        if abs(offset) < size:
            first, last = max(0, -offset), size - max(0, offset)
            diagonals[:, :, place, first:last] = attention_BHQK.diagonal(offset, dim1=-2, dim2=-1)
    largest_BHQ, best_BHQ = attention_BHQK.max(-1)
    norm_BHQ = torch.linalg.vector_norm(attention_BHQK, dim=-1)
    by_query = torch.cat((diagonals, largest_BHQ[:, :, None], norm_BHQ[:, :, None]), dim=2)
    by_query = (by_query.flatten(1, 2) @ along_BSP).unflatten(1, (heads, -1))

    kept = min(COLUMNS, size)
    most_BHC = received_BHK.topk(kept, dim=-1).indices
    columns = rows_BHPK.gather(-1, most_BHC[:, :, None].expand(-1, -1, BINS, -1)).transpose(2, 3)
    strips_BHGP = torch.cat((by_query, pad(columns, (0, 0, 0, COLUMNS - kept))), dim=2)

    # The annotator's black is the map's largest weight.
    ink_BH11 = 1 / largest_BHQ.masked_fill(~real_BS[:, None], 0).amax(-1)[..., None, None]
    length_B111 = real_BS.sum(-1).to(torch.float32)[:, None, None, None]
    ink_BHPP, ink_BHGP = picture_BHPP * ink_BH11, strips_BHGP * ink_BH11
    pictures = torch.stack((ink_BHPP, ink_BHPP.sqrt(), log_ratio(picture_BHPP, length_B111)), dim=2)
    strips = torch.cat((strips_BHGP, ink_BHGP, ink_BHGP.sqrt(), log_ratio(strips_BHGP, length_B111)), dim=2)
    summary_BHM = _summary(strips_BHGP, picture_BHPP, received_BHK, ink_BH11[..., 0], best_BHQ, mean_B1S[:, 0])
    return Views(pictures.flatten(0, 1), strips.flatten(0, 1), summary_BHM.flatten(0, 1))


def _summary(
    strips_BHGP: Tensor,
    picture_BHPP: Tensor,
    received_BHK: Tensor,
    ink_BH1: Tensor,
    best_BHQ: Tensor,
    mean_BQ: Tensor,
) -> Tensor:
    """What columns and diagonals hold all in all, ``[B, H, SUMMARY]``.

    In order: the sums of the first to the first six columns; the mean weight on each diagonal, and of the three and five
    about the main one; the ink of the six columns, of the whole map, and of the diagonals; the mean of a row's largest
    weight and norm; the share of rows whose largest weight stands in the commonest such column, the three and the six
    commonest; what the columns receive, from the first to the sixteenth, as :func:`log_ratio`; the share of rows whose
    largest weight stands at the commonest offset up to two; the medians over the bins of each column and diagonal; and
    what the two squares hold that hold most, beyond what they would hold of uniform attention.
    """
    offsets, size = len(OFFSETS), best_BHQ.shape[-1]
    steady_BHG = strips_BHGP.sort(-1).values[..., BINS // 2]
    mean_BHG = strips_BHGP.mean(-1)
    diagonal_BHO, columns_BHC = mean_BHG[..., :offsets], mean_BHG[..., -COLUMNS:]
    middle = offsets // 2
    length_B11 = (mean_BQ > 0).sum(-1)[:, None, None]
    weight_BHQ = mean_BQ[:, None].expand_as(best_BHQ)
    largest_BHK = torch.zeros_like(received_BHK).scatter_add(-1, best_BHQ, weight_BHQ)
    common_BHC = _top(largest_BHK, max(_COMMON)).cumsum(-1)[..., [count - 1 for count in _COMMON]]
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
            log_ratio(_top(received_BHK, RANKS), length_B11),
            aligned.amax(-1, keepdim=True),
            steady_BHG[..., -COLUMNS:],
            steady_BHG[..., :offsets],
            _squares(picture_BHPP)[..., None],
        ),
        dim=-1,
    )


def _top(values_BHK: Tensor, count: int) -> Tensor:
    """The largest values in order, ``[B, H, count]``; 0 where there are fewer."""
    kept = min(count, values_BHK.shape[-1])
    return pad(values_BHK.topk(kept, dim=-1).values, (0, count - kept))


def _squares(picture_BHPP: Tensor) -> Tensor:
    """The most that two squares along the diagonal hold, less their share of the area, over all boundaries, ``[B, H]``."""
    total_BHPP = picture_BHPP.cumsum(-1).cumsum(-2)
    first_BHP = total_BHPP.diagonal(dim1=-2, dim2=-1)
    second_BHP = first_BHP[..., -1:] - total_BHPP[..., -1] - total_BHPP[..., -1, :] + first_BHP
    cut_P = torch.arange(1, BINS + 1, device=picture_BHPP.device) / BINS
    # A bin of the picture is a mean of weights; its row's attention is the mean times the row's length.
    share_BHP = (first_BHP + second_BHP) / first_BHP[..., -1:].clamp(min=1e-6)
    excess_BHP = share_BHP - cut_P.square() - (1 - cut_P).square()
    return excess_BHP[..., 2:-3].amax(-1)
