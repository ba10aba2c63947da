"""Families that are not supported: Longformer attends within windows, and ConvBERT's convolutions read padding."""

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import Family


class ConvBert(Family):
    """Attention heads next to convolutions over neighbouring tokens, with kernels computed from the heads' queries."""

    model_types = ("convbert",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        raise UserError(
            "ConvBERT convolves each token with its neighbours, including padding, so its output for a text depends "
            "on the longest text of the batch and heads cannot be evaluated; give an encoder without convolutions, "
            "such as ELECTRA."
        )


class Longformer(Family):
    """Each token attends to a window around it and to a few global tokens."""

    model_types = ("longformer",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        raise UserError(
            "Longformer attends within windows, so its heads have no map over all tokens; give an encoder with full "
            "attention, such as ModernBERT for texts of up to 8,192 tokens."
        )
