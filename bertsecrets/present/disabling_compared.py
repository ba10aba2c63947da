"""The section on disabling of a comparison page: effects of single heads, of whole layers and of their parts, side by
side.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.ablation.seeds import Effects, JudgedConditions, OverSeeds, effects, judge_conditions
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerPanel, layer_panels
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.style import sample_size, score_change, seeds_in_words
from bertsecrets.present.grid import (
    MOST_PANELS,
    agreement_in_words,
    agreement_table,
    condition_rows,
    left_out_panels,
)
from bertsecrets.present.report.content import Section, Table, block, joined, table
from bertsecrets.results.components import HEAD, KINDS, LAYER, PARTS, Kind, Row
from bertsecrets.results.disabled import named_rows
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import (
    MISSING,
    are,
    counted,
    head_label,
    level_text,
    lower_first,
    metric_label,
    number,
    upper_first,
)
from bertsecrets.results.verdicts import (
    DISPENSABLE,
    INCONCLUSIVE,
    NEEDED,
    OVER_SEEDS,
    WORDS,
    bound_in_words,
    most_lost,
    needed_in_words,
    shown_verdict,
    unknown_in_words,
)
from bertsecrets.results.views import Comparison
from bertsecrets.statistics.replicates import Interval, interval_over_seeds
from bertsecrets.task_heads import unit_of

_MOST_ROWS, _NAMED = 20, 3


def compare_effects(comparison: Comparison) -> Section | None:
    """The effects of disabling heads, then of disabling layers and leaving out their parts; None if no run did any.

    Of runs that were asked to disable one thing each, their effects in order.
    """
    rows_of = {
        label: [named_rows(view.run) for view in replicates.views]
        for label, replicates in comparison.replicates.items()
    }
    if all(rows for each in rows_of.values() for rows in each):
        return _named({label: [rows[0] for rows in each] for label, each in rows_of.items()})
    sections = [_heads(comparison), *(_layers(comparison, kind) for kind in (LAYER, *PARTS))]
    return joined([section for section in sections if section is not None])


def _named(rows_of: Mapping[str, Sequence[Row]]) -> Section:
    """The effects of what each condition disables, the largest loss first.

    Args:
        rows_of: The rows of each condition, one for each of its runs.
    """
    what = {label: KINDS[rows[0]["kind"]].label_of(rows[0]) for label, rows in rows_of.items()}
    names = what if len(set(what.values())) == len(what) else {label: f"{what[label]} ({label})" for label in what}
    effect = {
        label: interval_over_seeds([[row["delta"], row["low"], row["high"]] for row in rows], rows[0]["level"])
        for label, rows in rows_of.items()
    }
    order = sorted(rows_of, key=lambda label: (not isfinite(effect[label].mean), effect[label].mean))
    first = rows_of[order[0]][0]
    columns: dict[str, Callable[[str], str]] = {
        "without": lambda label: names[label],
        "seeds": lambda label: str(len(rows_of[label])),
        "score": lambda label: number(float(np.mean([row["score"] for row in rows_of[label]]))),
        f"change, {unit_of(first['metric'])}": lambda label: f"{_as_estimate(effect[label]):+%}",
        "verdict": lambda label: WORDS[shown_verdict(rows_of[label][0])] if len(rows_of[label]) == 1 else MISSING,
    }
    metric = metric_label(first["metric"])
    title = f"Change of {metric} without what each run disables"
    drawn = [
        IntervalRow(names[label], 100 * effect[label].mean, 100 * effect[label].low, 100 * effect[label].high)
        for label in order[:_MOST_ROWS]
    ]
    ends = [f"without {names[label]}, by {_as_estimate(effect[label]):+points}" for label in (order[0], order[-1])]
    finding = f"{upper_first(metric)} changes most {ends[0]}{f'; least {ends[1]}' * (len(order) > 1)}."
    return Section(
        title,
        [finding],
        [
            "Each run judges the one change that it makes: an interval and a verdict hold for that run by itself. With "
            "many runs some intervals miss by chance; analysis=disable judges all heads together."
        ],
        [table(order, columns, title)],
        [
            block(
                "disabled",
                title,
                interval_rows,
                f"{title}, the largest loss first.",
                rows=drawn,
                unit="points",
                note=f"bars: {level_text(first['level'])} intervals",
            )
        ],
        summary=f"{upper_first(metric)} changes most {ends[0]}.",
    )


def _as_estimate(interval: Interval) -> Estimate:
    return Estimate(interval.mean, interval.low, interval.high)


def _heads(comparison: Comparison) -> Section | None:
    judged = judge_conditions(comparison.replicates, HEAD.name)
    measured = _measured(comparison, HEAD, judged)
    if not measured:
        return None
    replicated = [len(effect.delta_RLH) for effect in measured.values()]
    repeated = {label: effect.delta_RLH for label, effect in measured.items() if len(effect.delta_RLH) > 1}
    single = [int(effect.needed_LH.sum()) for effect in measured.values() if len(effect.delta_RLH) == 1]
    title = "Change of score when a head is disabled"
    caption = f"{title}, side by side on one scale."
    figure = block("ablation", title, heads_figure, caption, measured=measured)
    findings, tables = _over_seeds(judged, HEAD.singular)
    paragraphs: list[str] = []
    if repeated:
        tables.append(agreement_table(repeated, f"{title}: agreement between seeds"))
        paragraphs.append(agreement_in_words(repeated, lower_first(title)))
    if single:
        needed = sum(single)
        findings.append(
            f"In {counted(len(single), 'condition')} of one seed each, {needed} head{'s' * (needed != 1)} "
            f"{are(needed)} needed; whether other seeds need them cannot be said."
        )
    if judged.by_label:
        paragraphs.append(_OVER_SEEDS)
    # Where nothing else can be said, why is the finding.
    notes = list(judged.notes if findings else judged.notes[1:])
    return Section(
        "Heads: disabling (figure 8 of Kovaleva et al.)",
        findings or list(judged.notes[:1]),
        [*paragraphs, *notes],
        tables,
        [figure],
        rows=[
            row
            for label, effect in measured.items()
            for row in condition_rows(
                label, "ablation", effect.what, effect.delta_RLH, np.full_like(effect.delta_RLH, np.nan)
            )
        ],
        summary=_answer_in_words(measured, replicated),
    )


def _measured(comparison: Comparison, kind: Kind, judged: JudgedConditions) -> dict[str, Effects]:
    """The effects of each condition that has some."""
    measured = {
        label: effects(runs, kind.name, judged.by_label, label) for label, runs in comparison.replicates.items()
    }
    return {label: effect for label, effect in measured.items() if effect is not None}


def heads_figure(measured: Mapping[str, Effects], title: str) -> Figure:
    """Mean changes of each condition's score without each head; coloured if more than half of the seeds show one."""
    panels = [
        HeadPanel(label, 100 * effect.delta_RLH.mean(axis=0), effect.certain_RLH.mean(axis=0) > 0.5)
        for label, effect in measured.items()
    ]
    seeds = seeds_in_words([len(effect.delta_RLH) for effect in measured.values()], pale=True)
    note = f"{seeds}; {_examples(measured)} for each{left_out_panels(panels)}"
    metrics = {effect.metric for effect in measured.values()}
    unit = score_change(metrics.pop() if len(metrics) == 1 else "")
    return head_panels(panels[:MOST_PANELS], title=title, unit=unit, note=note, effects=True)


