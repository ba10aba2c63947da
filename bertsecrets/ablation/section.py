"""The section on disabling heads and layers: the results of a sweep in sentences, tables and figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.ablation.similar_heads import NECESSARY, REDUNDANT, UNCERTAIN, UNNECESSARY, VERDICTS, classify
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.figures.ablation_heads import disabling_heatmap, sorted_effects, volcano
from bertsecrets.results.figures.ablation_sets import (
    SimilarGroup,
    cumulative_curve,
    effect_trajectory,
    layer_bars,
    redundancy_chart,
)
from bertsecrets.results.formatting import head_code, head_label, number, p_value
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import CHECKPOINT, TRAINING

Row = dict[str, Any]

_GROUPS_SHOWN = 30

_KINDS = {
    "head": ("head", "heads"),
    "layer": ("whole layer", "whole layers"),
    "group": ("group", "groups"),
    "group_but_one": ("group but one head", "groups but one head"),
    "all_but_one": ("layer but for one head", "layers but for one head"),
    "cumulative": ("set", "sets"),
    "random": ("random group", "random groups"),
}


def latest_rows(table: AblationTable) -> list[Row]:
    """The rows of the table's last step."""
    rows = table.rows()
    # Those of a finished checkpoint take precedence over those taken during training, as in MeasureView.
    rows = [row for row in rows if row["stage"] == CHECKPOINT] or rows
    last = max((row["step"] for row in rows), default=0)
    return [row for row in rows if row["step"] == last]


def single_heads(table: AblationTable) -> list[Row]:
    """The rows of single heads at the last step, of the first set, metric and mode."""
    rows = [row for row in latest_rows(table) if row["kind"] == "head"]
    return [row for row in rows if all(row[name] == rows[0][name] for name in ("evaluation", "metric", "mode"))]


def ablation_scalars(table: AblationTable) -> dict[str, float]:
    """Summary values for W&B, of the first set, metric and mode and single heads (else the first kind), at the last step.

    ``ablation/worst_delta``, ``n_variants``, ``n_significant``, ``n_significant_harm``, ``n_significant_gain``, and
    ``smallest_effect`` (the median over variants). Variants with an undefined score count in ``n_variants`` only. Empty
    without a sweep.
    """
    rows = latest_rows(table)
    if not rows:
        return {}
    kinds = [row["kind"] for row in rows]
    kind = "head" if "head" in kinds else kinds[0]
    chosen = _of(rows, **{name: rows[0][name] for name in ("evaluation", "metric", "mode")}, kind=kind)
    certain = [row for row in chosen if row["significant"]]
    return {
        "ablation/worst_delta": min((row["delta"] for row in _defined(chosen)), default=math.nan),
        "ablation/n_variants": len(chosen),
        "ablation/n_significant": len(certain),
        "ablation/n_significant_harm": sum(row["delta"] < 0 for row in certain),
        "ablation/n_significant_gain": sum(row["delta"] > 0 for row in certain),
        "ablation/smallest_effect": _reach(chosen),
    }


def ablation_sections(table: AblationTable, checks: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """A section for each set, metric and mode at the last step; only the first has findings.

    Args:
        table: The run's ablation table.
        checks: Selection checks by ``<metric>_<mode>``.
    """
    rows = latest_rows(table)
    parts = list(dict.fromkeys((row["evaluation"], row["metric"], row["mode"]) for row in rows))
    sections = []
    for place, (evaluation, metric, mode) in enumerate(parts):
        chosen = _of(rows, evaluation=evaluation, metric=metric, mode=mode)
        main = evaluation == rows[0]["evaluation"]
        section = _section(table, chosen, checks.get(f"{metric}_{mode}") if main else None)
        if place > 0:
            section = replace(section, findings=(), paragraphs=[*section.findings, *section.paragraphs])
        if not main:
            # The set's name keeps figure names unique if the table holds several sets.
            figures = [replace(block, name=f"{block.name}_{evaluation}") for block in section.figures]
            section = replace(section, title=f"{section.title}, set {evaluation}", figures=figures)
        sections.append(section)
    return sections


def _defined(rows: Sequence[Row]) -> list[Row]:
    """Rows with a defined score: a correlation with constant predictions is undefined."""
    return [row for row in rows if math.isfinite(row["delta"])]


def _reach(rows: Sequence[Row]) -> float:
    """Median of the smallest detectable effects; NaN if unknown."""
    known = [row["smallest_effect"] for row in rows if math.isfinite(row["smallest_effect"])]
    return float(np.median(known)) if known else math.nan


def _of(rows: Sequence[Row], **equal: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in equal.items())]


