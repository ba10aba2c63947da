"""What scores of heads find beside their grids."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Completeness:
    """What integrated gradients should add up to.

    Args:
        loss_disabled, loss: Mean loss with all heads disabled, and of the whole model.
        total: Sum of all heads' shares, their difference but for the error of the integration.
    """

    loss_disabled: float
    loss: float
    total: float


@dataclass(frozen=True)
class Propagation:
    """How relevance was handed down.

    Args:
        rule: ``z`` or ``alpha_beta``.
        consider_attention: Whether attention weights took part.
    """

    rule: str
    consider_attention: bool
