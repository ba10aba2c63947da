"""What the classifier sees of a map: a small picture of one size, whatever the map's length, and strips along its rows."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from bertsecrets.patterns.pooling import BINS, COLUMNS, OFFSETS, bin_weights, diagonal_places, log_ratio
from bertsecrets.patterns.segments import APART, UNKNOWN, segment_sides, segments_apart
from bertsecrets.patterns.standing_out import STANDING_OUT, stand_out
from bertsecrets.patterns.summary import HELD, RANKS, summarise

SCALES = 3
"""Scales on which the pooled map is given."""

PICTURES = SCALES + 1
"""Channels of the picture: its scales, and which of its places lie within one segment."""

STRIPS = len(OFFSETS) + COLUMNS + 2

SUMMARY = HELD + STANDING_OUT + APART
"""Numbers that sum a map up."""


class Views(NamedTuple):
    """Views of N maps, float32. Ink is the weight over the map's largest: what an annotator sees.

    Args:
        picture_NGPP: The pooled map ``[N, PICTURES, BINS, BINS]``: ink, its root, and as :func:`log_ratio`; then 1 within a
            segment and -1 between two, 0 for a map of one segment or of whose segments nothing is known.
        strips_NGP: The strips ``[N, (SCALES + 1) * STRIPS, BINS]`` along the queries, as weights, ink, its root, and as
            :func:`log_ratio`: the weights on each diagonal of ``OFFSETS``, the largest of a row, the root of the sum of a
            row's squares, and the weights in each of the ``COLUMNS`` columns that receive most.
        summary_NM: ``[N, SUMMARY]``, see :func:`summarise`, :func:`stand_out` and :func:`segments_apart`.
    """

    picture_NGPP: Tensor
    strips_NGP: Tensor
    summary_NM: Tensor


def make_views(attention_BHQK: Tensor, real_BS: Tensor, first_segment_B: Tensor | None = None) -> Views:
    """The views of every map, N = B * H, examples first.

    Args:
        attention_BHQK: Weights in 0..1, floating, rows of real queries summing to 1 over the real keys.
        real_BS: Which tokens are real, bool; a contiguous run in each example. Padding has no influence.
        first_segment_B: As :func:`~bertsecrets.patterns.segments.first_segments` gives it; None where it is not known.
    """
    if first_segment_B is None:
        first_segment_B = torch.full(real_BS.shape[:1], UNKNOWN, device=real_BS.device)
    batch, heads, size = attention_BHQK.shape[:3]
    attention_BHQK = attention_BHQK.float()
    pool_BPS = bin_weights(real_BS)
    mean_B1S = real_BS[:, None].float() / real_BS.sum(-1).clamp(min=1)[:, None, None]
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
            queries, _ = diagonal_places(offset, size)
            diagonals[:, :, place, queries] = attention_BHQK.diagonal(offset, dim1=-2, dim2=-1)
    largest_BHQ, best_BHQ = attention_BHQK.max(-1)
    norm_BHQ = torch.linalg.vector_norm(attention_BHQK, dim=-1)
    by_query = torch.cat((diagonals, largest_BHQ[:, :, None], norm_BHQ[:, :, None]), dim=2)
    by_query = (by_query.flatten(1, 2) @ along_BSP).unflatten(1, (heads, -1))

    kept = min(COLUMNS, size)
    ranked = received_BHK.topk(min(RANKS, size), dim=-1)
    most_BHC = ranked.indices[..., :kept]
    ranked_BHR = pad(ranked.values, (0, max(0, RANKS - size)))
    columns = rows_BHPK.gather(-1, most_BHC[:, :, None].expand(-1, -1, BINS, -1)).transpose(2, 3)
    strips_BHGP = torch.cat((by_query, pad(columns, (0, 0, 0, COLUMNS - kept))), dim=2)

    # An annotator sees each weight over the map's largest.
    ink_BH11 = 1 / largest_BHQ.masked_fill(~real_BS[:, None], 0).amax(-1)[..., None, None]
    length_B111 = real_BS.sum(-1).to(torch.float32)[:, None, None, None]
    ink_BHPP, ink_BHGP = picture_BHPP * ink_BH11, strips_BHGP * ink_BH11
    side_BP = segment_sides(pool_BPS, real_BS, first_segment_B)
    within_BHPP = (side_BP[:, :, None] * side_BP[:, None])[:, None].expand_as(picture_BHPP)
    pictures = torch.stack((ink_BHPP, ink_BHPP.sqrt(), log_ratio(picture_BHPP, length_B111), within_BHPP), dim=2)
    strips = torch.cat((strips_BHGP, ink_BHGP, ink_BHGP.sqrt(), log_ratio(strips_BHGP, length_B111)), dim=2)
    ink_BH = ink_BH11[..., 0, 0]
    summary_BHM = torch.cat(
        (
            summarise(strips_BHGP, picture_BHPP, ranked_BHR, ink_BH[..., None], best_BHQ, mean_B1S[:, 0]),
            stand_out(attention_BHQK, diagonals, received_BHK, norm_BHQ, ink_BH, real_BS),
            segments_apart(picture_BHPP, side_BP, first_segment_B, length_B111[:, 0, 0, 0]),
        ),
        dim=-1,
    )
    return Views(pictures.flatten(0, 1), strips.flatten(0, 1), summary_BHM.flatten(0, 1))
