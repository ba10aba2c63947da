"""MobileBERT, whose layers work in a narrow part of the hidden state and have several feed-forward parts."""

from typing import Any

from torch import Tensor, nn

from bertsecrets.errors import UserError
from bertsecrets.models.families.base import FeedForward
from bertsecrets.models.families.bert import Bert


class MobileBert(Bert):
    """BERT's names, between linear maps into and out of a bottleneck."""

    model_types = ("mobilebert",)
    scaled_products = False

    def after_heads(self, layer: Any, output_BSD: Tensor, hidden_BSD: Tensor) -> Tensor:
        # The attention's residual sum is in the bottleneck; only the layer's output is wide again.
        *_, narrow_BSD = layer.bottleneck(hidden_BSD)
        attended_BSD = layer.attention.output(output_BSD, narrow_BSD)
        for part in layer.ffn:
            attended_BSD = part(attended_BSD)
        result_BSD: Tensor = layer.output(layer.intermediate(attended_BSD), attended_BSD, hidden_BSD)
        return result_BSD

    def feed_forward(self, layer: nn.Module) -> FeedForward:
        raise UserError(
            "A MobileBERT layer has several feed-forward parts, which are not supported; disable or remove only heads."
        )
