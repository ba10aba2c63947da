"""Results of importance scores besides their grids."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Completeness:
    """The total that integrated gradients should add up to.

    Args:
        loss_disabled, loss: Mean loss with all heads disabled, and of the intact model.
        total: Sum of all heads' shares: the difference of the two, up to the integration error.
    """

    loss_disabled: float
    loss: float
    total: float


@dataclass(frozen=True)
class Propagation:
    """How relevance was propagated.

    Args:
        consider_attention: Whether relevance also passed through attention weights.
    """

    consider_attention: bool
