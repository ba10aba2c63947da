"""How strongly columns and diagonals stand out from the rest of a map, as an eye weighs them."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from bertsecrets.patterns.pooling import OFFSETS, diagonal_places

STANDING_OUT = 8
"""How many numbers say it."""

_NEAR = 2
_STRONG, _SHOWN, _REST = 2, 3, 6
_FAINT, _TIE = 1e-3, 1e-6


def stand_out(
    attention_BHQK: Tensor,
    diagonal_BHOQ: Tensor,
    received_BHK: Tensor,
    norm_BHQ: Tensor,
    ink_BH: Tensor,
    real_BS: Tensor,
) -> Tensor:
    """Logarithms of mean ink and of its deviation, ``[B, H, STANDING_OUT]``.

    A column is what rows more than two tokens away give it, so that no diagonal adds to it; the columns are taken in
    the order of that. A diagonal is what stands on it outside the two strongest columns, so that none adds to it. The
    rest is what is neither within two tokens of the diagonal nor in the six strongest columns. In order: the three
    strongest columns; the rest; the strongest diagonal at most two tokens from the main one, and the mean of these five;
    the deviation of the rest; the deviation along the strongest column.

    Args:
        attention_BHQK: Weights.
        diagonal_BHOQ: Those at each of ``OFFSETS``, by query.
        received_BHK: Mean weight of each column.
        norm_BHQ: Root of the sum of squares of each row.
        ink_BH: One over the map's largest weight.
        real_BS: Which tokens are real.
    """
    size, real_BK = real_BS.shape[1], real_BS.to(received_BHK.dtype)
    length_B11 = real_BK.sum(-1)[:, None, None]
    middle = len(OFFSETS) // 2
    near_BHOK = received_BHK.new_zeros(*received_BHK.shape[:2], 2 * _NEAR + 1, size)
    row_BOK = torch.zeros_like(near_BHOK[:, 0])
    for place, offset in enumerate(range(-_NEAR, _NEAR + 1)):
        if abs(offset) < size:
            queries, keys = diagonal_places(offset, size)
            near_BHOK[:, :, place, keys] = diagonal_BHOQ[:, :, middle + offset, queries] * real_BK[:, None, queries]
            row_BOK[:, place, keys] = real_BK[:, queries] * real_BK[:, keys]

    far_rows_B1K = ((length_B11 - row_BOK.sum(1, keepdim=True)) * real_BK[:, None]).clamp(min=0)
    far_BHK = (received_BHK * length_B11 - near_BHOK.sum(2)).clamp(min=0) * real_BK[:, None]
    column_BHK = far_BHK / far_rows_B1K.clamp(min=1)
    # Where weights are 0, columns are alike: what they receive near the diagonal decides, and padding comes last.
    order_BHK = (column_BHK + _TIE * received_BHK).masked_fill(~real_BS[:, None], -1.0)
    place_BHC = order_BHK.topk(min(_REST, size), dim=-1).indices
    rest_BHK = torch.ones_like(far_BHK).scatter(-1, place_BHC, 0.0)
    weak_BHK = torch.ones_like(far_BHK).scatter(-1, place_BHC[..., :_STRONG], 0.0)

    rest_cells_BH = (far_rows_B1K * rest_BHK).sum(-1).clamp(min=1)
    rest_BH = (far_BHK * rest_BHK).sum(-1) / rest_cells_BH
    on_BHO = (near_BHOK * weak_BHK[:, :, None]).sum(-1)
    on_cells_BHO = weak_BHK @ row_BOK.transpose(1, 2)
    diagonal_BH = (on_BHO / on_cells_BHO.clamp(min=1)).amax(-1)
    near_BH = on_BHO.sum(-1) / on_cells_BHO.sum(-1).clamp(min=1)

    columns_BHQC = attention_BHQK.gather(-1, place_BHC[:, :, None].expand(-1, -1, size, -1)) * real_BK[:, None, :, None]
    squares_BH = (norm_BHQ.square() * real_BK[:, None]).sum(-1) - columns_BHQC.square().sum((-2, -1))
    squares_BH = squares_BH - (near_BHOK.square().sum(2) * rest_BHK).sum(-1)
    first_BHQ = columns_BHQC[..., 0]
    apart_BHQ = (first_BHQ - first_BHQ.sum(-1, keepdim=True) / length_B11) * real_BK[:, None]
    along_BH = apart_BHQ.square().sum(-1) / length_B11[..., 0]
    numbers_BHM = torch.cat(
        (
            pad(column_BHK.gather(-1, place_BHC[..., :_SHOWN]), (0, max(0, _SHOWN - size))),
            torch.stack((rest_BH, diagonal_BH, near_BH), dim=-1),
            torch.stack((squares_BH / rest_cells_BH - rest_BH.square(), along_BH), dim=-1).clamp(min=0).sqrt(),
        ),
        dim=-1,
    )
    return (numbers_BHM * ink_BH[..., None] + _FAINT).log()