def _section(table: AblationTable, rows: list[Row], check: Mapping[str, Any] | None) -> Section:
    metric, mode = rows[0]["metric"], rows[0]["mode"]
    findings: list[str] = []
    paragraphs: list[str] = []
    tables: list[Table] = []
    blocks: list[FigureBlock] = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        chosen = _of(rows, kind=kind)
        first, *others = _in_words(chosen)
        findings.append(first)
        if others:
            paragraphs.append(" ".join([_kind_title(kind), *others]))
        tables.append(_worst(chosen))
        blocks += _figures(table, chosen)
    if check is not None:
        findings.append(_checked(check))
    groups = similar_groups_of(rows)
    if groups:
        findings.append(_groups_in_words(groups))
        shown = groups[:_GROUPS_SHOWN]
        part = f", the {len(shown)} closest of {len(groups)}" if len(shown) < len(groups) else ""
        title = f"Groups of heads with similar maps{part}, disabled ({mode}): {metric_label(metric)}"
        figure = redundancy_chart(shown, title=title, count=rows[0]["count"])
        blocks.append(
            FigureBlock(f"ablation_groups_{mode}_{metric}", figure, f"{title}.", "Chart of groups of similar heads.")
        )
        tables.append(_groups_table(groups))
    title = f"What disabling does to {metric_label(metric)} (mode: {mode})"
    return Section(title, findings, paragraphs, tables, blocks)


def _kind_title(kind: str) -> str:
    many = _KINDS[kind][1]
    return f"{many[0].upper()}{many[1:]}:"


def _in_words(rows: Sequence[Row]) -> list[str]:
    one, many = _KINDS[rows[0]["kind"]]
    certain = [row for row in rows if row["significant"]]
    harm, gain = ([row for row in certain if np.sign(row["delta"]) == sign] for sign in (-1, 1))
    known = _defined(rows)
    what = f"{len(rows)} {one if len(rows) == 1 else many}"
    metric = metric_label(rows[0]["metric"])
    if not known:
        return [f"Of {what} disabled in turn ({rows[0]['mode']}), {metric} is undefined for all of them."]
    worst = min(known, key=lambda row: row["delta"])
    if not certain:
        first = (
            f"Of {what} disabled in turn ({rows[0]['mode']}), none changes {metric} significantly after "
            f"correction; the largest loss, {_name(worst)} at {_points(worst)}, may be chance."
        )
    else:
        first = (
            f"Of {what} disabled in turn ({rows[0]['mode']}), {len(harm)} lower{'s' * (len(harm) == 1)} {metric} "
            f"significantly after correction and {len(gain)} raise{'s' * (len(gain) == 1)} it; the largest loss is {_name(worst)}: {_points(worst)}."
        )
    if len(known) < len(rows):
        first += f" Undefined scores: {len(rows) - len(known)}."
    better = sum(row["delta"] > 0 for row in rows)
    second = (
        f"{better} look{'s' * (better == 1)} like an improvement, of which {len(gain)} significant; the best of many is "
        "high by luck alone."
        if better
        else "None looks like an improvement."
    )
    reach = 100 * _reach(rows)
    third = f"With {rows[0]['count']} examples only changes of about {reach:.1f} points or more can be detected."
    return [first, second, third]


def _checked(check: Mapping[str, Any]) -> str:
    result = "survives" if check["survives"] else "does not survive"
    return (
        f"Selection check: the head chosen as most harmful to keep on one half of the examples promises "
        f"{100 * check['claimed']:+.2f} points there and gives {100 * check['kept']:+.2f} points on the other half "
        f"(95 % interval {100 * check['low']:+.2f} to {100 * check['high']:+.2f}): “disabling a head improves the "
        f"model” {result}."
    )


