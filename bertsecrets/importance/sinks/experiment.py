"""The experiment on sink heads: its declaration, and the classification of heads into kinds."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.importance.sinks.interventions import CUT, FLIPS, LOSS, REDIRECT, effect_columns
from bertsecrets.importance.sinks.norms import ATTENTION, MOVED, RATIO, SHARE, norm_columns
from bertsecrets.importance.sinks.rows import BROADCAST, CONTENT, NOP, Agreement, Limits, SinkHead
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.views import LEVEL
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.roc import area_under_curve
from bertsecrets.statistics.student import mean_differs_from_zero


class Sinks(Experiment):
    """Whether the attention of sink heads to [SEP] or [CLS] is a no-op (Clark et al. 2019, section 3.2)."""

    name = "sinks"
    title = "Is attention to special tokens a no-op?"
    shown = Shown(compared=False, reads_task=True)
    presenter = "bertsecrets.present.special_tokens:SINKS"

    def __init__(self, tokens: Sequence[str] = tuple(SPECIAL_TOKENS)) -> None:
        self.columns: tuple[Column, ...] = tuple(
            column for name in tokens for column in (*norm_columns(name), *effect_columns(name))
        )


def by_norms(value_ratio: float, norm_share: float, limits: Limits) -> str:
    """The kind by diagnosis.

    *nop*: the token's values are small. *broadcast*: they are not, and contribute at least half of the output's norm.
    *content*: other tokens contribute more.
    """
    if value_ratio < limits.value_ratio:
        return NOP
    return BROADCAST if norm_share >= 0.5 else CONTENT


def by_intervention(cut: float, redirect: float, limits: Limits) -> str:
    """The kind by intervention.

    *broadcast*: removing the token's value changes the prediction. *content*: it does not, but redirecting the
    attention to other tokens does. *nop*: neither does.
    """
    if cut >= limits.change:
        return BROADCAST
    return CONTENT if redirect >= limits.change else NOP


def sink_rows(grid: HeadGrid, tokens: Sequence[str], limits: Limits) -> Iterator[Limits | SinkHead | Agreement]:
    """The limits, the sink heads of each token by layer, and the agreement of their kinds, from the numbers of all
    heads.
    """
    yield limits
    columns = {name: index for index, name in enumerate(grid.columns)}
    loss_C = [columns[token + LOSS] for token in tokens]
    error_LHT = grid.stderr_LHC[..., loss_C].numpy()
    # Corrected over all tokens, because readers look for significant heads in either table.
    p_LHT = corrected(
        mean_differs_from_zero(grid.value_LHC[..., loss_C].numpy(), error_LHT, grid.count_LHC[..., loss_C].numpy())
    )
    for index, token in enumerate(tokens):
        value = {
            suffix: grid.column(token + suffix).numpy()
            for suffix in (ATTENTION, RATIO, SHARE, MOVED, REDIRECT, LOSS, FLIPS, CUT)
        }
        heads = []
        for layer, head in np.argwhere(is_sink(value[ATTENTION], limits) & np.isfinite(value[REDIRECT])).tolist():
            number = {suffix: float(value_LH[layer, head]) for suffix, value_LH in value.items()}
            heads.append(
                SinkHead(
                    token=token,
                    layer=layer,
                    head=head,
                    attention=number[ATTENTION],
                    value_ratio=number[RATIO],
                    norm_share=number[SHARE],
                    output_change=number[MOVED],
                    redirect=number[REDIRECT],
                    redirect_loss=Estimate(number[LOSS], stderr=float(error_LHT[layer, head, index])),
                    redirect_flips=number[FLIPS],
                    cut=number[CUT],
                    loss_changes=bool(p_LHT[layer, head, index] <= LEVEL),
                    by_norms=by_norms(number[RATIO], number[SHARE], limits),
                    by_intervention=by_intervention(number[CUT], number[REDIRECT], limits),
                )
            )
        yield from heads
        ratio_N = [head.value_ratio for head in heads]
        changes = {"cutting": [head.cut for head in heads], "redirecting": [head.redirect for head in heads]}
        for intervention, change_N in changes.items():
            area = area_under_curve(ratio_N, [change >= limits.change for change in change_N])
            estimate = Estimate(area.value, area.low, area.high, n=len(heads))
            yield Agreement(token, intervention, estimate, area.positive, area.negative)


def is_sink(attention_LH: NDArray[np.float64], limits: Limits) -> NDArray[np.bool_]:
    """Which heads are sinks by their mean attention to a token; an undefined mean does not count."""
    return np.nan_to_num(attention_LH, nan=-math.inf) >= limits.attention
