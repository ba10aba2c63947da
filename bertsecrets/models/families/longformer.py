"""Longformer, which is not supported: its heads attend within windows."""

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import Family


class Longformer(Family):
    """Each token attends to a window around it and to a few global tokens."""

    model_types = ("longformer",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        raise UserError(
            "Longformer attends within windows, so its heads have no map over all tokens; give an encoder with full "
            "attention, such as ModernBERT for texts of up to 8,192 tokens."
        )