def _worst(rows: Sequence[Row], limit: int = 10) -> Table:
    one, many = _KINDS[rows[0]["kind"]]
    order = sorted(rows, key=lambda row: (math.isnan(row["delta"]), row["delta"]))
    chosen = order if len(order) <= limit else [*order[: limit - 3], *order[-3:]]
    cells = [
        [
            _name(row),
            number(row["score"]),
            f"{100 * row['delta']:+.2f}",
            f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}",
            p_value(row["p_value"]),
            p_value(row["p_bh"]),
            p_value(row["p_holm"]),
            f"{row['flips']:.1%}" if row["metric"] in ("accuracy", "f1", "matthews") else f"{row['flips']:.3f}",
            "yes" if row["significant"] else "no",
        ]
        for row in chosen
    ]
    caption = f"Disabled {many} ({rows[0]['mode']}), most harmful first" + (
        f": the first {limit - 3} and the last 3 of {len(order)}" if len(order) > limit else ""
    )
    header = [
        one,
        metric_label(rows[0]["metric"]),
        "change, points",
        f"{rows[0]['level']:.0%} interval",
        "p",
        "p (BH)",
        "p (Holm)",
    ]
    flips = "flips" if rows[0]["metric"] in ("accuracy", "f1", "matthews") else "mean change"
    return Table([*header, flips, "significant"], cells, caption)


def _figures(table: AblationTable, rows: list[Row]) -> list[FigureBlock]:
    first = rows[0]
    kind, mode, metric, count = first["kind"], first["mode"], first["metric"], first["count"]
    stem = f"ablation_{kind}_{mode}_{metric}"
    what = f"{_KINDS[kind][1]} disabled ({mode}): {metric_label(metric)}"
    names = [_codes(row["heads"]) if row["kind"].startswith("group") else row["variant"] for row in rows]
    level = first["level"]
    delta, low, high, certain = (
        np.array([row[name] for row in rows]) for name in ("delta", "low", "high", "significant")
    )
    blocks: list[FigureBlock] = []
    if kind in ("head", "all_but_one"):
        layers, heads = (max(row[name] for row in rows) + 1 for name in ("layer", "head"))
        delta_LH, certain_LH = np.full((layers, heads), np.nan), np.zeros((layers, heads), bool)
        for row in rows:
            delta_LH[row["layer"], row["head"]] = row["delta"]
            certain_LH[row["layer"], row["head"]] = row["significant"]
        title = (
            f"Single {what}"
            if kind == "head"
            else f"All heads of a layer but one disabled ({mode}): {metric_label(metric)}"
        )
        smallest = _reach(rows)
        figure = disabling_heatmap(
            delta_LH,
            certain_LH,
            title=title,
            count=count,
            smallest_effect=smallest,
            rate=first["false_discovery_rate"],
        )
        blocks.append(_block(stem, title, figure))
    if kind == "layer":
        title = f"Whole layers disabled ({mode}): {metric_label(metric)}"
        layers_L = [row["layer"] for row in rows]
        figure = layer_bars(layers_L, delta, low, high, certain, title=title, count=count, level=level)
        blocks.append(_block(stem, title, figure))
    elif kind == "cumulative":
        title = f"Heads disabled one after another ({mode}): {metric_label(metric)}"
        sizes, scores = ([row[name] for row in rows] for name in ("num_heads", "score"))
        baseline = first["baseline"]
        curve = cumulative_curve(
            sizes, scores, baseline + low, baseline + high, baseline=baseline, title=title, count=count, level=level
        )
        blocks.append(_block(stem, title, curve))
    elif kind != "random":
        title = f"Effects in order, {what}"
        figure = sorted_effects(names, delta, low, high, certain, title=title, count=count, level=level)
        blocks.append(_block(f"{stem}_sorted", title, figure))
    if kind == "head":
        title = f"Effect and surprise, {what}"
        p_values = [row["p_value"] for row in rows]
        figure = volcano(names, delta, p_values, certain, title=title, count=count)
        blocks.append(_block(f"{stem}_volcano", title, figure))
    history = _of(table.rows(), kind=kind, mode=mode, metric=metric, stage=TRAINING, evaluation=first["evaluation"])
    steps = sorted({row["step"] for row in history})
    if kind in ("head", "layer") and len(steps) > 1:
        title = f"Effects during training, {what}"
        delta_TV = np.full((len(steps), len(names)), np.nan)
        for row in history:
            if row["variant"] in names:
                delta_TV[steps.index(row["step"]), names.index(row["variant"])] = row["delta"]
        figure = effect_trajectory(steps, delta_TV, names, title=title, count=count)
        blocks.append(_block(f"{stem}_trajectory", title, figure))
    return blocks


