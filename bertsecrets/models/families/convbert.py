"""ConvBERT, which is not supported: its convolutions read padding."""

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
