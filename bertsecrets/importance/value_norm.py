"""Norm-based attention: what a head adds to the residual stream, not where it attends (Kobayashi et al. 2020, section
3).
"""

import torch
from torch import Tensor

from bertsecrets.attention.watch import projected_norms
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.base import Measure, Need, Passed

_UNIT = "mean norm"


class ValueNorm(Measure):
    """Norms of a head's contribution to the residual stream.

    With f(x) a token's value (including its bias) after the head's part of the output projection, and a the attention
    of token i to token j:

    Columns:
        ``output``: mean over tokens i of the norm of the sum over j of a f.
        ``weighted``: mean over tokens i of the sum over j of the norm of a f, as in the paper; at least ``output``, as
            vectors may cancel.
        ``value``: mean over tokens j of the norm of f.
        ``rank``: effective number of directions of a text's outputs: (Σ s²)² / Σ s⁴ over the singular values s of the
            matrix of all tokens' outputs (participation ratio); 1 if the head adds the same vector to every token, at
            most the width of a head. A head that broadcasts one token has a low rank (Fesser et al. 2026, abstract).
    """

    name = "value_norm"
    title = "Norms of heads' outputs"
    shown = Shown(
        about="The norm of a head's contribution to a token, after the output projection (Kobayashi et al. 2020): a "
        "head can attend strongly to a token whose value is nearly zero. A large contribution need not matter "
        "for the task, and layers differ in scale. The rank is the effective number of directions of a text's "
        "outputs: 1 if all tokens get the same vector, as from a broadcasting token (Fesser et al. 2026).",
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
        # The norm of a f is a times the norm of f, so no product for every pair is needed.
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
