"""How to fine-tune: the ``optimizer`` section of the configuration."""

from typing import Annotated, Literal

from pydantic import Field

from bertsecrets.settings import Settings

_Share = Annotated[float, Field(ge=0, le=1, description="a number from 0 to 1")]
_Positive = Annotated[float, Field(gt=0, le=1, description="a number above 0 and up to 1")]
_Factor = Annotated[float, Field(gt=0, le=2, description="a number above 0 and up to 2")]
_Layer = Annotated[int, Field(ge=0, strict=True)]


class OptimizerConfig(Settings):
    """How to fine-tune: the ``optimizer`` section of the configuration.

    Attributes:
        learning_rate: Peak rate of the classification head, and of all layers if ``layer_decay`` is 1.
        weight_decay: AdamW's; biases and norms are exempt.
        warmup_fraction: Share of all steps over which the rate rises linearly from 0; it then falls linearly to 0.
        layer_decay: Factor from the rate of each layer to that of the layer below: below 1, lower layers learn more
            slowly; above 1, faster (an inverted order, as a control).
        freeze: Frozen parts: ``"embeddings"``, layer numbers from 0, or both.
        betas, eps: AdamW's.
    """

    conf = ("train:optimizer",)

    learning_rate: _Positive
    weight_decay: _Share
    warmup_fraction: _Share
    layer_decay: _Factor
    freeze: tuple[Literal["embeddings"] | _Layer, ...] = Field(
        strict=False, description="a list of 'embeddings' and layer numbers from 0"
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), strict=False, description="two numbers from 0 to below 1"
    )
    eps: float = Field(default=1e-8, gt=0, le=1, description="a number above 0 and up to 1")