def layers_figure(measured: Mapping[str, Effects], title: str) -> Figure:
    """Changes of each condition's score without each layer, by seed."""
    panels = [
        LayerPanel(label, 100 * effect.delta_RLH[:, :, 0], effect.certain_RLH[:, :, 0].mean(axis=0) > 0.5)
        for label, effect in measured.items()
    ]
    note = (
        f"dots: seeds; bars: their mean, pale where significant in at most half of them; {_examples(measured)}"
        f"{left_out_panels(panels)}"
    )
    return layer_panels(panels[:MOST_PANELS], title=title, note=note)


def _examples(measured: Mapping[str, Effects]) -> str:
    return sample_size([count for effect in measured.values() for count in (effect.fewest, effect.count)])


def _answer_in_words(measured: Mapping[str, Effects], replicated: Sequence[int]) -> str:
    """The heads that each condition needs, or the most that any head can cost there, in one sentence.

    Args:
        measured: The effects of each condition.
        replicated: Seeds of each condition.
    """
    low, high = min(replicated), max(replicated)
    seeds = "one seed" if high == 1 else f"{high} seeds" if low == high else f"{low} to {high} seeds"
    judged = {label: effect for label, effect in measured.items() if effect.judged}
    if not judged:
        label, effect = min(measured.items(), key=lambda item: float(np.nanmin(item[1].delta_RLH.mean(0))))
        of_label = f" for {label}" * (len(measured) > 1)
        return (
            f"Over {seeds}, the head that costs most{of_label} is {_most_harmful(effect)}; the runs keep no "
            "predictions by which heads could be judged over seeds."
        )
    if len(measured) == 1:
        (effect,) = judged.values()
        spared, heads = int(effect.dispensable_LH.sum()), effect.delta_RLH[0].size
        also = f"; {spared} of {heads} can each be spared" if spared else ""
        over = f"Over {seeds}, " if high > 1 else ""
        return f"{upper_first(f'{over}{_bound_in_words(effect)}{also}')}."
    seeds += " each" * (len(replicated) > 1)
    shown = list(judged)
    if len(judged) > _NAMED:
        need = {label: int(effect.needed_LH.sum()) for label, effect in judged.items()}
        # Of conditions that need as many heads, the one whose head costs most.
        cost = {label: float(np.nanmin(effect.delta_RLH.mean(0))) for label, effect in judged.items()}
        shown = [pick(judged, key=lambda label: (need[label], -cost[label])) for pick in (max, min)]
        seeds += f", {len(judged)} conditions"
    parts = [f"{label}: {_bound_in_words(judged[label])}" for label in shown]
    return f"{'; '.join(parts)} ({seeds})."


