"""Results of importance scores, and of interventions on sink heads, besides their grids."""

from dataclasses import dataclass

from bertsecrets.results.estimate import Estimate


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


NOP, BROADCAST, CONTENT = "nop", "broadcast", "content"
SINK_KINDS = (NOP, BROADCAST, CONTENT)


@dataclass(frozen=True)
class Limits:
    """The limits between the kinds.

    Args:
        attention: Least mean attention to a special token of a sink head.
        value_ratio: Ratio of the value norm at the token to that of words, below which the diagnosis is *nop*.
        change: Mean change of the prediction below which an intervention counts as having no effect.
    """

    attention: float = 0.5
    value_ratio: float = 0.5
    change: float = 0.01


@dataclass(frozen=True)
class SinkHead:
    """One sink head of a special token, with its numbers from the columns.

    Args:
        token: Name of the token, in :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`.
        layer, head: The head.
        attention, value_ratio, norm_share, output_change: See :class:`~bertsecrets.importance.sink_heads.SinkNorms`.
        redirect, redirect_loss, redirect_flips, cut: See
            :class:`~bertsecrets.importance.sink_heads.SinkEffects`.
        loss_changes: Whether the change of the loss is significant, corrected over the sink heads of all tokens.
        by_norms, by_intervention: Its kinds, from :data:`SINK_KINDS`.
    """

    token: str
    layer: int
    head: int
    attention: float
    value_ratio: float
    norm_share: float
    output_change: float
    redirect: float
    redirect_loss: Estimate
    redirect_flips: float
    cut: float
    loss_changes: bool
    by_norms: str
    by_intervention: str


@dataclass(frozen=True)
class Agreement:
    """How well the value ratio predicts which sink heads of a token change the predictions; one row per measured token.

    Args:
        token: Name of the token.
        intervention: ``cutting`` or ``redirecting``.
        area: Area under the ROC curve; NaN if all heads respond alike.
        changing, unchanged: Numbers of heads that change the predictions, and that do not.
    """

    token: str
    intervention: str
    area: Estimate
    changing: int
    unchanged: int
