"""The experiment on sink heads: its declaration, its section, and the kinds of heads."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.grid import Column, Shown
from bertsecrets.importance.sinks.interventions import effect_columns
from bertsecrets.importance.sinks.kinds import KINDS, Limits, SinkHead, TokenSinks, sinks_of
from bertsecrets.importance.sinks.norms import ATTENTION, norm_columns
from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    QUIET,
    SMALL,
    footnote,
    house_style,
    new_figure,
    sample_size,
)
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import MISSING, head_label, low_to_high, number, with_error
from bertsecrets.results.views import LEVEL, MeasureView

_MARKERS = "os^"
_LOWEST = 1e-4
"""Smaller changes are drawn here, on an axis that has no zero."""


class Sinks(Experiment):
    """Whether the attention of sink heads to [SEP] or [CLS] is a no-op (Clark et al. 2019, section 3.2)."""

    name = "sinks"
    title = "Is attention to special tokens a no-op?"
    shown = Shown(compared=False, reads_task=True)

    def __init__(self, tokens: Sequence[str] = tuple(SPECIAL_TOKENS)) -> None:
        self.columns: tuple[Column, ...] = tuple(
            column for name in tokens for column in (*norm_columns(name), *effect_columns(name))
        )

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The sink heads of each token by diagnosis and intervention, and how far the two agree."""
        if view.step is None or "limits" not in view.extras:
            return None
        limits = Limits(**view.extras["limits"])
        sinks = sinks_of(view, limits)
        note = sample_size([view.count(name + ATTENTION) for name in sinks])
        tables = [_head_table(name, token.heads) for name, token in sinks.items() if token.heads]
        tables += [_kind_table(name, token.heads) for name, token in sinks.items() if token.heads]
        if tables:
            tables.append(_agreement_table(sinks))
        return Section(
            view.title,
            [_finding(name, token, limits, view.value(name + ATTENTION).size) for name, token in sinks.items()],
            [
                f"A sink head gives a token at least {100 * limits.attention:g} % of its attention on average. Diagnosis compares the "
                "norm of the token's value after the output projection with that of words (Kobayashi et al. 2020): nop, "
                f"below {limits.value_ratio:g} times; broadcast, if not, and the token adds at least half of the output's norm; "
                "content, if other tokens do. Intervention turns the attention away from the token: by redirecting it to "
                "the other tokens in proportion, and by cutting it, which takes the token's value away. Broadcast: cutting "
                f"changes the answers by {limits.change:g} or more on average (total variation of the predicted probabilities, or "
                "share of the range of scores); content: only redirecting does; nop: neither does."
            ],
            tables,
            [FigureBlock(view.name, figure, "A dot for each sink head.", "Scatter of sink heads.")]
            if (figure := _figure(sinks, limits, note)) is not None
            else [],
        )

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """The token of each sink head, with its kind by norms and by intervention; a dash for other heads."""
        if view.step is None or "limits" not in view.extras:
            return {}
        sinks = sinks_of(view, Limits(**view.extras["limits"]))
        layers, heads = view.value(next(iter(sinks)) + ATTENTION).shape
        columns = {
            heading: [[MISSING] * heads for _ in range(layers)] for heading in ("sink by norms", "sink by intervention")
        }
        for name, token in sinks.items():
            for head in token.heads:
                for heading, kind in zip(columns, (head.by_norms, head.by_intervention), strict=True):
                    columns[heading][head.layer][head.head] = f"{SPECIAL_TOKENS[name]} {kind}"
        return columns

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """Number of sink heads of each token and kind."""
        if view.step is None or "limits" not in view.extras:
            return {}
        return {
            f"{name}/{kind}": float(sum(head.by_intervention == kind for head in token.heads))
            for name, token in sinks_of(view, Limits(**view.extras["limits"])).items()
            for kind in KINDS
        }


def _finding(name: str, token: TokenSinks, limits: Limits, size: int) -> str:
    label = SPECIAL_TOKENS[name]
    heads = token.heads
    if not heads:
        return f"No head gives {label} {100 * limits.attention:g} % of its attention, so whether that is a no-op cannot be tested."
    harmless = sum(head.redirect < limits.change for head in heads)
    worse = sum(head.loss_changes and head.redirect_loss > 0 for head in heads)
    better = sum(head.loss_changes and head.redirect_loss < 0 for head in heads)
    kinds = Counter(head.by_intervention for head in heads)
    listing = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
    return (
        f"{len(heads)} of {size} heads are sink heads of {label}. Redirecting one head's attention away from it changes the answers by "
        f"less than {limits.change:g} on average in {harmless} of them; the loss rises significantly in {worse} and falls in "
        f"{better}. By intervention: {listing}. {_agreement(token)}"
    )


