"""The classifier's input from an attention map: a 16 x 16 picture, strips along its rows, and summary numbers.

Their size does not depend on the map's length, and padding has no influence. *Ink* is the weight divided by the map's
largest weight: the brightness that an annotator sees.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

ONE, UNKNOWN = 0, -1
"""Values of ``first_segment`` for inputs of one segment and for inputs with unknown segments."""


def first_segments(special_BS: Tensor, real_BS: Tensor) -> Tensor:
    """Number of tokens in the first of two segments, [CLS] and separator included, ``[B]`` int64.

    The second segment begins after the first special token that does not begin the sequence. ``ONE`` for inputs of one
    segment, ``UNKNOWN`` for inputs without a separator.

    Args:
        special_BS: Which tokens the tokenizer added, bool.
        real_BS: Which tokens are not padding, bool; a contiguous run in each example.
    """
    position_BS = real_BS.cumsum(-1)
    separator_BS = special_BS & real_BS & (position_BS > 1)
    # argmax of 0 and 1 is the first 1.
    size_B = position_BS.gather(-1, separator_BS.int().argmax(-1, keepdim=True))[:, 0]
    second_B = (real_BS & ~special_BS & (position_BS > size_B[:, None])).any(-1)
    first_B = torch.where(second_B, size_B, ONE)
    return first_B.masked_fill(~separator_BS.any(-1), UNKNOWN)


BINS = 16
"""Bins along each axis into which a map is pooled."""

OFFSETS = tuple(range(-3, 4))
"""Offsets of the diagonals with a strip."""

COLUMNS = 6
"""Number of columns (those that receive the most attention) with a strip."""

RANKS = 16
"""Number of columns, in order of received attention, whose received attention is a summary number."""

SCALES = 3
"""Scales of the pooled map: ink, square root of the ink, and log ratio to uniform attention."""

PICTURE_CHANNELS = SCALES + 2
"""Channels of the picture: one per scale, one for the background, and one that marks cells within a segment."""

STRIPS = len(OFFSETS) + COLUMNS + 2
"""Strips per scale."""

_COMMON = (1, 3, 6)
TOTALS_SIZE = 2 * COLUMNS + 2 * len(OFFSETS) + RANKS + len(_COMMON) + 7
CONTRASTS_SIZE = 8
SEGMENT_CONTRASTS_SIZE = 8
SUMMARY_SIZE = TOTALS_SIZE + CONTRASTS_SIZE + 1 + len(OFFSETS) + 1 + SEGMENT_CONTRASTS_SIZE
"""Numbers that summarise a map: :func:`totals`, :func:`contrasts`, :func:`variance_by_column`,
:func:`steady_diagonals`, :func:`background_contrast`, and :func:`segment_contrasts`."""

_UNIFORM_FLOOR = 0.05
_NEAR = 2
_STRONG, _SHOWN, _REST = 2, 3, 6
_INK_FLOOR, _TIE_BREAK = 1e-3, 1e-6
_CLEARLY_MORE, _SHARE_FLOOR, _EVEN, _LEAST_SHARE = 1.2, 1e-3, 1e-6, 0.05


class MapFeatures(NamedTuple):
    """Features of N maps, float32.

    Args:
        picture_NGPP: Pooled map ``[N, PICTURE_CHANNELS, BINS, BINS]``: ink, its root, and :func:`log_ratio`; the root
            of the background's ink, 1 where it is brightest; then 1 within a segment and -1 between two, 0 for one
            segment or unknown segments.
        strips_NGP: Strips ``[N, (SCALES + 1) * STRIPS, BINS]`` along the queries, as weights, ink, its root, and
            :func:`log_ratio`: the weights on each diagonal of ``OFFSETS``, the largest weight of a row, the L2 norm of
            a row, and the weights in each of the ``COLUMNS`` columns that receive most.
        summary_NM: ``[N, SUMMARY_SIZE]``.
    """

    picture_NGPP: Tensor
    strips_NGP: Tensor
    summary_NM: Tensor


def map_features(attention_BHQK: Tensor, real_BS: Tensor, first_segment_B: Tensor | None = None) -> MapFeatures:
    """Features of every map, N = B * H, examples first.

    Args:
        attention_BHQK: Weights in 0..1, floating point; rows of real queries sum to 1 over the real keys.
        real_BS: Which tokens are not padding, bool; a contiguous run in each example.
        first_segment_B: From :func:`~bertsecrets.patterns.map_features.first_segments`; None for unknown segments.
    """
    if first_segment_B is None:
        first_segment_B = torch.full(real_BS.shape[:1], UNKNOWN, device=real_BS.device)
    batch, heads, size = attention_BHQK.shape[:3]
    # The classifier was trained on float32; half precision loses weights below its floor.
    attention_BHQK = attention_BHQK.float()
    pool_BPS = bin_weights(real_BS)
    mean_B1S = real_BS[:, None].float() / real_BS.sum(-1).clamp(min=1)[:, None, None]
    # One product gives the rows' bins and, as its last row, the mean that each column receives.
    rows_BHPK = torch.cat((pool_BPS, mean_B1S), dim=1)[:, None] @ attention_BHQK
    rows_BHPK, received_BHK = rows_BHPK[:, :, :-1], rows_BHPK[:, :, -1]
    along_BSP = pool_BPS.transpose(1, 2)
    # All heads of an example in one product, as only the examples differ in their bins.
    picture_BHPP = (rows_BHPK.flatten(1, 2) @ along_BSP).unflatten(1, (heads, -1))

    # A padded query attends like a real one, but its weight in every bin is 0; a padded key receives nothing.
    diagonals_BHOQ = attention_BHQK.new_zeros(batch, heads, len(OFFSETS), size)
    for index, offset in enumerate(OFFSETS):
        if abs(offset) < size:
            queries, _ = _diagonal_slices(offset, size)
            diagonals_BHOQ[:, :, index, queries] = attention_BHQK.diagonal(offset, dim1=-2, dim2=-1)
    largest_BHQ, best_BHQ = attention_BHQK.max(-1)
    norm_BHQ = torch.linalg.vector_norm(attention_BHQK, dim=-1)
    by_query = torch.cat((diagonals_BHOQ, largest_BHQ[:, :, None], norm_BHQ[:, :, None]), dim=2)
    by_query = (by_query.flatten(1, 2) @ along_BSP).unflatten(1, (heads, -1))

    kept = min(COLUMNS, size)
    ranked = received_BHK.topk(min(RANKS, size), dim=-1)
    most_BHC = ranked.indices[..., :kept]
    ranked_BHR = pad(ranked.values, (0, max(0, RANKS - size)))
    columns = rows_BHPK.gather(-1, most_BHC[:, :, None].expand(-1, -1, BINS, -1)).transpose(2, 3)
    strips_BHGP = torch.cat((by_query, pad(columns, (0, 0, 0, COLUMNS - kept))), dim=2)

    ink_BH11 = 1 / largest_BHQ.masked_fill(~real_BS[:, None], 0).amax(-1)[..., None, None]
    length_B111 = real_BS.sum(-1).to(torch.float32)[:, None, None, None]
    ink_BHPP, ink_BHGP = picture_BHPP * ink_BH11, strips_BHGP * ink_BH11
    side_BP = _segment_sides(pool_BPS, real_BS, first_segment_B)
    within_BHPP = (side_BP[:, :, None] * side_BP[:, None])[:, None].expand_as(picture_BHPP)
    background_BHPP, cells_BH1P = background(rows_BHPK, most_BHC, along_BSP)
    clear_BHPP = (background_BHPP / background_BHPP.amax((-2, -1), keepdim=True).clamp(min=_EVEN)).sqrt()
    pictures = torch.stack(
        (ink_BHPP, ink_BHPP.sqrt(), log_ratio(picture_BHPP, length_B111), clear_BHPP, within_BHPP), dim=2
    )
    strips = torch.cat((strips_BHGP, ink_BHGP, ink_BHGP.sqrt(), log_ratio(strips_BHGP, length_B111)), dim=2)
    ink_BH = ink_BH11[..., 0, 0]
    summary_BHM = torch.cat(
        (
            totals(strips_BHGP, picture_BHPP, ranked_BHR, ink_BH[..., None], best_BHQ, mean_B1S[:, 0]),
            contrasts(attention_BHQK, diagonals_BHOQ, received_BHK, norm_BHQ, ink_BH, real_BS),
            variance_by_column(received_BHK, norm_BHQ, real_BS)[..., None],
            steady_diagonals(ink_BHGP),
            background_contrast(background_BHPP, cells_BH1P, side_BP, length_B111[:, 0, 0, 0])[..., None],
            segment_contrasts(picture_BHPP, side_BP, first_segment_B, length_B111[:, 0, 0, 0]),
        ),
        dim=-1,
    )
    return MapFeatures(pictures.flatten(0, 1), strips.flatten(0, 1), summary_BHM.flatten(0, 1))


def bin_weights(real_BS: Tensor) -> Tensor:
    """Share of each bin that each position fills, ``[B, BINS, S]``; every bin sums to 1.

    The real tokens are spread evenly over the bins: position i of L covers i/L to (i+1)/L, and bin b covers b/BINS to
    (b+1)/BINS. Maps shorter than the bins are stretched. Examples without a real token are 0.
    """
    length_B = real_BS.sum(-1)
    # argmax has no kernel for bool.
    start_B = real_BS.to(torch.int8).argmax(-1)
    position_BS = torch.arange(real_BS.shape[1], device=real_BS.device) - start_B[:, None]
    width_B11 = BINS / length_B.clamp(min=1).to(torch.float32)[:, None, None]
    low_B1S = position_BS[:, None] * width_B11
    bin_P1 = torch.arange(BINS, device=real_BS.device, dtype=torch.float32)[:, None]
    overlap_BPS = torch.minimum(low_B1S + width_B11, bin_P1 + 1) - torch.maximum(low_B1S, bin_P1)
    return overlap_BPS.clamp(min=0) * real_BS[:, None]


def log_ratio(weight: Tensor, length: Tensor) -> Tensor:
    """ln(L w + 0.05), about 0 for uniform attention; ``length`` broadcasts to ``weight``."""
    return (weight * length + _UNIFORM_FLOOR).log()


def _diagonal_slices(offset: int, size: int) -> tuple[slice, slice]:
    """The queries that have a key at this offset, and these keys."""
    first, last = max(0, -offset), size - max(0, offset)
    return slice(first, last), slice(first + offset, last + offset)


def totals(
    strips_BHGP: Tensor,
    picture_BHPP: Tensor,
    ranked_BHR: Tensor,
    ink_BH1: Tensor,
    best_BHQ: Tensor,
    mean_BQ: Tensor,
) -> Tensor:
    """Attention in columns, diagonals and squares of the whole map, ``[B, H, TOTALS_SIZE]``.

    In order: cumulative sums of the first six columns; the mean weight on each diagonal, and of the three and five
    about the main one; the ink of the six columns, of the whole map, and of the diagonals; the means of a row's largest
    weight and norm; the shares of rows with their largest weight in the one, three and six commonest such columns;
    the attention that the first to the sixteenth column receive, as :func:`log_ratio`; the share of rows with their
    largest weight at the commonest offset up to two; and the most that two squares hold beyond uniform attention.

    Args:
        strips_BHGP: Strips as weights.
        picture_BHPP: Pooled map as weights.
        ranked_BHR: Mean weight of the ``RANKS`` columns that receive most, in order.
        ink_BH1: One over the map's largest weight.
        best_BHQ: Key with the largest weight of each row.
        mean_BQ: One over the number of real tokens; 0 for padding.
    """
    offsets, size = len(OFFSETS), best_BHQ.shape[-1]
    mean_BHG = strips_BHGP.mean(-1)
    diagonal_BHO, columns_BHC = mean_BHG[..., :offsets], mean_BHG[..., -COLUMNS:]
    middle = offsets // 2
    length_B11 = (mean_BQ > 0).sum(-1)[:, None, None]
    weight_BHQ = mean_BQ[:, None].expand_as(best_BHQ)
    largest_BHK = weight_BHQ.new_zeros(weight_BHQ.shape).scatter_add(-1, best_BHQ, weight_BHQ)
    common_BHC = _highest(largest_BHK, max(_COMMON)).cumsum(-1)[..., [count - 1 for count in _COMMON]]
    # Offsets -2 to 2, and one slot at each end for all larger offsets.
    offset_BHQ = (best_BHQ - torch.arange(size, device=best_BHQ.device)).clamp(-3, 3) + 3
    aligned = weight_BHQ.new_zeros((*offset_BHQ.shape[:2], 7)).scatter_add(-1, offset_BHQ, weight_BHQ)[..., 1:-1]
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
    """The largest values in order, ``[B, H, count]``, padded with 0."""
    kept = min(count, values_BHK.shape[-1])
    return pad(values_BHK.topk(kept, dim=-1).values, (0, count - kept))


def _squares(picture_BHPP: Tensor) -> Tensor:
    """Largest share in two squares along the diagonal, minus their area, over all boundaries, ``[B, H]``."""
    total_BHPP = picture_BHPP.cumsum(-1).cumsum(-2)
    first_BHP = total_BHPP.diagonal(dim1=-2, dim2=-1)
    second_BHP = first_BHP[..., -1:] - total_BHPP[..., -1] - total_BHPP[..., -1, :] + first_BHP
    cut_P = torch.arange(1, BINS + 1, device=picture_BHPP.device, dtype=picture_BHPP.dtype) / BINS
    # A bin of the picture is a mean of weights; its row's attention is the mean times the row's length.
    share_BHP = (first_BHP + second_BHP) / first_BHP[..., -1:].clamp(min=1e-6)
    # Under even attention, two squares receive their area; more is structure.
    excess_BHP = share_BHP - cut_P.square() - (1 - cut_P).square()
    # A square of one or two bins is the diagonal, not a segment.
    return excess_BHP[..., 2:-3].amax(-1)


def contrasts(
    attention_BHQK: Tensor,
    diagonals_BHOQ: Tensor,
    received_BHK: Tensor,
    norm_BHQ: Tensor,
    ink_BH: Tensor,
    real_BS: Tensor,
) -> Tensor:
    """How strongly columns and diagonals stand out from the rest of a map, ``[B, H, CONTRASTS_SIZE]``, as log ink.

    A column is measured over the rows more than two tokens away, which excludes diagonals; a diagonal is measured
    outside the two strongest columns. The rest of the map is more than two tokens from the
    diagonal and outside the six strongest columns. In order: the means of the three strongest columns; of the rest; of
    the strongest diagonal at most two tokens from the main one, and of these five together; the standard deviations of
    the rest and along the strongest column.

    Args:
        attention_BHQK: Weights.
        diagonals_BHOQ: Weights at each of ``OFFSETS``, by query.
        received_BHK: Mean weight of each column.
        norm_BHQ: L2 norm of each row.
        ink_BH: One over the map's largest weight.
        real_BS: Which tokens are not padding.
    """
    size, real_BK = real_BS.shape[1], real_BS.to(received_BHK.dtype)
    length_B11 = real_BK.sum(-1)[:, None, None]
    middle = len(OFFSETS) // 2
    near_BHOK = received_BHK.new_zeros(*received_BHK.shape[:2], 2 * _NEAR + 1, size)
    row_BOK = torch.zeros_like(near_BHOK[:, 0])
    for index, offset in enumerate(range(-_NEAR, _NEAR + 1)):
        if abs(offset) < size:
            queries, keys = _diagonal_slices(offset, size)
            near_BHOK[:, :, index, keys] = diagonals_BHOQ[:, :, middle + offset, queries] * real_BK[:, None, queries]
            row_BOK[:, index, keys] = real_BK[:, queries] * real_BK[:, keys]

    far_rows_B1K = ((length_B11 - row_BOK.sum(1, keepdim=True)) * real_BK[:, None]).clamp(min=0)
    far_BHK = (received_BHK * length_B11 - near_BHOK.sum(2)).clamp(min=0) * real_BK[:, None]
    column_BHK = far_BHK / far_rows_B1K.clamp(min=1)
    # Columns of weight 0 tie; their attention near the diagonal decides, and padding comes last.
    order_BHK = (column_BHK + _TIE_BREAK * received_BHK).masked_fill(~real_BS[:, None], -1.0)
    column_BHC = order_BHK.topk(min(_REST, size), dim=-1).indices
    rest_BHK = torch.ones_like(far_BHK).scatter(-1, column_BHC, 0.0)
    weak_BHK = torch.ones_like(far_BHK).scatter(-1, column_BHC[..., :_STRONG], 0.0)

    rest_cells_BH = (far_rows_B1K * rest_BHK).sum(-1).clamp(min=1)
    rest_BH = (far_BHK * rest_BHK).sum(-1) / rest_cells_BH
    on_BHO = (near_BHOK * weak_BHK[:, :, None]).sum(-1)
    on_cells_BHO = weak_BHK @ row_BOK.transpose(1, 2)
    diagonal_BH = (on_BHO / on_cells_BHO.clamp(min=1)).amax(-1)
    near_BH = on_BHO.sum(-1) / on_cells_BHO.sum(-1).clamp(min=1)

    columns_BHQC = (
        attention_BHQK.gather(-1, column_BHC[:, :, None].expand(-1, -1, size, -1)) * real_BK[:, None, :, None]
    )
    squares_BH = (norm_BHQ.square() * real_BK[:, None]).sum(-1) - columns_BHQC.square().sum((-2, -1))
    squares_BH = squares_BH - (near_BHOK.square().sum(2) * rest_BHK).sum(-1)
    first_BHQ = columns_BHQC[..., 0]
    deviation_BHQ = (first_BHQ - first_BHQ.sum(-1, keepdim=True) / length_B11) * real_BK[:, None]
    variance_BH = deviation_BHQ.square().sum(-1) / length_B11[..., 0]
    numbers_BHM = torch.cat(
        (
            pad(column_BHK.gather(-1, column_BHC[..., :_SHOWN]), (0, max(0, _SHOWN - size))),
            torch.stack((rest_BH, diagonal_BH, near_BH), dim=-1),
            torch.stack((squares_BH / rest_cells_BH - rest_BH.square(), variance_BH), dim=-1).clamp(min=0).sqrt(),
        ),
        dim=-1,
    )
    return (numbers_BHM * ink_BH[..., None] + _INK_FLOOR).log()


def variance_by_column(received_BHK: Tensor, norm_BHQ: Tensor, real_BS: Tensor) -> Tensor:
    """Share of the variance of a map's weights that lies between its columns, ``[B, H]``, 0..1; 0 for an even map.

    1 if all rows are equal, so that only columns are visible. With L tokens, m_k the mean weight of column k and n_q
    the L2 norm of row q, it is (sum_k m_k^2 - 1/L) / (mean_q n_q^2 - 1/L).

    Args:
        received_BHK: Mean weight of each column.
        norm_BHQ: L2 norm of each row.
        real_BS: Which tokens are not padding.
    """
    length_B1 = real_BS.sum(-1)[:, None].clamp(min=1).to(received_BHK.dtype)
    between_BH = received_BHK.square().sum(-1) - 1 / length_B1
    whole_BH = (norm_BHQ.square() * real_BS[:, None]).sum(-1) / length_B1 - 1 / length_B1
    return (between_BH / whole_BH.clamp(min=_EVEN)).clamp(0, 1)


def steady_diagonals(ink_BHGP: Tensor) -> Tensor:
    """Log ink of each diagonal of ``OFFSETS``, ``[B, H, O]``, as the median of its bins.

    The median ignores single bright cells near the diagonal, which raise the mean but are not a line.

    Args:
        ink_BHGP: Strips as ink, the diagonals first.
    """
    sorted_BHOP = ink_BHGP[:, :, : len(OFFSETS)].sort(dim=-1).values
    return (sorted_BHOP[..., BINS // 2 - 1 : BINS // 2 + 1].mean(-1) + _INK_FLOOR).log()


def background(rows_BHPK: Tensor, most_BHC: Tensor, along_BSP: Tensor) -> tuple[Tensor, Tensor]:
    """The pooled map without the strongest columns, as mean weights, and each bin's share of other columns.

    Args:
        rows_BHPK: The map with its rows pooled into bins.
        most_BHC: The columns that receive the most attention.
        along_BSP: Weights of the keys in each bin.
    """
    rest_BHK = torch.ones_like(rows_BHPK[:, :, 0]).scatter(-1, most_BHC, 0.0)
    rest_BHPP = ((rows_BHPK * rest_BHK[:, :, None]).flatten(1, 2) @ along_BSP).unflatten(1, rows_BHPK.shape[1:3])
    cells_BH1P = (rest_BHK @ along_BSP)[:, :, None]
    # A bin with only excluded columns is dark, despite rounding.
    return rest_BHPP / cells_BH1P.clamp(min=_LEAST_SHARE), cells_BH1P


def background_contrast(background_BHPP: Tensor, cells_BH1P: Tensor, side_BP: Tensor, length_B: Tensor) -> Tensor:
    """How much brighter the background is within the segments than between them, ``[B, H]``, as the log of their ratio.

    Cells near the diagonal do not count. 0 for one segment and for unknown segments.

    Args:
        background_BHPP, cells_BH1P: From :func:`background`.
        side_BP: Segment of each bin, 1 to -1.
        length_B: Number of real tokens.
    """
    bin_P = torch.arange(BINS, device=background_BHPP.device)
    far_PP = (bin_P[:, None] - bin_P).abs() > 1
    same_B1PP = (side_BP[:, :, None] * side_BP[:, None] * far_PP)[:, None]
    logs = []
    for weight_B1PP in (same_B1PP.clamp(min=0), (-same_B1PP).clamp(min=0)):
        weight_BHPP = weight_B1PP * cells_BH1P
        mean_BH = (background_BHPP * weight_BHPP).sum((-2, -1)) / weight_BHPP.sum((-2, -1)).clamp(min=_LEAST_SHARE)
        logs.append(log_ratio(mean_BH, length_B[:, None]))
    return (logs[0] - logs[1]) * (side_BP != 0).any(-1)[:, None]


def _segment_sides(pool_BPS: Tensor, real_BS: Tensor, first_segment_B: Tensor) -> Tensor:
    """Segment of each bin, ``[B, BINS]``: 1 for the first, -1 for the second, in between for a bin of both.

    0 for one segment or unknown segments.
    """
    side_BS = 2 * (real_BS.cumsum(-1) <= first_segment_B[:, None]).to(pool_BPS.dtype) - 1
    return (pool_BPS @ side_BS[..., None])[..., 0] * (first_segment_B > 0)[:, None]


def segment_contrasts(picture_BHPP: Tensor, side_BP: Tensor, first_segment_B: Tensor, length_B: Tensor) -> Tensor:
    """How much more each segment attends to itself than the other segment does, ``[B, H, SEGMENT_CONTRASTS_SIZE]``.

    For each of the two segments, over its columns and away from the diagonal: the difference between the attention from
    its own rows and from the other's; the logarithm of their ratio; and the share of columns that get clearly more from
    their own rows. Only columns with rows of both segments away from the diagonal count; 0 without such columns. Then 1
    for two segments, and 1 for one. All 0 for unknown segments.

    Args:
        picture_BHPP: Pooled map as weights.
        side_BP: Segment of each bin, 1 to -1.
        first_segment_B: From :func:`~bertsecrets.patterns.map_features.first_segments`.
        length_B: Number of real tokens.
    """
    bin_P = torch.arange(BINS, device=picture_BHPP.device)
    far_PP = ((bin_P[:, None] - bin_P).abs() > 1).to(picture_BHPP.dtype)
    # The share of a row's attention in a bin does not depend on the map's length.
    share_BHPP = picture_BHPP * (length_B / BINS)[:, None, None, None]
    first_BP, second_BP = side_BP.clamp(min=0), (-side_BP).clamp(min=0)
    numbers = []
    for segment_BP, other_BP in ((first_BP, second_BP), (second_BP, first_BP)):
        counts_BP = (segment_BP @ far_PP > 0) & (other_BP @ far_PP > 0)
        column_B1P = (segment_BP * counts_BP)[:, None]
        rows = [_mean_of_rows(share_BHPP, rows_BP[:, :, None] * far_PP) for rows_BP in (segment_BP, other_BP)]
        within_BH, other_BH = ((mean_BHP * column_B1P).sum(-1) for mean_BHP in rows)
        more_BHP = (rows[0] > _CLEARLY_MORE * rows[1]) * column_B1P
        numbers += [
            within_BH - other_BH,
            (within_BH.clamp(min=_SHARE_FLOOR) / other_BH.clamp(min=_SHARE_FLOOR)).log(),
            more_BHP.sum(-1) / column_B1P.sum(-1).clamp(min=0.5),
        ]
    two_B1, one_B1 = (first_segment_B > 0)[:, None], (first_segment_B == ONE)[:, None]
    flags = [flag_B1.to(picture_BHPP.dtype).expand_as(numbers[0]) for flag_B1 in (two_B1, one_B1)]
    return torch.stack([*(number * two_B1 for number in numbers), *flags], dim=-1)


def _mean_of_rows(picture_BHPP: Tensor, weight_BPP: Tensor) -> Tensor:
    """Weighted mean of the rows of each column, ``[B, H, BINS]``."""
    sum_BHP = (picture_BHPP * weight_BPP[:, None]).sum(-2)
    return sum_BHP / weight_BPP.sum(-2).clamp(min=0.5)[:, None]
