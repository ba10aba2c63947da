"""Entropy of attention: how widely a head spreads it (Clark et al. 2019, section 3.3; methods C4)."""

import math

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import Measure

_SHARE = "entropy / entropy of uniform attention"


def row_entropy(attention_BHQK: Tensor) -> Tensor:
    """Shannon entropy of each row in bits, ``[B, H, Q]``: 0 for attention to one token, log2 L for uniform
    attention.
    """
    # xlogy: 0 ln 0 is 0, where log() would give NaN.
    return -torch.xlogy(attention_BHQK, attention_BHQK).sum(-1) / math.log(2)


class Entropy(Measure):
    """Mean entropy of a head's attention rows.

    Columns:
        ``bits``: mean over the L real tokens of the entropy of their rows; 0 to log2 L.
        ``cls_bits``: entropy of the row of the first real token, the classification token.
        ``uniform``: log2 L, the entropy of uniform attention.
        ``relative``, ``cls_relative``: the first two divided by it, text by text; 0..1. Texts with one token do not
            count.
    """

    name = "entropy"
    title = "Entropy of attention"
    columns = (
        Column("bits", "all tokens", "bits", keep="low"),
        Column("cls_bits", "from [CLS]", "bits"),
        Column("uniform", "uniform attention", "bits", role="baseline"),
        Column("relative", "all tokens, relative to uniform attention", _SHARE, (0.0, 1.0), keep="low"),
        Column("cls_relative", "from [CLS], relative to uniform attention", _SHARE, (0.0, 1.0)),
    )
    # Figure 4 of the paper, in bits.
    shown = Shown(
        says="attends most broadly",
        by_layer={"bits": "all tokens", "cls_bits": "from [CLS]"},
        level=("uniform", "uniform attention"),
    )

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BQ = batch.attention_mask_BS.to(attention_BHQK.dtype)
        length_B1 = real_BQ.sum(-1, keepdim=True)
        bits_BHQ = row_entropy(attention_BHQK)
        mean_BH = (bits_BHQ * real_BQ[:, None]).sum(-1) / length_B1
        # With padding on the left the classification token is not in row 0.
        first_BH1 = real_BQ.argmax(-1)[:, None, None].expand(-1, bits_BHQ.shape[1], 1)
        cls_BH = bits_BHQ.gather(-1, first_BH1)[..., 0]
        uniform_BH = length_B1.log2().expand_as(mean_BH)
        # 0 / 0 in a text of one token: NaN, which does not count.
        return torch.stack((mean_BH, cls_BH, uniform_BH, mean_BH / uniform_BH, cls_BH / uniform_BH), dim=-1)
