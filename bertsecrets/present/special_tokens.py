"""The purpose of attention to special tokens, on pages: sink heads, and attention blocked in all heads at once."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertsecrets.ablation.rows import Blocked
from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.importance.rows import SINK_KINDS, Agreement, Limits, SinkHead
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, Table, block, name_of, table
from bertsecrets.results.formatting import (
    MISSING,
    level_text,
    low_to_high,
    metric_label,
    number,
    p_value,
    percent,
    percentage,
)
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, OVER_SEEDS, WORDS
from bertsecrets.results.views import LEVEL, MeasureView

_HEAD: dict[str, Callable[[SinkHead], str]] = {
    "head": name_of,
    "attention": lambda head: number(head.attention, 2),
    "value norm ÷ words": lambda head: number(head.value_ratio, 2),
    "share of output": lambda head: number(head.norm_share, 2),
    "output's change": lambda head: number(head.output_change, 2),
    "answer, redirected": lambda head: number(head.redirect, 4),
    "loss, redirected": lambda head: f"{head.redirect_loss:.4}{'*' * head.loss_changes}",
    "changed class, %": lambda head: percent(head.redirect_flips),
    "answer, cut": lambda head: number(head.cut, 4),
    "by norms": lambda head: head.by_norms,
    "by intervention": lambda head: head.by_intervention,
}

_AGREEMENT: dict[str, Callable[[Agreement], str]] = {
    "intervention": lambda row: f"{SPECIAL_TOKENS[row.token]}, {row.intervention}",
    "changes the predictions": lambda row: str(row.changing),
    "does not": lambda row: str(row.unchanged),
    "area under the ROC curve": lambda row: number(row.area.value, 2),
    "95 % interval": lambda row: low_to_high(row.area.low, row.area.high, 2),
}


def sinks(view: MeasureView) -> Section | None:
    """The sink heads of each token by diagnosis and intervention, and their agreement."""
    limits, agreement, heads_of = view.fact(Limits), view.found(Agreement), _heads_of(view)
    if limits is None or view.step is None:
        return None
    found = {token: heads for token, heads in heads_of.items() if heads}
    panels = [
        ScatterPanel(
            f"{SPECIAL_TOKENS[token]}, {how}",
            [head.value_ratio for head in heads],
            (changes := [getattr(head, field) for head in heads]),
            [change >= limits.change for change in changes],
        )
        for token, heads in found.items()
        for how, field in (("redirected", "redirect"), ("cut", "cut"))
    ]
    figure = block(
        view.name,
        "Sink heads: value norm at the token, and change of the predictions without its attention",
        head_scatter,
        "A dot for each sink head.",
        panels=panels,
        x_label="value norm ÷ words",
        y_label="mean change of the prediction",
        note=f"filled: {limits.change:g} or more; "
        + sample_size([view.count(f"{token}_attention") for token in heads_of]),
    )
    marked = f"*: the loss changes significantly (false discovery rate {percentage(LEVEL)})"
    tables = [table(heads, _HEAD, f"Sink heads of {SPECIAL_TOKENS[token]}; {marked}") for token, heads in found.items()]
    for token, heads in found.items():
        both, norms = Counter((h.by_norms, h.by_intervention) for h in heads), Counter(h.by_norms for h in heads)
        rows = [[kind, *(str(both[kind, other]) for other in SINK_KINDS), str(norms[kind])] for kind in SINK_KINDS]
        header = ["by norms", *(f"{kind} by intervention" for kind in SINK_KINDS), "all"]
        tables.append(Table(header, rows, f"Kinds of sink heads of {SPECIAL_TOKENS[token]}"))
    if found:
        question = "Does the value norm at the token predict the effect of an intervention?"
        tables.append(table(agreement, _AGREEMENT, question))
    size = view.value(f"{next(iter(heads_of))}_attention").size
    return Section(
        view.title,
        [
            _sinks_in_words(heads, [row for row in agreement if row.token == token], limits, token, size)
            for token, heads in heads_of.items()
        ],
        [
            f"A sink head gives a token at least {100 * limits.attention:g} % of its attention on average. Diagnosis "
            "by the norm of the token's value after the output projection (Kobayashi et al. 2020): nop if below "
            f"{limits.value_ratio:g} times that of words; otherwise broadcast if the token contributes at least half "
            "of the output's norm, else content. The intervention redirects the attention to the other tokens, or "
            "cuts it, which removes the token's value: broadcast if cutting changes the predictions by "
            f"{limits.change:g} or more on average (total variation of the predicted probabilities, or share of the "
            "range of scores); content if only redirecting does; nop if neither does."
        ],
        tables,
        [figure] if found else [],
    )


def _heads_of(view: MeasureView) -> dict[str, list[SinkHead]]:
    """The sink heads of each measured token."""
    heads = view.found(SinkHead)
    tokens = dict.fromkeys(row.token for row in view.found(Agreement))
    return {token: [head for head in heads if head.token == token] for token in tokens}


def _classes(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
    """The token of each sink head, with its kind by norms and by intervention; a dash for other heads."""
    heads_of = _heads_of(view)
    if not heads_of:
        return {}
    shape = view.value(f"{next(iter(heads_of))}_attention").shape
    norms_LH, intervention_LH = (np.full(shape, MISSING, dtype=object) for _ in range(2))
    for token, heads in heads_of.items():
        for head in heads:
            norms_LH[head.layer, head.head] = f"{SPECIAL_TOKENS[token]} {head.by_norms}"
            intervention_LH[head.layer, head.head] = f"{SPECIAL_TOKENS[token]} {head.by_intervention}"
    return {"sink by norms": norms_LH.tolist(), "sink by intervention": intervention_LH.tolist()}


def _scalars(view: MeasureView) -> Mapping[str, float]:
    """Number of sink heads of each token and kind."""
    return {
        f"{token}/{kind}": float(sum(head.by_intervention == kind for head in heads))
        for token, heads in _heads_of(view).items()
        for kind in SINK_KINDS
    }


SINKS = Presenter(sinks, classes=_classes, scalars=_scalars)


def _sinks_in_words(
    heads: Sequence[SinkHead], agreement: Sequence[Agreement], limits: Limits, token: str, size: int
) -> str:
    label = SPECIAL_TOKENS[token]
    if not heads:
        return (
            f"No head gives {label} {100 * limits.attention:g} % of its attention, so whether this attention is a "
            "no-op cannot be tested."
        )
    harmless = sum(head.redirect < limits.change for head in heads)
    worse, better = (
        sum(head.loss_changes and sign * head.redirect_loss.value > 0 for head in heads) for sign in (1, -1)
    )
    kinds = Counter(head.by_intervention for head in heads)
    area = next((row for row in agreement if math.isfinite(row.area.value)), None)
    predicted = (
        "All of them respond alike to the interventions, so their agreement with the value norm cannot be measured."
        if area is None
        else f"The value norm predicts the heads where {area.intervention} changes the predictions with an area under "
        f"the ROC curve of {area.area:.2}; chance is 0.5."
    )
    return (
        f"{len(heads)} of {size} heads are sink heads of {label}. Redirecting one head's attention away from it "
        f"changes the predictions by less than {limits.change:g} on average in {harmless} of them; the loss rises "
        f"significantly in {worse} and falls in {better}. By intervention: "
        f"{', '.join(f'{kinds[kind]} {kind}' for kind in SINK_KINDS if kinds[kind])}. {predicted}"
    )


_EFFECT = {NEEDED: "the score falls significantly", DISPENSABLE: "a relevant loss is ruled out"}


def blocking(view: MeasureView) -> Section | None:
    """The change of score, with its interval and verdict, for each token and direction."""
    rows = view.found(Blocked)
    if not rows:
        return None
    return Section(
        view.title,
        [
            f"With {_what(row)} blocked in all heads, {metric_label(row.metric)} changes by {row.change:+points} on "
            f"{row.change.n:,} examples: {_EFFECT.get(row.verdict, 'inconclusive')}."
            for row in rows
        ],
        [
            "Attention to a token blocked: no token attends to it, and the other weights are rescaled to sum to one. "
            "Attention from a token blocked: it attends only to itself, so it collects nothing from the text. "
            "Verdicts are defined as for disabled heads, corrected over the rows."
        ],
        [blocking_table(rows)],
    )


BLOCKING = Presenter(blocking)


def blocking_table(rows: Sequence[Blocked], seeds: int = 1) -> Table:
    """The effects, one per row, for one model or over several seeds."""
    first, words = rows[0], OVER_SEEDS if seeds > 1 else WORDS
    columns: dict[str, Callable[[Blocked], str]] = {
        "blocked": _what,
        first.metric: lambda row: number(row.score),
        "change, points": lambda row: percent(row.change.value, signed=True),
        f"{level_text(first.level)} interval": lambda row: low_to_high(
            100 * row.change.low, 100 * row.change.high, 1, signed=True
        ),
        "p of a loss": lambda row: p_value(row.p_loss),
        "changed predictions, %": lambda row: percent(row.flips),
        "verdict": lambda row: words[row.verdict],
    }
    return table(
        rows, columns, f"All heads at once; {metric_label(first.metric)} with nothing blocked: {number(first.baseline)}"
    )


def _what(row: Blocked) -> str:
    return f"attention {row.direction} {SPECIAL_TOKENS[row.token]}"
