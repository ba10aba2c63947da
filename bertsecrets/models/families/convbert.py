"""ConvBERT, which is refused: its convolutions read padding."""

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import Family


class ConvBert(Family):
    """Heads of attention beside convolutions over the neighbours of each token, whose kernels are made from the heads'
    queries.
    """

    model_types = ("convbert",)

    def layers(self, base: PreTrainedModel) -> Sequence[nn.Module]:
        raise UserError(
            "ConvBERT convolves each token with its neighbours, padding among them, so its answer for a text depends "
            "on the longest text of the batch and no head can be judged by it; give an encoder without convolutions, "
            "such as ELECTRA."
        )
