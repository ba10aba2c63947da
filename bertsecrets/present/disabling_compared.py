"""The section on disabling of a comparison page: effects of single heads, of whole layers and of their parts, side by side."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.effects import effects
from bertsecrets.ablation.seeds import OverSeeds, judge_conditions
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerPanel, layer_panels
from bertsecrets.present.figures.style import sample_size, seeds_in_words
from bertsecrets.present.grid import (
    MOST_PANELS,
    agreement_in_words,
    agreement_table,
    condition_rows,
    left_out_panels,
    lowest_layer,
)
from bertsecrets.present.report.content import FigureBlock, Section, Table, joined
from bertsecrets.results.components import HEAD, LAYER, PARTS, Kind
from bertsecrets.results.formatting import MISSING, are, head_label, lower_first, number, upper_first
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED, OVER_SEEDS
from bertsecrets.results.views import Comparison

_MOST_ROWS = 20


def compare_effects(comparison: Comparison) -> Section | None:
    """The effects of disabling heads, then of disabling layers and leaving out their parts; None if no run did any."""
    sections = [_heads(comparison), *(_layers(comparison, kind) for kind in (LAYER, *PARTS))]
    return joined([section for section in sections if section is not None])


def _heads(comparison: Comparison) -> Section | None:
    panels: list[HeadPanel] = []
    single: list[int] = []
    counted: dict[str, tuple[int, int] | None] = {}
    repeated: dict[str, NDArray[np.float64]] = {}
    counts: list[int] = []
    replicated: list[int] = []
    rows: list[Mapping[str, object]] = []
    judged = judge_conditions(comparison.replicates, HEAD.name)
    for label, replicates in comparison.replicates.items():
        effect = effects(replicates, HEAD.name, judged.by_label, label)
        if effect is None:
            continue
        delta_RLH = effect.delta_RLH
        # Coloured if more than half of the seeds show an effect.
        panels.append(HeadPanel(label, 100 * delta_RLH.mean(axis=0), effect.certain_RLH.mean(axis=0) > 0.5))
        counts += [effect.fewest, effect.count]
        replicated.append(len(delta_RLH))
        counted[label] = (int(effect.needed_LH.sum()), int(effect.dispensable_LH.sum())) if effect.judged else None
        rows += condition_rows(label, "ablation", effect.what, delta_RLH, np.full_like(delta_RLH, np.nan))
        if len(delta_RLH) > 1:
            repeated[label] = delta_RLH
        else:
            single.append(int(effect.needed_LH.sum()))
    if not panels:
        return None
    title = "Change of score when a head is disabled"
    figure = head_panels(
        panels[:MOST_PANELS],
        title=title,
        unit="change of score (points)",
        note=f"{seeds_in_words(replicated, pale=True)}; {sample_size(counts)} for each{left_out_panels(panels)}",
        effects=True,
    )
    tables: list[Table] = []
    paragraphs: list[str] = []
    findings: Sequence[str] = []
    if repeated:
        tables.append(agreement_table(repeated, f"{title}: agreement between seeds"))
        paragraphs.append(agreement_in_words(repeated, lower_first(title)))
    if single:
        seeds = f"In {len(single)} condition{'s' * (len(single) > 1)} of one seed each"
        needed = sum(single)
        findings = [
            f"{seeds}, {needed} head{' is' if needed == 1 else 's are'} needed; whether other seeds need them cannot be said."
        ]
    if judged.by_label:
        findings = [_over_seeds_in_words(judged.by_label, HEAD.singular), *findings]
        tables = [
            _counts_table(judged.by_label, HEAD.singular),
            _over_seeds_table(judged.by_label, HEAD.singular),
            *tables,
        ]
        paragraphs.append(_OVER_SEEDS)
    block = FigureBlock(
        "ablation", figure, f"{title}, side by side on one scale.", "Heatmaps of disabling effects by condition."
    )
    title = "Heads: disabling (figure 8 of Kovaleva et al.)"
    # Where nothing else can be said, why is the finding.
    findings, notes = (findings, judged.notes) if findings else (list(judged.notes[:1]), judged.notes[1:])
    answer = _answer_in_words(counted, np.size(panels[0].value_LH), replicated)
    return Section(title, findings, [*paragraphs, *notes], tables, [block], rows=rows, summary=answer)


_NAMED = 3
"""Conditions that the answer names one by one."""


def _answer_in_words(counted: Mapping[str, tuple[int, int] | None], total: int, replicated: Sequence[int]) -> str:
    """How many heads each condition needs and can spare, in one sentence.

    Args:
        counted: For each condition, the heads that are needed and that can be spared; None where its seeds cannot be judged together.
        total: Heads of a model.
        replicated: Seeds of each condition.
    """
    judged = {label: counts for label, counts in counted.items() if counts is not None}
    if not judged:
        return "Which heads are needed over seeds cannot be told from these runs."
    low, high = min(replicated), max(replicated)
    seeds = "one seed" if high == 1 else f"{high} seeds" if low == high else f"{low} to {high} seeds"
    seeds += " each" * (len(replicated) > 1)
    if len(counted) == 1:
        needed, spared = next(iter(judged.values()))
        alone = (
            "no head alone is shown to be needed"
            if not needed
            else f"{needed} {are(needed)} needed on {'its' if needed == 1 else 'their'} own"
        )
        can = (
            f"{spared} of {total} heads can each be spared"
            if spared
            else f"it is not shown that any of {total} heads can be spared"
        )
        first = f"{can}; {alone}."
        return f"Over {seeds}, {first}" if high > 1 else upper_first(first)
    if len(judged) <= _NAMED:
        parts = [
            f"for {label} {needed or 'none'} {are(needed or 1)} shown to be needed, {_spared(spared)}"
            for label, (needed, spared) in judged.items()
        ]
        return f"Of {total} heads, one at a time, {'; '.join(parts)} ({seeds})."
    fewest, most = (pick(judged, key=lambda label: judged[label][0]) for pick in (min, max))
    few, many = judged[fewest][0], judged[most][0]
    if few == many:
        return (
            f"In each of {len(judged)} conditions {few or 'none'} of {total} heads {are(few or 1)} shown to be needed, one at a time "
            f"({seeds})."
        )
    return f"Of {total} heads, from {few or 'none'} ({fewest}) to {many} ({most}) are shown to be needed, one at a time ({seeds})."


_OVER_SEEDS = (
    "Over seeds, a head is judged by its mean change of score, corrected over heads: such a verdict is about fine-tuning, that of a "
    "single run about this run only. How much effects vary between seeds is learned from all heads together; two seeds show little. "
    "The intervals hold for all heads of a condition together. In how many of these seeds a head is needed or can be spared is a "
    "statement about these seeds, tested by partial conjunction (Benjamini and Heller 2008), corrected over heads and numbers of seeds."
)


def _over_seeds_in_words(over: Mapping[str, OverSeeds], component: str) -> str:
    """How many heads or layers of all conditions have each verdict over seeds, and in how many of these seeds."""
    verdicts = [verdict for judged in over.values() for verdict in judged.verdict]
    needed, spared, unknown = (verdicts.count(code) for code in (NEEDED, DISPENSABLE, INCONCLUSIVE))
    in_seeds = _in_seeds(over.values())
    conditions = f" of {len(over)} conditions" if len(over) > 1 else ""
    return (
        f"Over seeds and examples, of {len(verdicts)} {component}s{conditions} {needed} {are(needed)} needed, {spared} {OVER_SEEDS[DISPENSABLE]}, "
        f"and for {unknown} there are {OVER_SEEDS[INCONCLUSIVE]}. In all of these seeds {in_seeds[NEEDED][0]} {are(in_seeds[NEEDED][0])} "
        f"needed, in most {in_seeds[NEEDED][1]}, in one at least {in_seeds[NEEDED][2]}; "
        f"{', '.join(map(str, in_seeds[DISPENSABLE][:2]))} and {in_seeds[DISPENSABLE][2]} {OVER_SEEDS[DISPENSABLE]}."
    )


def _in_seeds(over: Iterable[OverSeeds]) -> dict[str, list[int]]:
    """How many variants are needed, and can be spared, in all seeds, in most, and in one at least."""
    sums = {NEEDED: [0, 0, 0], DISPENSABLE: [0, 0, 0]}
    for judged in over:
        seeds = len(judged.single)
        for code, shown in ((NEEDED, judged.needed_in), (DISPENSABLE, judged.spared_in)):
            for column, count in enumerate((seeds, seeds // 2 + 1, 1)):
                sums[code][column] += int((shown >= count).sum())
    return sums


def _spared(count: int) -> str:
    return f"{count} can be spared" if count else "it is not shown that any can be spared"


def _counts_table(over: Mapping[str, OverSeeds], component: str) -> Table:
    """How many heads or layers are needed, and can be spared, over seeds and in these seeds."""
    rows = []
    for label, judged in over.items():
        for code, in_seeds in _in_seeds([judged]).items():
            numbers = [judged.verdict.count(code), *in_seeds]
            rows.append([label, str(len(judged.single)), OVER_SEEDS[code], *map(str, numbers)])
    header = [
        "condition",
        "seeds",
        f"{component}s that are",
        "over seeds and examples",
        "in all seeds",
        "in most",
        "in one at least",
    ]
    return Table(header, rows, f"How many {component}s are needed or can be spared")


def _over_seeds_table(over: Mapping[str, OverSeeds], component: str) -> Table:
    """Every variant that is needed over seeds, or in some of these seeds.

    Args:
        over: The judged variants of each condition.
        component: ``head`` or ``layer``.
    """
    rows = []
    for label, judged in over.items():
        seeds = len(judged.single)
        shown = [v for v in range(len(judged.components)) if judged.needed_in[v] or judged.verdict[v] == NEEDED]
        limits = judged.effects.limits_simultaneous
        for v in sorted(shown, key=lambda v: judged.effects.delta[v])[:_MOST_ROWS]:
            delta, low, high = (
                number(100 * float(numbers[v]), 1, signed=True) for numbers in (judged.effects.delta, *limits)
            )
            layer, head = judged.components[v]
            name = f"layer {layer}" if head is None else head_label(layer, head)
            at_least = f"{judged.needed_in[v]} of {seeds}" if judged.needed_in[v] else MISSING
            rows.append([label, name, at_least, f"{delta} ({low} to {high})", OVER_SEEDS[judged.verdict[v]]])
    header = ["condition", component, "needed in at least", "mean change over seeds, points", "verdict over seeds"]
    caption = f"The {component}s that are needed over seeds or in some of them; the intervals hold for all {component}s together"
    return Table(header, rows, caption)


def _layers(comparison: Comparison, kind: Kind) -> Section | None:
    panels: list[LayerPanel] = []
    cells: list[list[str]] = []
    counts: list[int] = []
    costs: dict[str, float] = {}
    judged = judge_conditions(comparison.replicates, kind.name)
    for label, replicates in comparison.replicates.items():
        effect = effects(replicates, kind.name, judged.by_label, label)
        if effect is None:
            continue
        delta_RL, certain_RL = 100 * effect.delta_RLH[:, :, 0], effect.certain_RLH[:, :, 0]
        worst = lowest_layer(delta_RL.T)
        if worst is None:
            continue
        panels.append(LayerPanel(label, delta_RL, certain_RL.mean(axis=0) > 0.5))
        counts += [effect.fewest, effect.count]
        costs[label] = float(np.nanmean(delta_RL[:, worst]))
        needed = ", ".join(str(layer) for layer in np.flatnonzero(effect.needed_LH[:, 0])) or "none"
        needed = needed if effect.judged else MISSING
        cost = number(costs[label], 1, signed=True)
        scored = effect.metric if kind.done else effect.what
        cells.append([label, str(len(delta_RL)), scored, f"layer {worst}", cost, needed])
    if not panels:
        return None
    component = "layer" if kind is LAYER else kind.singular
    title = f"Change of score without {kind.without}"
    figure = layer_panels(
        panels[:MOST_PANELS],
        title=title,
        note=f"dots: seeds; bars: their mean, pale where significant in at most half of them; {sample_size(counts)}"
        f"{left_out_panels(panels)}",
    )
    header = [
        "condition",
        "seeds",
        f"metric{' (mode)' * (not kind.done)}",
        "worst layer",
        "points",
        "layers needed over seeds",
    ]
    most = min(costs, key=lambda label: costs[label])
    # A loss is not shown as zero points.
    digits = 1 if abs(costs[most]) >= 0.05 else 3
    one = f"{'an' if kind.singular[0] in 'aeiou' else 'a'} {kind.singular} {kind.done or 'disabled'}"
    finding = (
        f"The largest mean loss with {one} is that of {most}, {number(costs[most], digits, signed=True)} "
        "points; conditions are not tested against each other."
        if costs[most] < 0
        else f"No condition loses score with {one}, on average over seeds."
    )
    block = FigureBlock(
        f"ablation_{kind.name}s", figure, f"{title}, by condition.", "Bar charts of layers by condition."
    )
    title = "Layers: disabling (figure 9 of Kovaleva et al.)" if kind is LAYER else kind.title
    findings, tables = [finding], [Table(header, cells)]
    if judged.by_label:
        findings.append(_over_seeds_in_words(judged.by_label, component))
        tables += [_counts_table(judged.by_label, component), _over_seeds_table(judged.by_label, component)]
    return Section(title, findings, list(judged.notes), tables, [block])