def _bound_in_words(effect: Effects) -> str:
    """The heads that a condition needs, or the most that any head can cost."""
    needed, metric = int(effect.needed_LH.sum()), metric_label(effect.metric)
    heads, most = counted(effect.delta_RLH[0].size, HEAD.singular), most_lost(effect.limits_LH2[..., 0].ravel())
    if needed:
        return f"{needed_in_words(needed, heads)}, {'most of all ' * (needed > 1)}{_most_harmful(effect)}"
    if most is not None:
        return bound_in_words(f"each of {heads}", f"{most} {unit_of(effect.metric)} of {metric}")
    return f"{needed_in_words(0, heads)}; the largest loss is without {_most_harmful(effect)}"


def _most_harmful(effect: Effects) -> str:
    """The needed head, or else any head, without which the mean score falls most, with the change."""
    delta_LH = effect.delta_RLH.mean(0)
    candidates_LH = effect.needed_LH if effect.needed_LH.any() else np.isfinite(delta_LH)
    layer, head = np.unravel_index(int(np.where(candidates_LH, delta_LH, np.inf).argmin()), delta_LH.shape)
    change = number(100 * float(delta_LH[layer, head]), 1, signed=True)
    return f"{head_label(int(layer), int(head))}, {change} {unit_of(effect.metric)} of {metric_label(effect.metric)}"


_OVER_SEEDS = (
    "Over seeds, a head is judged by its mean change of score, corrected over heads: such a verdict is about "
    "fine-tuning, that of a single run about this run only. How much effects vary between seeds is learned from all "
    "heads together; two seeds show little. The intervals hold for all heads of a condition together. In how many of "
    "these seeds a head is needed or can be spared is a statement about these seeds, tested by partial conjunction "
    "(Benjamini and Heller 2008), corrected over heads and numbers of seeds."
)


