"""Norm-based attention: what a head adds to the residual stream, not where it looks (Kobayashi et al. 2020, section
3).
"""

import torch
from torch import Tensor

from bertsecrets.attention.values import projected_norms
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import Measure, Need, Passed

_UNIT = "mean norm"


class ValueNorm(Measure):
    """Norms of what a head adds to the residual stream.

    With f(x) a token's value after the head's part of the output projection, bias of the values included, and a the
    attention of token i to token j:

    Columns:
        ``output``: mean over tokens i of the norm of the sum over j of a f.
        ``weighted``: mean over tokens i of the sum over j of the norm of a f, the paper's; at least ``output``, as
            vectors may cancel.
        ``value``: mean over tokens j of the norm of f.
        ``rank``: in how many directions a text's outputs lie: (Σ s²)² / Σ s⁴ over the singular values s of the matrix
            of the outputs of all tokens (participation ratio); 1 where the head adds the same to every token, at most
            the width of a head. A head that spreads what one token holds has a low rank (Fesser et al. 2026, abstract).
    """

    name = "value_norm"
    title = "Norms of heads' outputs"
    shown = Shown(
        about="The norm of what a head adds to a token, after the output projection (Kobayashi et al. 2020): a head "
        "can attend "
        "firmly to a token whose value is nearly zero. A large addition need not matter to the task, and layers differ "
        "in the scale of what they add to. The rank says in how many directions the outputs of a text's tokens lie: 1 "
        "where all get the same, as from a token that broadcasts (Fesser et al. 2026).",
    )
    columns = (
        Column("output", "output", _UNIT, keep="high"),
        Column("weighted", "attention × value", _UNIT, keep="high"),
        Column("value", "value", _UNIT),
        Column("rank", "rank of the output", "effective rank"),
    )

    needs = frozenset({Need.VALUES})

    def values(self, passed: Passed) -> Tensor:
        attention_BHQK, value_BHKd, weights_HDd = passed.attention_BHQK, passed.value_BHKd, passed.weights_HDd
        real_BS = passed.batch.attention_mask_BS.to(attention_BHQK.dtype)
        weight_B1S = (real_BS / real_BS.sum(-1, keepdim=True))[:, None]
        gram_Hdd = weights_HDd.transpose(1, 2) @ weights_HDd
        size_BHK = projected_norms(value_BHKd, gram_Hdd)
        output_BHQd = attention_BHQK @ value_BHKd
        output_BH = (projected_norms(output_BHQd, gram_Hdd) * weight_B1S).sum(-1)
        # The norm of a f is a times that of f: no product of every pair is needed.
        received_BHK = (attention_BHQK * weight_B1S[..., None]).sum(2)
        weighted_BH, value_BH = (received_BHK * size_BHK).sum(-1), (size_BHK * weight_B1S).sum(-1)
        return torch.stack(
            (output_BH, weighted_BH, value_BH, _rank(output_BHQd * real_BS[:, None, :, None], gram_Hdd)), -1
        )


def _rank(output_BHQd: Tensor, gram_Hdd: Tensor) -> Tensor:
    """Effective rank of the projected outputs, ``[B, H]``; NaN where all are zero."""
    # Its eigenvalues are the squared singular values; the sums of powers are traces.
    product_BHdd = output_BHQd.transpose(-1, -2) @ output_BHQd @ gram_Hdd
    trace_BH = product_BHdd.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace_BH.square() / (product_BHdd * product_BHdd.transpose(-1, -2)).sum((-2, -1))
