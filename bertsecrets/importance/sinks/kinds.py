"""Kinds of sink heads, by diagnosis and by intervention, and how far the two agree."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.importance.sinks.interventions import CUT, FLIPS, LOSS, REDIRECT
from bertsecrets.importance.sinks.norms import ATTENTION, MOVED, RATIO, SHARE
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.roc import Area, area_under_curve
from bertsecrets.statistics.student import mean_differs_from_zero

NOP, BROADCAST, CONTENT = "nop", "broadcast", "content"
KINDS = (NOP, BROADCAST, CONTENT)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Limits:
    """The limits between the kinds.

    Args:
        attention: Least mean attention to a special token of a sink head.
        value_ratio: Value norm at the token, over that of words, below which the diagnosis is *nop*.
        change: Mean change of the answer below which an intervention has no effect to speak of.
    """

    attention: float = 0.5
    value_ratio: float = 0.5
    change: float = 0.01


@dataclass(frozen=True)
class SinkHead:
    """One sink head of a special token with its numbers; the names are those of the columns."""

    layer: int
    head: int
    attention: float
    value_ratio: float
    norm_share: float
    output_change: float
    redirect: float
    redirect_loss: float
    redirect_loss_error: float
    redirect_flips: float
    cut: float
    loss_changes: bool
    """Whether the change of the loss is significant, corrected over the sink heads of both tokens."""
    by_norms: str
    by_intervention: str


@dataclass(frozen=True)
class TokenSinks:
    """The sink heads of a special token.

    Args:
        heads: The heads, by layer.
        cut_area: How well the value ratio predicts which heads change the answers when cut.
        redirect_area: The same for redirecting.
    """

    heads: tuple[SinkHead, ...]
    cut_area: Area
    redirect_area: Area

    def plain(self) -> dict[str, Any]:
        """As plain values for a file; None for undefined numbers."""
        return {
            "heads": [_defined(asdict(head)) for head in self.heads],
            "cut_area": _defined(asdict(self.cut_area)),
            "redirect_area": _defined(asdict(self.redirect_area)),
        }


def by_norms(value_ratio: float, norm_share: float, limits: Limits) -> str:
    """The kind by diagnosis.

    *nop*: the token's values are small. *broadcast*: they are not, and add at least half of the output's norm. *content*:
    other tokens do.
    """
    if value_ratio < limits.value_ratio:
        return NOP
    return BROADCAST if norm_share >= 0.5 else CONTENT


def by_intervention(cut: float, redirect: float, limits: Limits) -> str:
    """The kind by intervention.

    *broadcast*: taking the token's value away moves the answer. *content*: it does not, but letting the attention go to
    other tokens instead does. *nop*: neither does.
    """
    if cut >= limits.change:
        return BROADCAST
    return CONTENT if redirect >= limits.change else NOP


def sinks_of(view: MeasureView, limits: Limits) -> dict[str, TokenSinks]:
    """The sink heads of each special token that was measured."""
    names = [name for name in ("sep", "cls") if view.has(name + ATTENTION)]
    p_values = _loss_tests(view, names)
    return {name: _token_sinks(view, name, limits, p_values.get(name)) for name in names}


def _loss_tests(view: MeasureView, names: list[str]) -> Mapping[str, Array]:
    tested = [name for name in names if view.has(name + LOSS)]
    if not tested:
        return {}
    # Over both tokens together: a reader looks for significant heads in either table.
    adjusted = corrected(np.stack([mean_differs_from_zero(*view.grid(name + LOSS)) for name in tested]))
    return dict(zip(tested, adjusted, strict=True))


def _token_sinks(view: MeasureView, name: str, limits: Limits, p_LH: Array | None) -> TokenSinks:
    heads = []
    attention_LH = view.value(name + ATTENTION)
    if p_LH is not None:
        grids = {suffix: view.value(name + suffix) for suffix in (RATIO, SHARE, MOVED, REDIRECT, LOSS, FLIPS, CUT)}
        error_LH = view.stderr(name + LOSS)
        for layer, head in np.argwhere(is_sink(attention_LH, limits) & np.isfinite(grids[REDIRECT])):
            head_index = (int(layer), int(head))
            number = {suffix: float(grid_LH[head_index]) for suffix, grid_LH in grids.items()}
            heads.append(
                SinkHead(
                    *head_index,
                    float(attention_LH[head_index]),
                    number[RATIO],
                    number[SHARE],
                    number[MOVED],
                    number[REDIRECT],
                    number[LOSS],
                    float(error_LH[head_index]),
                    number[FLIPS],
                    number[CUT],
                    bool(p_LH[head_index] <= LEVEL),
                    by_norms(number[RATIO], number[SHARE], limits),
                    by_intervention(number[CUT], number[REDIRECT], limits),
                )
            )
    ratio_N = [head.value_ratio for head in heads]
    return TokenSinks(
        tuple(heads),
        area_under_curve(ratio_N, [head.cut >= limits.change for head in heads]),
        area_under_curve(ratio_N, [head.redirect >= limits.change for head in heads]),
    )


def is_sink(attention_LH: Array, limits: Limits) -> NDArray[np.bool_]:
    """Which heads are sinks by their mean attention to a token; an undefined mean is none."""
    return np.nan_to_num(attention_LH, nan=-math.inf) >= limits.attention


def _defined(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}
