"""The parts of a comparison that speak of heads: measures, disabling, and what holds across seeds."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.comparison.conditions import Condition, contrasts
from bertsecrets.comparison.effects import effects
from bertsecrets.doors.wording import described
from bertsecrets.measures.columns import is_comparable
from bertsecrets.results.figures.panels import HeadPanel, LayerPanel, head_panels, layer_panels
from bertsecrets.results.figures.replicates import ScatterPanel, head_scatter
from bertsecrets.results.figures.style import number, sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.statistics.replicates import difference, intraclass_correlation, mean_interval, rank_agreement

Array = NDArray[np.float64]
Rows = list[dict[str, object]]

_MOST_PANELS = 21
_MOST_CONTRASTS = 12
_LEVEL = 0.05
_TOP = 5
_IN_THE_PAPER = {"drift": "figure 5"}
_LEFT_OUT = ("gradient_flow", "ablation")
"""Measures that are read over steps and not at the last one, or that have a section of their own."""


def measure_sections(
    conditions: Sequence[Condition], varying: Sequence[str], figures: dict[str, Figure], lead: list[str], rows: Rows
) -> list[Section]:
    """A section for every measure that any run holds; the findings of its first column go into ``lead``."""
    names: dict[str, list[str]] = {}
    for condition in conditions:
        for run in condition.runs:
            table = run.heads.table
            for measure, column, head in zip(table["measure"], table["column"], table["head"], strict=True):
                columns = names.setdefault(measure.as_py(), [])
                if head.as_py() is not None and column.as_py() not in columns and is_comparable(column.as_py()):
                    columns.append(column.as_py())
    return [
        _measure_section(measure, columns, conditions, varying, figures, lead, rows)
        for measure, columns in names.items()
        if columns and measure not in _LEFT_OUT
    ]


def _measure_section(
    measure: str,
    columns: Sequence[str],
    conditions: Sequence[Condition],
    varying: Sequence[str],
    figures: dict[str, Figure],
    lead: list[str],
    rows: Rows,
) -> Section:
    blocks, tables, words = [], [], []
    for place, column in enumerate(columns):
        found = {
            condition.label(varying): grids
            for condition in conditions
            if (grids := condition.grids(measure, column)) is not None
        }
        for label, (value_RLH, stderr_RLH, _) in found.items():
            rows += _long(label, measure, column, value_RLH, stderr_RLH)
        # Words that no example has, coreferent ones as a rule, make an empty picture.
        if not any(np.isfinite(value_RLH).any() for value_RLH, _, _ in found.values()):
            continue
        panels = [HeadPanel(label, value_RLH.mean(axis=0)) for label, (value_RLH, _, _) in found.items()]
        title, unit = described(measure, column)
        counts = [count for _, _, count in found.values()]
        figure = head_panels(
            panels[:_MOST_PANELS],
            title=title,
            unit=unit,
            note=f"mean over seeds, {sample_size(counts)} for each{_cut(panels)}",
        )
        figures[f"{measure}_{column}"] = figure
        blocks.append(FigureBlock(figure, f"{title}, side by side on one scale.", f"Heatmaps of {title} by condition."))
        if place == 0:
            spoken = f"{title[0].lower()}{title[1:]}"
            agreement = {label: value_RLH for label, (value_RLH, _, _) in found.items() if len(value_RLH) > 1}
            if agreement:
                tables.append(_agreement_table(agreement, f"{title}: what holds across seeds"))
                words.append(_agreement_words(agreement, spoken))
                lead.append(words[-1])
            block, sentences = _differences(measure, column, conditions, varying, figures)
            blocks += block
            words += sentences
            lead += sentences[:1]
    number = f" ({_IN_THE_PAPER[measure]} of Kovaleva et al.)" if measure in _IN_THE_PAPER else ""
    return Section(f"Heads: {measure}{number}", words, tables, blocks)


def _differences(
    measure: str, column: str, conditions: Sequence[Condition], varying: Sequence[str], figures: dict[str, Figure]
) -> tuple[list[FigureBlock], list[str]]:
    found = []
    for first, second, factor in contrasts(conditions, varying):
        a, b = first.grids(measure, column), second.grids(measure, column)
        if a is not None and b is not None:
            found.append((first, second, factor, difference(a[0], b[0], _typical(a[1]), _typical(b[1]))))
    if not found:
        return [], []
    shown = found[:_MOST_CONTRASTS]
    panels = [
        HeadPanel(_contrast_name(first, second, factor, varying), each.delta_LH, each.p_LH <= _LEVEL)
        for first, second, factor, each in shown
    ]
    tested = {each.over_seeds for _, _, _, each in shown}
    how = (
        "tested over seeds"
        if tested == {True}
        else "tested over examples"
        if tested == {False}
        else "tested over seeds where there are several, else over examples"
    )
    part = f"; the first {len(shown)} of {len(found)} differences" if len(shown) < len(found) else ""
    described_as, unit = described(measure, column)
    title = f"Differences: {described_as[0].lower()}{described_as[1:]}"
    figure = head_panels(
        panels,
        title=title,
        unit=f"difference of {unit.split(' (')[0]}",
        note=f"pale: may be chance ({how}, false discovery rate {_LEVEL:.0%}){part}",
        signed=True,
    )
    figures[f"{measure}_{column}_differences"] = figure
    counts = [int((each.p_LH <= _LEVEL).sum()) for _, _, _, each in shown]
    most = int(np.argmax(counts))
    first, second, factor, each = shown[most]
    what = f"{measure} ({column.replace('_', ' ')}; {how})"
    if not any(np.isfinite(each.p_LH).any() for _, _, _, each in shown):
        sentence = f"Differences of {what} could not be tested: with one seed each they need two examples or more."
    else:
        differing = each.delta_LH[each.p_LH <= _LEVEL]
        by = f", those by {differing.mean():+.3f} on average" if differing.size else ""
        heads = f"{counts[most]} of {each.delta_LH.size}"
        contrast = _contrast_name(first, second, factor, varying)
        sentence = (
            f"{contrast}: {what} differs in {heads} heads{by}."
            if len(shown) == 1
            else f"Of {len(shown)} comparisons of {what} the one with most differing heads is {contrast}: {heads}{by}."
        )
    return [FigureBlock(figure, f"{title}; only what is significant is coloured.", f"Heatmaps of {title}.")], [sentence]


def _cut(panels: Sequence[object]) -> str:
    """Says so where a figure leaves conditions out."""
    return f"; the first {_MOST_PANELS} of {len(panels)} conditions" if len(panels) > _MOST_PANELS else ""


def _typical(stderr_RLH: Array) -> Array:
    """Root mean square over replicates: the mean over several is at least as certain as one of them."""
    return np.asarray(np.sqrt((stderr_RLH**2).mean(axis=0)))


def _contrast_name(first: Condition, second: Condition, factor: str, varying: Sequence[str]) -> str:
    shared = [name for name in varying if name != factor]
    common = f"{first.label(shared)}: " if shared else ""
    return f"{common}{first.label([factor])} − {second.label([factor])}"


def _agreement_table(values: dict[str, Array], caption: str) -> Table:
    rows = []
    for label, value_RLH in values.items():
        value_NR = value_RLH.reshape(len(value_RLH), -1).T
        mean, least = rank_agreement(value_NR)
        top = [_lowest(value_N) for value_N in value_NR.T]
        layers = [layer for value_LH in value_RLH if (layer := _lowest_layer(value_LH)) is not None]
        kept = sorted(set.intersection(*top))
        heads = value_RLH.shape[2]
        lowest = f"{layers[0]} in all" if len(set(layers)) == 1 else f"differs: {', '.join(map(str, layers))}"
        ordered = math.isfinite(mean)
        rows.append(
            [
                label,
                str(len(value_RLH)),
                _shown(mean),
                _shown(least),
                _shown(intraclass_correlation(value_NR)),
                lowest if ordered else "–",
                (", ".join(f"{head // heads}-{head % heads}" for head in kept) or "none") if ordered else "–",
            ]
        )
    header = ["condition", "seeds", "rank correlation, mean", "smallest", "ICC", "lowest layer"]
    return Table([*header, f"among the lowest {_TOP} in every seed"], rows, caption)


def _lowest(value_N: Array) -> set[int]:
    """The heads with the lowest numbers; a head without a number is none of them."""
    known = np.flatnonzero(np.isfinite(value_N))
    return set(known[np.argsort(value_N[known], kind="stable")[:_TOP]].tolist())


def _lowest_layer(value_LH: Array) -> int | None:
    """The layer with the lowest mean over the heads that have a number; None if none has."""
    known = [layer for layer, value_H in enumerate(value_LH) if np.isfinite(value_H).any()]
    return min(known, key=lambda layer: float(np.nanmean(value_LH[layer]))) if known else None


def _agreement_words(values: dict[str, Array], title: str) -> str:
    rhos = {label: rank_agreement(v_RLH.reshape(len(v_RLH), -1).T)[0] for label, v_RLH in values.items()}
    known = {label: rho for label, rho in rhos.items() if math.isfinite(rho)}
    if not known:
        return f"For {title} the agreement between seeds is not defined."
    worst = min(known, key=lambda label: known[label])
    best = max(known, key=lambda label: known[label])
    if len(known) == 1:
        return f"Between seeds, the order of heads by {title} has a rank correlation of {_shown(known[worst])}."
    return (
        f"Between seeds, the order of heads by {title} agrees best for {best} (rank correlation {_shown(known[best])}) and "
        f"least for {worst} ({_shown(known[worst])})."
    )


def ablation_section(
    conditions: Sequence[Condition], varying: Sequence[str], figures: dict[str, Figure], lead: list[str], rows: Rows
) -> Section | None:
    """Effects of disabling single heads side by side; None if no run disabled any."""
    panels, cells, agreement = [], [], {}
    counts: list[int] = []
    for condition in conditions:
        found = effects(condition, "head")
        if found is None:
            continue
        delta_RLH, certain_RLH, count, what = found.delta_RLH, found.certain_RLH, found.count, found.what
        label = condition.label(varying)
        share_LH = certain_RLH.mean(axis=0)
        # Coloured where more than half of the seeds find an effect.
        panels.append(HeadPanel(label, 100 * delta_RLH.mean(axis=0), share_LH > 0.5))
        counts.append(count)
        always = np.argwhere(share_LH == 1)
        ever = int((share_LH > 0).sum())
        rows += _long(label, "ablation", what, delta_RLH, np.full_like(delta_RLH, np.nan))
        cells.append(
            [
                label,
                str(len(delta_RLH)),
                what,
                str(ever),
                str(len(always)),
                ", ".join(f"{layer}-{head}" for layer, head in always[:10]) + (" …" if len(always) > 10 else "")
                or "none",
            ]
        )
        if len(delta_RLH) > 1:
            agreement[label] = delta_RLH
    if not panels:
        return None
    title = "Change of score when a head is disabled"
    figure = head_panels(
        panels[:_MOST_PANELS],
        title=title,
        unit="change of score (points)",
        note=f"mean over seeds; pale: significant in at most half of them; {sample_size(counts)} for each{_cut(panels)}",
        signed=True,
    )
    figures["ablation"] = figure
    header = ["condition", "seeds", "metric (mode)", "heads significant in any seed", "in every seed", "which"]
    tables = [Table(header, cells, "Which heads matter, and in how many seeds")]
    words = []
    if agreement:
        tables.append(_agreement_table(agreement, f"{title}: what holds across seeds"))
        words.append(_agreement_words(agreement, title[0].lower() + title[1:]))
        some = sum(int(row[3]) for row in cells if int(row[1]) > 1)
        every = sum(int(row[4]) for row in cells if int(row[1]) > 1)
        words.append(
            f"Of {some} heads that matter in some seed of a condition, {every} matter{'s' * (every == 1)} in every seed."
        )
    else:
        ever = sum(int(row[3]) for row in cells)
        words.append(
            f"In {len(cells)} conditions of one seed each, {ever} heads matter; other seeds may choose others."
        )
    lead.append(words[-1])
    block = FigureBlock(figure, f"{title}, side by side on one scale.", "Heatmaps of disabling effects by condition.")
    return Section("Heads: disabling (figure 8 of Kovaleva et al.)", words, tables, [block])


def layer_section(
    conditions: Sequence[Condition], varying: Sequence[str], figures: dict[str, Figure], lead: list[str]
) -> Section | None:
    """Effects of disabling whole layers side by side; None if no run disabled any."""
    panels, cells, counts = [], [], []
    costs: dict[str, float] = {}
    for condition in conditions:
        found = effects(condition, "layer")
        if found is None:
            continue
        delta_RL, certain_RL = 100 * found.delta_RLH[:, :, 0], found.certain_RLH[:, :, 0]
        label = condition.label(varying)
        worst = _lowest_layer(delta_RL.T)
        if worst is None:
            continue
        panels.append(LayerPanel(label, delta_RL, certain_RL.mean(axis=0) > 0.5))
        counts.append(found.count)
        costs[label] = float(np.nanmean(delta_RL[:, worst]))
        always = [str(layer) for layer in np.flatnonzero(certain_RL.all(axis=0))]
        cells.append(
            [
                label,
                str(len(delta_RL)),
                found.what,
                f"layer {worst}",
                f"{costs[label]:+.1f}",
                ", ".join(always) or "none",
            ]
        )
    if not panels:
        return None
    title = "Change of score when a whole layer's heads are disabled"
    figures["ablation_layers"] = layer_panels(
        panels[:_MOST_PANELS],
        title=title,
        unit="change of score (points)",
        note=f"dots: seeds; bars: their mean, pale where significant in at most half of them; {sample_size(counts)}{_cut(panels)}",
    )
    header = ["condition", "seeds", "metric (mode)", "worst layer", "points", "layers significant in every seed"]
    most = min(costs, key=lambda label: costs[label])
    sentence = (
        f"Disabling a whole layer costs most for {most}: {costs[most]:+.1f} points."
        if costs[most] < 0
        else "No condition loses by the disabling of any whole layer, on average over seeds."
    )
    lead.append(sentence)
    block = FigureBlock(figures["ablation_layers"], f"{title}, by condition.", "Bar charts of layers by condition.")
    return Section("Layers: disabling (figure 9 of Kovaleva et al.)", [sentence], [Table(header, cells)], [block])


def drift_against_ablation(
    conditions: Sequence[Condition], varying: Sequence[str], figures: dict[str, Figure], lead: list[str]
) -> Section | None:
    """Whether the heads that changed are the heads that matter; None where either is not known."""
    from scipy.stats import spearmanr

    panels, sentences = [], []
    for condition in conditions:
        drift, effect = condition.grids("drift", "cosine"), effects(condition, "head")
        if drift is None or effect is None:
            continue
        x, y = (1 - drift[0].mean(axis=0)).ravel(), 100 * effect.delta_RLH.mean(axis=0).ravel()
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() < 3:
            continue
        varied = np.ptp(x[known]) > 0 and np.ptp(y[known]) > 0
        rho = float(spearmanr(x[known], y[known]).statistic) if varied else math.nan
        label = condition.label(varying)
        certain = effect.certain_RLH.mean(axis=0).ravel() > 0.5
        panels.append(ScatterPanel(f"{label} (ρ = {_shown(rho)})", x[known], y[known], certain[known]))
        sentences.append((label, rho))
    if not panels:
        return None
    figures["drift_against_ablation"] = head_scatter(
        panels[:_MOST_PANELS],
        title="Are the heads that changed the heads that matter?",
        x_label="drift (1 − cosine)",
        y_label="change of score when disabled (points)",
        note="one dot a head, mean over seeds; filled: significant in more than half of the seeds; ρ: rank correlation"
        + _cut(panels),
    )
    known_rhos = [(label, rho) for label, rho in sentences if math.isfinite(rho)]
    words = []
    if known_rhos:
        low, high = min(known_rhos, key=lambda each: each[1]), max(known_rhos, key=lambda each: each[1])
        span = f"runs from {_shown(low[1])} ({low[0]}) to {_shown(high[1])} ({high[0]})"
        words.append(
            "The rank correlation of a head's drift and the change of score without it (negative: what changed more "
            f"matters more) {span if len(known_rhos) > 1 else f'is {_shown(low[1])} ({low[0]})'}."
        )
        lead.append(words[0])
    block = FigureBlock(figures["drift_against_ablation"], "Drift against effect of disabling.", "Scatter of heads.")
    return Section("Drift against disabling", words, figures=[block])


def _long(label: str, measure: str, column: str, value_RLH: Array, stderr_RLH: Array) -> Rows:
    rows: Rows = []
    for layer in range(value_RLH.shape[1]):
        for head in range(value_RLH.shape[2]):
            found = mean_interval(value_RLH[:, layer, head])
            rows.append(
                {
                    "condition": label,
                    "measure": measure,
                    "column": column,
                    "layer": layer,
                    "head": head,
                    "mean": found.mean,
                    "low": found.low,
                    "high": found.high,
                    "seeds": found.count,
                    "stderr_over_examples": float(np.sqrt(np.nanmean(stderr_RLH[:, layer, head] ** 2)))
                    if np.isfinite(stderr_RLH[:, layer, head]).any()
                    else math.nan,
                }
            )
    return rows


def _shown(value: float) -> str:
    return number(value, 2) if math.isfinite(value) else "–"
