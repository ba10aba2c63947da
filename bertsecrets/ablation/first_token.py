"""Attention of the first token alone, without projecting every token to keys and values."""

import torch
from torch import Tensor, nn


def first_token_output(
    linears: tuple[nn.Linear, nn.Linear, nn.Linear], hidden_RSD: Tensor, real_RS: Tensor, num_heads: int
) -> Tensor:
    """What the heads give the first token, ``[R, 1, H * d]``.

    The score of token s is q W_k h_s, which is (W_k' q) h_s: mapping the one query back costs a fraction of mapping
    all tokens to keys. Likewise the weighted mean of the values is W_v of the weighted mean of the hidden states. The
    same sums in another order; nothing is approximated.

    Args:
        linears: The maps for query, key and value.
        hidden_RSD: The layer's input.
        real_RS: Which tokens are real.
        num_heads: Heads of the layer.
    """
    query, key, value = linears
    query_RHd = query(hidden_RSD[:, 0]).unflatten(-1, (num_heads, -1))
    scaling = float(query_RHd.shape[-1]) ** -0.5
    key_HdD = key.weight.unflatten(0, (num_heads, -1))
    # The bias of the keys adds the same to all scores of a row, which softmax does not see.
    back_RHD = torch.matmul(query_RHd.transpose(0, 1), key_HdD).transpose(0, 1)
    scores_RHS = torch.matmul(back_RHD, hidden_RSD.transpose(1, 2)) * scaling
    scores_RHS = scores_RHS.masked_fill(~real_RS[:, None, :], torch.finfo(scores_RHS.dtype).min)
    attention_RHS = torch.softmax(scores_RHS, dim=-1)
    return (
        _through_values(value, torch.matmul(attention_RHS.to(hidden_RSD.dtype), hidden_RSD), num_heads)
        .flatten(1)
        .unsqueeze(1)
    )


def mean_values(value: nn.Linear, hidden_RSD: Tensor, real_RS: Tensor, num_heads: int) -> Tensor:
    """Each head's values averaged over the real tokens, ``[R, H, d]``: what uniform attention gives."""
    weight_RS1 = real_RS.to(hidden_RSD.dtype).unsqueeze(-1)
    mean_RD = (hidden_RSD * weight_RS1).sum(1) / weight_RS1.sum(1)
    mean_RHd: Tensor = value(mean_RD).unflatten(-1, (num_heads, -1))
    return mean_RHd


def _through_values(value: nn.Linear, mixed_RHD: Tensor, num_heads: int) -> Tensor:
    value_HDd = value.weight.unflatten(0, (num_heads, -1)).transpose(1, 2)
    output_RHd: Tensor = torch.matmul(mixed_RHD.transpose(0, 1), value_HDd).transpose(0, 1)
    if value.bias is not None:
        output_RHd = output_RHd + value.bias.unflatten(0, (num_heads, -1))
    return output_RHd
