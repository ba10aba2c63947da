"""Outputs of the heads on other examples, for override mode ``resample``."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bertsecrets.attention.hooks import at_inputs, follow
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder, check_adapter
from bertsecrets.models.families.base import AttentionSite


class DonatedOutputs:
    """Each head's outputs on a batch of donors, one donor per row of the receiving batch.

    A receiver's first and last token get the outputs at the donor's first and last token ([CLS] and a closing [SEP]
    keep their roles). The i-th token between them, from 0, gets the output at the donor's (i mod n)-th of n such
    tokens; a donor without any uses its last token.

    Args:
        encoder: The encoder, in evaluation mode.
        donors: Keyword arguments of the model, on its device.

    Raises:
        UserError: If the family has no adapter.
    """

    def __init__(self, encoder: Encoder, donors: Mapping[str, Tensor]) -> None:
        check_adapter(encoder, "Mode 'resample' needs")
        self.real_BS = donors["attention_mask"].bool()
        self.num_heads = encoder.num_heads
        self._outputs_LBSD: dict[int, Tensor] = {}
        with follow(encoder) as forward_pass, torch.no_grad():

            def keep(site: AttentionSite, output_BSD: Tensor) -> None:
                layer = forward_pass.finish_call(site.module)
                if layer is not None:
                    self._outputs_LBSD[layer] = output_BSD.detach()

            inputs: dict[str, Any] = dict(donors)
            # Donors run once per batch, independent of the number of edits; their outputs of all layers are kept in
            # memory.
            with at_inputs(encoder.distinct_sites, "projection", keep):
                encoder.model(**inputs)

    def at(self, layer: int, real_BS: Tensor) -> Tensor:
        """The outputs of a layer's heads, ``[B, S, H * d]``, for receivers with these real tokens.

        Raises:
            UserError: If there is not one donor for each receiver.
        """
        output_BTD = self._outputs_LBSD[layer]
        check_donors(len(output_BTD), len(real_BS))
        position_BS = donor_positions(real_BS.to(self.real_BS.device), self.real_BS)
        return output_BTD.gather(1, position_BS.unsqueeze(-1).expand(-1, -1, output_BTD.shape[-1]))


def check_donors(donors: int, examples: int) -> None:
    """Refuse a number of donors that is not that of the examples, with a UserError."""
    if donors != examples:
        raise UserError(f"There are {donors} donors for a batch of {examples} examples; give one per example.")


def donor_positions(real_BS: Tensor, donor_real_BT: Tensor) -> Tensor:
    """For each token of a receiver, the position of its donor's token, ``[B, S]`` int64; arbitrary at padding.

    Args:
        real_BS, donor_real_BT: Which tokens are real, bool; at least one per donor.
    """
    # Ranks among real tokens: 0 for [CLS]; padding gets the last rank, which is unused.
    rank_BS = real_BS.long().cumsum(1) - 1
    last_B1 = real_BS.sum(1, keepdim=True) - 1
    donor_last_B1 = donor_real_BT.sum(1, keepdim=True) - 1
    inner_BS = 1 + (rank_BS - 1).clamp(min=0) % (donor_last_B1 - 1).clamp(min=1)
    donor_rank_BS = torch.where(rank_BS >= last_B1, donor_last_B1, torch.minimum(inner_BS, donor_last_B1))
    donor_rank_BS = donor_rank_BS.masked_fill(rank_BS <= 0, 0)
    # With left padding, a token's rank is not its position.
    order_BT = donor_real_BT.long().argsort(dim=1, descending=True, stable=True)
    return order_BT.gather(1, donor_rank_BS)