def _block(name: str, title: str, figure: Figure) -> FigureBlock:
    return FigureBlock(name, figure, f"{title}.", f"Chart: {title[0].lower()}{title[1:]}.")


def similar_groups_of(rows: Sequence[Row]) -> list[SimilarGroup]:
    """The judged groups of heads with similar maps; empty unless their heads were also disabled alone."""
    alone = {row["heads"]: row for row in rows if row["kind"] == "head"}
    groups = []
    for row in _of(rows, kind="group"):
        heads = row["heads"].split(" ")
        if len(heads) < 2 or not all(head in alone for head in heads):
            continue
        members = [alone[head] for head in heads]
        but_one = [other for other in rows if other["variant"].startswith(f"{row['variant']}-but-")]
        controls = [other["delta"] for other in rows if other["kind"] == "random" and other["num_heads"] == len(heads)]
        harm = [_harms(member) for member in members]
        suspect = [member["p_value"] <= 0.05 and member["delta"] < 0 for member in members]
        groups.append(
            SimilarGroup(
                name=_codes(row["heads"]),
                alone=[member["delta"] for member in members],
                together=row["delta"],
                but_one=[other["delta"] for other in but_one],
                random=controls,
                verdict=classify(harm, suspect, _harms(row)),
            )
        )
    return groups


def _harms(row: Row) -> bool:
    return bool(row["significant"] and row["delta"] < 0)


def _groups_in_words(groups: Sequence[SimilarGroup]) -> str:
    count = {verdict: sum(group.verdict == verdict for group in groups) for verdict in VERDICTS}
    return (
        f"Groups of heads with similar maps: {len(groups)}. Necessary (a single head does significant harm): "
        f"{count[NECESSARY]}. Redundant (significant harm together, and no head alone is suspect): "
        f"{count[REDUNDANT]}. Unnecessary (no significant harm even together): {count[UNNECESSARY]}. Uncertain (harm "
        f"together that may come from one head): {count[UNCERTAIN]}. Harm that is not significant may still exist: "
        "compare the changes."
    )


def _groups_table(groups: Sequence[SimilarGroup]) -> Table:
    cells = [
        [
            group.name,
            " ".join(f"{100 * delta:+.1f}" for delta in group.alone),
            f"{100 * group.together:+.1f}",
            f"{100 * float(np.mean(group.random)):+.1f}" if group.random else "–",
            group.verdict,
        ]
        for group in groups
    ]
    header = ["heads", "alone, points", "together", "random groups, mean", "verdict"]
    return Table(header, cells, "Groups of heads with similar maps")


def _name(row: Row) -> str:
    """Label of what was disabled; a group is labelled by its heads, as layer-head."""
    if row["kind"] == "layer":
        return f"layer {row['layer']}"
    if row["kind"] == "cumulative":
        return f"the first {row['num_heads']}"
    if row["kind"] in ("group", "group_but_one", "random"):
        return _codes(row["heads"])
    head = head_label(row["layer"], row["head"])
    return head if row["kind"] == "head" else f"all but {head}"


def _points(row: Row) -> str:
    return f"{100 * row['delta']:+.1f} points ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"


def metric_label(name: str) -> str:
    """A metric's label on pages."""
    return {"f1": "F1", "matthews": "Matthews correlation", "pearson": "Pearson r", "spearman": "Spearman rho"}.get(
        name, name
    )


def _codes(heads: str) -> str:
    """Heads as the table lists them, ``3-1 7-10``, by their codes."""
    return " ".join(head_code(*map(int, head.split("-"))) for head in heads.split(" "))