def _over_seeds(judged: JudgedConditions, component: str) -> tuple[list[str], list[Table]]:
    """How many heads or layers have each verdict over seeds, in a sentence and a table, and those that are needed;
    empty without any.

    Args:
        judged: The judged variants of each condition.
        component: ``head`` or ``layer``.
    """
    over = judged.by_label
    if not over:
        return [], []
    counts = {(label, code): _counts(each, code) for label, each in over.items() for code in (NEEDED, DISPENSABLE)}
    needed, spared = (
        np.sum([count for (_, each), count in counts.items() if each == code], axis=0) for code in (NEEDED, DISPENSABLE)
    )
    verdicts = [verdict for each in over.values() for verdict in each.verdict]
    conditions = f" of {len(over)} conditions" if len(over) > 1 else ""
    can_be_spared, unknown = OVER_SEEDS[DISPENSABLE], verdicts.count(INCONCLUSIVE)
    finding = (
        f"Over seeds and examples, {needed_in_words(needed[0], f'{len(verdicts):,} {component}s{conditions}')}, "
        f"{spared[0]} {can_be_spared}; {unknown_in_words(unknown)}. In "
        f"all of these seeds {needed[1]} {are(needed[1])} needed, in most {needed[2]}, in one at least {needed[3]}; "
        f"{spared[1]}, {spared[2]} and {spared[3]} {can_be_spared}."
    )
    header = ["condition", "seeds", f"{component}s that are", "over seeds and examples", "in all seeds", "in most"]
    cells = [
        [label, str(len(over[label].single)), OVER_SEEDS[code], *map(str, count)]
        for (label, code), count in counts.items()
    ]
    caption = f"How many {component}s are needed or can be spared"
    return [finding], [Table([*header, "in one at least"], cells, caption), _needed_table(over, component)]


def _counts(over: OverSeeds, code: str) -> list[int]:
    """How many variants have a verdict over seeds and examples, in all seeds, in most, and in one at least."""
    seeds, shown_in = len(over.single), over.needed_in if code == NEEDED else over.spared_in
    return [over.verdict.count(code), *(int((shown_in >= least).sum()) for least in (seeds, seeds // 2 + 1, 1))]


def _needed_table(over: Mapping[str, OverSeeds], component: str) -> Table:
    """Every variant that is needed over seeds, or in some of these seeds."""
    cells = []
    for label, judged in over.items():
        low_V, high_V = judged.effects.limits_simultaneous
        shown = [v for v in range(len(judged.components)) if judged.needed_in[v] or judged.verdict[v] == NEEDED]
        for v in sorted(shown, key=lambda v: judged.effects.delta[v])[:_MOST_ROWS]:
            change = Estimate(float(judged.effects.delta[v]), float(low_V[v]), float(high_V[v]))
            at_least = f"{judged.needed_in[v]} of {len(judged.single)}" if judged.needed_in[v] else MISSING
            name = head_label(*judged.components[v])
            cells.append([label, name, at_least, f"{change:+%}", OVER_SEEDS[judged.verdict[v]]])
    header = ["condition", component, "needed in at least", "mean change over seeds, points", "verdict over seeds"]
    caption = (
        f"The {component}s that are needed over seeds or in some of them; the intervals hold for all "
        f"{component}s together"
    )
    return Table(header, cells, caption)


def _layers(comparison: Comparison, kind: Kind) -> Section | None:
    judged = judge_conditions(comparison.replicates, kind.name)
    measured = _measured(comparison, kind, judged)
    delta_RL = {label: 100 * effect.delta_RLH[:, :, 0] for label, effect in measured.items()}
    measured = {label: effect for label, effect in measured.items() if np.isfinite(delta_RL[label]).any()}
    if not measured:
        return None
    worst = {label: int(np.ma.masked_invalid(delta_RL[label]).mean(0).argmin()) for label in measured}
    title = f"Change of score without {kind.without}"
    name, caption = f"ablation_{kind.name}s", f"{title}, by condition."
    figure = block(name, title, layers_figure, caption, measured=measured)
    costs = {label: float(np.nanmean(delta_RL[label][:, layer])) for label, layer in worst.items()}
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
    columns: dict[str, Callable[[str], str]] = {
        "condition": str,
        "seeds": lambda label: str(len(delta_RL[label])),
        f"metric{' (mode)' * (not kind.done)}": lambda label: (
            measured[label].metric if kind.done else measured[label].what
        ),
        "worst layer": lambda label: f"layer {worst[label]}",
        "points": lambda label: number(costs[label], 1, signed=True),
        "layers needed over seeds": lambda label: (
            ", ".join(map(str, np.flatnonzero(measured[label].needed_LH[:, 0]))) or "none"
            if measured[label].judged
            else MISSING
        ),
    }
    findings, tables = _over_seeds(judged, "layer" if kind is LAYER else kind.singular)
    return Section(
        "Layers: disabling (figure 9 of Kovaleva et al.)" if kind is LAYER else kind.title,
        [finding, *findings],
        judged.notes,
        [table(list(measured), columns), *tables],
        [figure],
    )
