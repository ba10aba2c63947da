"""Diagnosis of sink heads: the norms of special tokens' contributions to a head's output (Kobayashi et al. 2020,
section 3).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bertsecrets.attention.watch import output_weights, projected_norms
from bertsecrets.data.batch import Batch
from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.grid import Column
from bertsecrets.measures.base import Measure, Passed
from bertsecrets.models.encoder import describe

ATTENTION, RATIO, SHARE, MOVED = "_attention", "_value_ratio", "_norm_share", "_output_change"


class SinkNorms(Measure):
    """Contribution of attention to a special token to a head's output.

    With f(x) a token's value (including its bias) after the head's part of the output projection, and a the attention
    of token i to token j:

    Columns, for each token of ``ids``:
        ``<token>_attention``: mean over i of the attention to the token; 0..1.
        ``<token>_value_ratio``: mean norm of f over the occurrences of the token, divided by the mean over all words.
        ``<token>_norm_share``: with s the norm of the sum of a f over the occurrences of the token and r that over all
            other tokens, both averaged over i: s / (s + r); 0..1.
        ``<token>_output_change``: relative change of the head's output if the attention to the token is redirected
            proportionally to the other tokens: mean norm of the difference over mean norm of the output.

    Examples without the token do not count.

    Args:
        ids: Name of each special token, of :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`, and its id.
    """

    name = "sink_norms"
    title = "Norms of sink contributions"

    def __init__(self, num_layers: int, num_heads: int, ids: Mapping[str, int]) -> None:
        self.columns = tuple(column for name in ids for column in norm_columns(name))
        super().__init__(num_layers, num_heads)
        self.ids = dict(ids)

    def take(self, layer: int, attention_BHQK: Tensor, value_BHKd: Tensor, gram_Hdd: Tensor, batch: Batch) -> None:
        """Add one layer of one batch; ``gram_Hdd`` is that layer's :func:`output_grams`."""
        real_BS = batch.attention_mask_BS.bool()
        word_BS = real_BS & ~batch.special_BS
        rows_B1Q = real_BS.to(attention_BHQK.dtype)[:, None]
        values_BHC = []
        size_BHK = projected_norms(value_BHKd, gram_Hdd)
        output_BHQd = attention_BHQK @ value_BHKd
        for token in self.ids.values():
            sink_BK = real_BS & (batch.input_ids_BS == token)
            weight_BHQK = attention_BHQK * sink_BK[:, None, None].to(attention_BHQK.dtype)
            sunk_BHQ = weight_BHQK.sum(-1)
            rest_BHQK = attention_BHQK - weight_BHQK
            added_BHQd, rest_BHQd = weight_BHQK @ value_BHKd, rest_BHQK @ value_BHKd
            # A row that attends only to this token cannot be redirected.
            tiny = torch.finfo(rest_BHQK.dtype).tiny
            turned_BHQd = rest_BHQd / rest_BHQK.sum(-1, keepdim=True).clamp(min=tiny)
            added_BH, rest_BH, moved_BH, whole_BH = (
                (projected_norms(vector_BHQd, gram_Hdd) * rows_B1Q).sum(-1)
                for vector_BHQd in (added_BHQd, rest_BHQd, turned_BHQd - output_BHQd, output_BHQd)
            )
            ratio_BH = _mean_over(size_BHK, sink_BK) / _mean_over(size_BHK, word_BS)
            attention_BH = (sunk_BHQ * rows_B1Q).sum(-1) / rows_B1Q.sum(-1)
            token_BHC = torch.stack((attention_BH, ratio_BH, added_BH / (added_BH + rest_BH), moved_BH / whole_BH), -1)
            values_BHC.append(token_BHC.masked_fill(~sink_BK.any(-1)[:, None, None], torch.nan))
        self.update(Passed(layer, batch, values_BHC=torch.cat(values_BHC, -1)))


def norm_columns(name: str) -> tuple[Column, ...]:
    """The columns of one special token."""
    label = SPECIAL_TOKENS[name]
    return (
        Column(name + ATTENTION, f"attention to {label}", "mean attention", (0.0, 1.0)),
        Column(name + RATIO, f"value norm at {label} ÷ value norm of words", "ratio of norms"),
        Column(name + SHARE, f"{label}'s share of the output's norm", "share of norms", (0.0, 1.0)),
        Column(name + MOVED, f"output's change without attention to {label}", "relative change"),
    )


def output_grams(model: nn.Module) -> list[Tensor]:
    """For each layer the products of the output weights with themselves, ``[H, d, d]``: norms of f from values alone.

    Raises:
        UserError: If the model's family has no adapter.
    """
    grams = []
    for layer in range(describe(model).num_layers):
        weights_HDd = output_weights(model, layer).to(torch.float32)
        grams.append(weights_HDd.transpose(1, 2) @ weights_HDd)
    return grams


def _mean_over(size_BHK: Tensor, keys_BK: Tensor) -> Tensor:
    return size_BHK.masked_fill(~keys_BK[:, None], 0).sum(-1) / keys_BK.sum(-1)[:, None]