def _agreement(token: TokenSinks) -> str:
    for what, area in (("cutting", token.cut_area), ("redirecting", token.redirect_area)):
        if math.isfinite(area.value):
            return (
                f"The value norm separates the heads where {what} changes the answers from the others with an area under the "
                f"ROC curve of {number(area.value, 2)} (95 % interval {low_to_high(area.low, area.high, 2)}; 0.5 is "
                "chance)."
            )
    return "All of them respond alike to the interventions, so their agreement with the value norm cannot be measured."


def _head_table(name: str, heads: Sequence[SinkHead]) -> Table:
    rows = [
        {
            "head": head_label(head.layer, head.head),
            "attention": number(head.attention, 2),
            "value norm ÷ words": number(head.value_ratio, 2),
            "share of output": number(head.norm_share, 2),
            "output's change": number(head.output_change, 2),
            "answer, redirected": number(head.redirect, 4),
            "loss, redirected": with_error(head.redirect_loss, head.redirect_loss_error, 4) + "*" * head.loss_changes,
            "other class, %": number(100 * head.redirect_flips, 1),
            "answer, cut": number(head.cut, 4),
            "by norms": head.by_norms,
            "by intervention": head.by_intervention,
        }
        for head in heads
    ]
    caption = (
        f"Sink heads of {SPECIAL_TOKENS[name]}; *: the loss changes significantly (false discovery rate {LEVEL:.0%})"
    )
    return Table.of(rows, caption)


def _kind_table(name: str, heads: Sequence[SinkHead]) -> Table:
    rows = [
        [
            kind,
            *(str(sum(head.by_norms == kind and head.by_intervention == other for head in heads)) for other in KINDS),
            str(sum(head.by_norms == kind for head in heads)),
        ]
        for kind in KINDS
    ]
    header = ["by norms", *(f"{kind} by intervention" for kind in KINDS), "all"]
    return Table(header, rows, f"Kinds of sink heads of {SPECIAL_TOKENS[name]}")


def _agreement_table(sinks: Mapping[str, TokenSinks]) -> Table:
    rows = []
    for name, token in sinks.items():
        for what, area in (("cutting", token.cut_area), ("redirecting", token.redirect_area)):
            rows.append(
                [
                    f"{SPECIAL_TOKENS[name]}, {what}",
                    str(area.positive),
                    str(area.negative),
                    number(area.value, 2) if math.isfinite(area.value) else "cannot be told",
                    low_to_high(area.low, area.high, 2),
                ]
            )
    header = ["intervention", "changes the answers", "does not", "area under the ROC curve", "95 % interval"]
    return Table(header, rows, "Does the value norm at the token predict the effect of an intervention?")


def _figure(sinks: Mapping[str, TokenSinks], limits: Limits, note: str) -> Figure | None:
    """A dot for each sink head: value norm at the token, and change of the answer, on logarithmic axes."""
    panels = {name: token.heads for name, token in sinks.items() if token.heads}
    if not panels:
        return None
    with house_style():
        title = "Sink heads: value norm at the token, and change of the answers without its attention"
        figure = new_figure(PAGE_WIDTH if len(panels) > 1 else 5.0, 3.6, title)
        grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (name, heads) in zip(grid, panels.items(), strict=True):
            _draw_heads(axes, heads)
            axes.axvline(limits.value_ratio, color=QUIET, linestyle="--", linewidth=0.8)
            axes.axhline(limits.change, color=QUIET, linestyle="--", linewidth=0.8)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.margins(0.12)
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axis.set_minor_formatter(NullFormatter())
            axes.set_title(f"sink heads of {SPECIAL_TOKENS[name]}", fontsize=SMALL, pad=20)
            axes.set_xlabel("value norm at the token ÷ that of words")
            axes.legend(frameon=False, ncols=len(KINDS), loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0)
        grid[0].set_ylabel("mean change of the answer")
        footnote(
            figure,
            "dot: attention redirected, bar: cut; colours: kind by intervention; dashed: limits between the kinds; heads as "
            f"layer-head from 0; changes below {_LOWEST:.4f} are drawn there; {note}",
        )
    return figure


def _draw_heads(axes: Axes, heads: Sequence[SinkHead]) -> None:
    for kind, colour, marker in zip(KINDS, ACCENTS, _MARKERS, strict=False):
        members = [head for head in heads if head.by_intervention == kind]
        ratios = [head.value_ratio for head in members]
        redirected, cut = (
            np.maximum([getattr(head, change) for head in members], _LOWEST) for change in ("redirect", "cut")
        )
        axes.vlines(ratios, cut, redirected, color=colour, linewidth=0.6, alpha=0.6)
        axes.plot(ratios, cut, "_", markersize=7, color=colour)
        label = f"{kind} ({len(members)})"
        axes.plot(ratios, redirected, marker, linestyle="none", markersize=5, color=colour, alpha=0.8, label=label)
    for head in heads:
        axes.annotate(
            f"{head.layer}-{head.head}",
            (head.value_ratio, max(head.redirect, _LOWEST)),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=6,
            color=QUIET,
        )
