"""The section on disabling heads and layers: the results of a sweep in sentences, tables and figures."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.ablation.figures import (
    cumulative_curve,
    disabling_heatmap,
    effect_trajectory,
    layer_bars,
    redundancy_chart,
    sorted_effects,
    spared_curve,
    volcano,
)
from bertsecrets.ablation.over_examples import OVER_EXAMPLES, over_examples_in_words
from bertsecrets.ablation.redundancy import FEWEST_CONTROLS, REDUNDANT, Group, groups_of
from bertsecrets.ablation.scoring import CLASS_METRICS
from bertsecrets.ablation.screening import SWEEP, screened_in_words
from bertsecrets.ablation.spared import SPARED, Spared, points, spared_in_words
from bertsecrets.ablation.sublayers import SUBLAYERS, sublayers_in_words
from bertsecrets.ablation.verdicts import FAMILY_WISE, VERDICTS, Judging
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.components import ALL_BUT_ONE, CUMULATIVE, GROUP, HEAD, KINDS, RANDOM, Kind, Row
from bertsecrets.results.formatting import MISSING, low_to_high, number, p_value
from bertsecrets.results.run import CHECKPOINT, TRAINING
from bertsecrets.results.verdicts import (
    DISPENSABLE,
    INCONCLUSIVE,
    NEEDED,
    WORDS,
    joint_limits,
    joint_verdicts,
    shown_verdict,
    tally,
)
from bertsecrets.statistics.power import POWER

SAMPLE = "sample"
"""``<SAMPLE>_<mode>`` is the key of a record among a run's checks: ``examples`` of how many (``of``), and the ``budget`` or null."""

MODE = "mode"
"""``<MODE>_<mode>`` is the key of a record among a run's checks: ``words``, what a disabled head's output is."""

SECONDS = "time"
"""``<SECONDS>_<mode>`` is the key of a record among a run's checks: the ``seconds`` that its sweep took; empty if it was resumed."""

POWER_PLAN = "power"
"""``<POWER_PLAN>_<mode>`` is the key of a record among a run's checks: that of :meth:`bertsecrets.ablation.planner.Planned.record`."""

_GROUPS_SHOWN, _MOST_ROWS, _RISES_NAMED = 30, 10, 3


def latest_rows(table: AblationTable) -> list[Row]:
    """The rows of the table's last step."""
    return _latest(table.rows())


def main_rows(table: AblationTable) -> list[Row]:
    """The rows of the table's last step in its first set and mode, of every kind and metric: what a first screen is about."""
    rows = latest_rows(table)
    return _of(rows, **{name: rows[0][name] for name in ("evaluation", "mode")}) if rows else []


def _latest(rows: Sequence[Row]) -> list[Row]:
    # Those of a finished checkpoint take precedence over those taken during training, as in MeasureView.
    rows = [row for row in rows if row["stage"] == CHECKPOINT] or rows
    last = max((row["step"] for row in rows), default=0)
    return [row for row in rows if row["step"] == last]


def rows_of(kind: Kind, table: AblationTable, mode: str | None = None) -> list[Row]:
    """The rows of a kind at its last step, of the first set, metric and mode, or of one mode."""
    rows = _latest([row for row in kind.of(table.rows()) if mode in (None, row["mode"])])
    same = ("stage", "evaluation", "metric", "mode")
    return [row for row in rows if all(row[name] == rows[0][name] for name in same)]


def counted_verdict(code: str) -> str:
    """Name in W&B of the number of variants with a verdict.

    >>> counted_verdict("dispensable")
    'ablation/can_be_spared'
    """
    return f"ablation/{WORDS[code].replace(' ', '_')}"


def ablation_scalars(table: AblationTable) -> dict[str, float]:
    """Summary values for W&B, of the first set and mode and single heads (else the first kind), at the last step.

    ``ablation/n_variants``, how many have each verdict over all metrics (``needed``, ``can_be_spared``,
    ``not_enough_examples_to_tell``, and ``better_without``, which count as spared too), and ``n_loss_rises``, without how many the
    mean loss rises significantly. By the first metric: ``worst_delta``, ``n_significant``, ``n_significant_harm``,
    ``n_significant_gain``, and ``smallest_effect`` (the median over variants). For variants with an undefined score there are not
    enough examples to tell. Empty without a sweep.
    """
    rows = main_rows(table)
    if not rows:
        return {}
    kinds = [row["kind"] for row in rows]
    of_metrics = _of(rows, kind=HEAD.name if HEAD.name in kinds else kinds[0])
    codes = list(joint_verdicts(of_metrics).values())
    count = {**Counter(codes), DISPENSABLE: tally(codes).spared}
    rows_of_kind = _of(of_metrics, metric=rows[0]["metric"])
    certain = [row for row in rows_of_kind if row["significant"]]
    return {
        "ablation/worst_delta": min((row["delta"] for row in _defined(rows_of_kind)), default=math.nan),
        "ablation/n_variants": len(rows_of_kind),
        **{counted_verdict(code): count.get(code, 0) for code in WORDS},
        "ablation/n_loss_rises": sum(map(raises_loss, rows_of_kind)),
        "ablation/n_significant": len(certain),
        "ablation/n_significant_harm": sum(row["delta"] < 0 for row in certain),
        "ablation/n_significant_gain": sum(row["delta"] > 0 for row in certain),
        "ablation/smallest_effect": _reach(rows_of_kind),
    }


def ablation_sections(table: AblationTable, checks: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """A section for each set, metric and mode at the last step; only the first has findings.

    Args:
        table: The run's ablation table.
        checks: Selection checks by ``<metric>_<mode>``, and records of how the sweep was made.
    """
    rows = latest_rows(table)
    parts = list(dict.fromkeys((row["evaluation"], row["metric"], row["mode"]) for row in rows))
    several = len({metric for _, metric, _ in parts}) > 1
    sections = []
    for index, (evaluation, metric, mode) in enumerate(parts):
        part = _of(rows, evaluation=evaluation, metric=metric, mode=mode)
        main = evaluation == rows[0]["evaluation"]
        # A run keeps records of its first set alone.
        records = checks if main else {}
        sample, plan = (records.get(f"{name}_{mode}") for name in (SAMPLE, POWER_PLAN))
        section = _section(table, part, records.get(f"{metric}_{mode}"), sample, plan, several=several)
        if spared := records.get(f"{SPARED}_{metric}_{mode}"):
            section = _with_spared(section, Spared(**spared), part)
        record = records.get(f"{MODE}_{mode}")
        if record and metric == rows[0]["metric"]:
            section = replace(section, paragraphs=[_disabled_in_words(record, part), *section.paragraphs])
        if sublayers := records.get(f"{SUBLAYERS}_{metric}_{mode}"):
            finding = sublayers_in_words(sublayers, metric_label(metric))
            section = replace(section, findings=[*section.findings, finding])
        examples = records.get(f"{OVER_EXAMPLES}_{mode}")
        if examples and metric == rows[0]["metric"]:
            section = replace(section, paragraphs=[*section.paragraphs, over_examples_in_words(examples)])
        screening = records.get(f"{SWEEP}_{mode}")
        if screening and {row["sweep"] for row in part} == {"screened"}:
            section = replace(section, paragraphs=[*section.paragraphs, screened_in_words(screening)])
        if index > 0:
            section = replace(section, findings=(), paragraphs=[*section.findings, *section.paragraphs])
        if not main:
            # The set's name keeps figure names unique if the table holds several sets.
            figures = [replace(block, name=f"{block.name}_{evaluation}") for block in section.figures]
            section = replace(section, title=f"{section.title}, set {evaluation}", figures=figures)
        sections.append(section)
    return sections


def _with_spared(section: Section, spared: Spared, rows: Sequence[Row]) -> Section:
    """The section with the number of heads that can be spared: after its first finding, and as a curve."""
    heads = HEAD.of(rows)
    title = f"Heads that can be spared, by margin{_how(heads[0])}: {metric_label(spared.metric)}"
    figure = partial(spared_curve, spared, title=title, count=[row["count"] for row in heads])
    return replace(
        section,
        findings=[*section.findings[:1], spared_in_words(spared), *section.findings[1:]],
        paragraphs=[*section.paragraphs, *([_RULED_OUT] if spared.excluded is not None else [])],
        figures=[*section.figures, _block(f"ablation_head_{spared.mode}_{spared.metric}_spared", title, figure)],
    )


def _disabled_in_words(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    sentences = []
    if any(row["num_heads"] for row in rows):
        sentences.append(f"The output of a disabled head is {record['words']}.")
    if any(KINDS[row["kind"]].done for row in rows):
        sentences.append(
            "A sublayer that is left out adds nothing to its input. A block is a layer's attention and feed-forward sublayer; without "
            "it the layer passes its input on."
        )
    return " ".join(sentences)


def _defined(rows: Sequence[Row]) -> list[Row]:
    """Rows with a defined score: a correlation with constant predictions is undefined."""
    return [row for row in rows if math.isfinite(row["delta"])]


def _reach(rows: Sequence[Row]) -> float:
    """Median of the smallest detectable effects; NaN if unknown."""
    finite = [row["smallest_effect"] for row in rows if math.isfinite(row["smallest_effect"])]
    return float(np.median(finite)) if finite else math.nan


def _of(rows: Sequence[Row], **equal: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in equal.items())]


def _section(
    table: AblationTable,
    rows: list[Row],
    check: Mapping[str, Any] | None,
    sample: Mapping[str, Any] | None,
    plan: Mapping[str, Any] | None,
    *,
    several: bool,
) -> Section:
    metric, mode = rows[0]["metric"], rows[0]["mode"]
    findings: list[str] = []
    paragraphs: list[str] = []
    tables: list[Table] = []
    blocks: list[FigureBlock] = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        rows_of_kind = _of(rows, kind=kind)
        first, *others = _in_words(rows_of_kind, sample, several=several)
        findings.append(first if findings else f"{first}{more_examples_in_words(rows_of_kind, plan)}")
        if kind == HEAD.name and (rises := rises_in_words(rows_of_kind, joint_verdicts(rows_of_kind), [metric])):
            findings.append(rises)
        if others:
            paragraphs.append(" ".join([_kind_title(kind), *others]))
        tables.append(_worst(rows_of_kind))
        blocks += _figures(table, rows_of_kind)
    if any(row["low"] * row["high"] > 0 and not row["significant"] for row in rows):
        paragraphs.append(_ONE_BY_ONE)
    if any(reaches_zero(row) for row in rows):
        paragraphs.append(ONE_SIDED)
    if check is not None:
        findings.append(_checked(check))
    groups = groups_of(rows)
    if groups:
        # A run that disables groups is about the groups; the single heads only serve to judge them.
        findings.insert(0, _groups_in_words(groups, rows[0]))
        shown = groups[:_GROUPS_SHOWN]
        part = f", the {len(shown)} closest of {len(groups)}" if len(shown) < len(groups) else ""
        title = f"Groups of heads with similar maps{part}, disabled ({mode}): {metric_label(metric)}"
        figure = partial(redundancy_chart, shown, title=title)
        blocks.append(
            FigureBlock(f"ablation_groups_{mode}_{metric}", figure, f"{title}.", "Chart of groups of similar heads.")
        )
        tables.append(_groups_table(groups))
    title = f"What disabling does to {metric_label(metric)} (mode: {mode})"
    return Section(title, findings, paragraphs, tables, blocks)


_ONE_BY_ONE = (
    "The first interval of a table is that of one head or layer by itself: of many that change nothing, some exclude 0 by chance. The "
    "second holds for all of them together, and is the one for a head or layer that was picked because its change is large."
)

_RULED_OUT = (
    "That no single head loses so much is read off the largest of the heads' one-sided limits, which needs no correction; an interval has "
    "two sides and holds for all heads together, so it may reach further. The loss that is found with 80 % power is neither: of heads "
    "that lose so much, four in five are shown to be needed."
)

ONE_SIDED = "The interval of a needed head or layer may just reach 0: it has two sides, and the test of a loss has one."


def reaches_zero(row: Row) -> bool:
    """Whether what is needed has an interval for all together that reaches 0, as the test of a loss is one-sided."""
    return bool(row["verdict"] == NEEDED and joint_limits(row)[1] >= 0)


def _kind_title(kind: str) -> str:
    many = KINDS[kind].plural
    return f"{many[0].upper()}{many[1:]}:"


def _in_words(rows: Sequence[Row], sample: Mapping[str, Any] | None, *, several: bool) -> list[str]:
    kind = KINDS[rows[0]["kind"]]
    defined = _defined(rows)
    counted = f"{len(rows)} {kind.singular if len(rows) == 1 else kind.plural}"
    subject = f"{counted} {kind.done or 'disabled'} in turn{_how(rows[0])}{_sampled(sample)}"
    metric = metric_label(rows[0]["metric"])
    if not defined:
        return [f"Of {subject}, {metric} is undefined for all of them."]
    needed, spared, unknown = tally(map(shown_verdict, rows))
    parts = [
        f"{needed} {_are(needed)} needed ({metric} falls; {_correction_in_words(rows[0], needed)})"
        if needed
        else "none is shown to be needed",
        f"{spared} {WORDS[DISPENSABLE]} ({ruled_out_in_words(rows[0])})"
        if spared
        else "it is not shown that any can be spared",
        *([f"for {unknown} there are {WORDS[INCONCLUSIVE]}"] if unknown else []),
    ]
    # One of several metrics counts other heads than all of them, which titles do.
    by = f"by {metric} " * several
    first = f"Of {subject}, {by}{', '.join(parts[:-1])}, and {parts[-1]}; {_largest_loss(defined, metric)}."
    if len(defined) < len(rows):
        first += f" Undefined scores: {len(rows) - len(defined)}."
    better = sum(row["delta"] > 0 for row in defined)
    gain = sum(row["significant"] and row["delta"] > 0 for row in defined)
    second = (
        f"{better} look{'s' * (better == 1)} like an improvement, of which {gain or 'none'} significant; the best of many is "
        "high by luck alone."
        if better
        else "None looks like an improvement."
    )
    smallest = smallest_loss_in_words(rows)
    return [first, second, f"{smallest[0].upper()}{smallest[1:]}"]


def _how(row: Row) -> str:
    """The mode, and whether the sweep was screened, after a space; empty for parts of layers, which have no mode."""
    if KINDS[row["kind"]].done:
        return ""
    return f" ({row['mode']}{', screened' * (row['sweep'] == 'screened')})"


def _sampled(sample: Mapping[str, Any] | None) -> str:
    """That a sweep took a part of the examples, as a part of a sentence."""
    if not sample:
        return ""
    why = f" (ablation.budget={sample['budget']})" if sample["budget"] else ""
    return f" on {sample['examples']:,} random examples of {sample['of']:,}{why}"


def raises_loss(row: Row) -> bool:
    """Whether the mean loss rises significantly without what a row disables, corrected over all variants of its kind."""
    return row["p_loss_rise"] is not None and bool(row["p_loss_rise"] <= Judging.of(row).alpha)


def rise_in_words(row: Row) -> str:
    """By how much the mean loss changes without what a row disables, with limits for all variants of its kind."""
    names = ("loss_change", "loss_low_simultaneous", "loss_high_simultaneous")
    if not row["loss_baseline"]:
        rise, low, high = (number(row[name], signed=True) for name in names)
        return f"{rise} ({low} to {high})"
    percent = [100 * row[name] / row["loss_baseline"] for name in names]
    # A significant rise must not read as "0 %".
    rise, low, high = (number(value, int(abs(percent[0]) < 10), signed=True) for value in percent)
    return f"{rise} % ({low} to {high})"


def rises_in_words(rows: Sequence[Row], verdicts: Mapping[str, str], metrics: Sequence[str]) -> str:
    """How many heads the mean loss needs, beside the metrics, which lead; empty where it was not judged.

    Args:
        rows: Single heads, by one metric.
        verdicts: The verdict on each by the metrics: name -> code.
        metrics: Names of the metrics.
    """
    if any(row["p_loss_rise"] is None for row in rows):
        return ""
    raising = sorted(filter(raises_loss, rows), key=lambda row: -float(row["loss_change"]))
    by = " and ".join(map(metric_label, metrics))
    needed, spared = tally(verdicts.values()).needed, tally(verdicts[row["variant"]] for row in raising).spared
    first = f"By {by} {needed or 'none'} {_are(needed or 1)} needed, by the mean loss {len(raising) or 'none'}"
    if not raising:
        return f"{first}."
    named = "; ".join(
        f"{HEAD.label_of(row)}{' (spared)' * (tally([verdicts[row['variant']]]).spared > 0)}, {rise_in_words(row)}"
        for row in raising[:_RISES_NAMED]
    )
    most = ", most of all" if len(raising) > _RISES_NAMED else ":"
    also = f" {spared} of the {len(raising)} can be spared by {by}." if spared and len(raising) > 1 else ""
    lead = "leads, as the task asks for it" if len(metrics) == 1 else "lead, as the task asks for them"
    moves = ", as it also moves where no answer changes" * all(metric in CLASS_METRICS for metric in metrics)
    return f"{first} {_are(len(raising))}{most} {named}.{also} {by[0].upper()}{by[1:]} {lead}; the loss is more sensitive{moves}."


def smallest_loss_in_words(rows: Sequence[Row]) -> str:
    """How large a loss the examples suffice to find, as a sentence that begins in lower case."""
    reach = _reach(rows)
    counts = [row["count"] for row in rows]
    few, many = min(counts), max(counts)
    examples = f"with {many:,} examples" if few == many else f"with {few:,} to {many:,} examples"
    if not math.isfinite(reach):
        return f"{examples} it cannot be estimated how large a loss would be found."
    return (
        f"{examples} a loss of about {number(100 * reach, 1)} points or more is found with 80 % power, given the predictions that "
        f"the median {KINDS[rows[0]['kind']].singular} changes."
    )


def more_examples_in_words(rows: Sequence[Row], plan: Mapping[str, Any] | None) -> str:
    """What it would take to tell more of single heads, as a sentence after a space; empty if each has a verdict.

    Args:
        rows: Judged rows of one kind and metric.
        plan: The run's record :data:`POWER_PLAN`; None or empty if nothing was simulated.
    """
    unknown = sum(row["verdict"] == INCONCLUSIVE for row in _defined(rows))
    if not unknown or rows[0]["kind"] != HEAD.name or not plan or plan["metric"] != rows[0]["metric"]:
        return ""
    return f" {settling_in_words(plan)}"


def settling_in_words(plan: Mapping[str, Any]) -> str:
    """How many examples would settle the heads without a verdict, by a record :data:`POWER_PLAN`: a sentence."""
    undecided = plan["undecided"]
    which = f"the {undecided} heads" if undecided > 1 else "the head"
    if plan["examples"] is None:
        return (
            f"To tell more: even {plan['most']:,} examples would settle {plan['share']:.0%} of {which} without a verdict, as losses "
            f"near the margin of {points(plan['margin'])} take very many (simulated from these {plan['count']:,})."
        )
    return (
        f"To tell more: about {rounded(plan['examples']):,} examples, these {plan['count']:,} among them, would settle {POWER:.0%} of {which} "
        f"without a verdict ({range_in_words(plan.get('examples_low'), plan.get('examples_high'))})."
    )


def range_in_words(low: float | None, high: float | None) -> str:
    """Between which numbers of examples simulated sweeps settle the same; None is infinite, or unknown in earlier records."""
    if low is None:
        return "simulated from these"
    upper = "more than was simulated" if high is None else f"{rounded(high):,}"
    return f"{rounded(low):,} to {upper} in eight of ten simulations"


def rounded(examples: float) -> int:
    """A number of examples to two digits, as it is an estimate: rounded up, so that no promise is of the examples at hand."""
    digits = max(0, math.floor(math.log10(examples)) - 1)
    return int(math.ceil(examples / 10**digits - 1e-9) * 10**digits)


def _correction_in_words(row: Row, needed: int) -> str:
    """How sure it is that variants are needed, over all of them."""
    if row["correction"] == FAMILY_WISE:
        return f"in {row['level']:.0%} of sweeps, none falsely"
    if row["correction"] is None:
        return "significantly after correction"
    rate = row["false_discovery_rate"]
    return f"of them, about {rate * needed:.1f} falsely, at a false discovery rate of {rate:.0%}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def ruled_out_in_words(row: Row) -> str:
    """What a head or layer that can be spared cannot cost."""
    margin = row["margin"]
    if margin is None:
        return "no margin was stated when this run was judged"
    return f"a loss of {points(margin)} or more is ruled out"


def _largest_loss(defined: Sequence[Row], metric: str) -> str:
    worst = min(defined, key=lambda row: row["delta"])
    name = KINDS[worst["kind"]].label_of(worst)
    if worst["delta"] >= 0:
        return f"none lowers {metric} on these examples"
    if worst["verdict"] == NEEDED:
        return f"the largest loss is {name}: {points_in_words(worst)}"
    if worst["significant"] and worst["verdict"] == DISPENSABLE:
        return f"the largest loss, {name} at {points_in_words(worst)}, is significant but within the margin"
    return f"the largest loss, {name} at {points_in_words(worst)}, may be chance"


def _checked(check: Mapping[str, Any]) -> str:
    result = "survives" if check["survives"] else "does not survive"
    claimed, kept, low, high = (
        number(100 * check[name], 2, signed=True) for name in ("claimed", "kept", "low", "high")
    )
    tested = f"; on all examples p = {p_value(check['p_value'])}, corrected" if "p_value" in check else ""
    return (
        f"Selection check: the head whose disabling helps most on one half of the examples promises {claimed} points there "
        f"and gives {kept} points on the other half (95 % interval {low} to {high}{tested}): “disabling a head improves the "
        f"model” {result}."
    )


def _worst(rows: Sequence[Row]) -> Table:
    kind = KINDS[rows[0]["kind"]]
    order = sorted(rows, key=lambda row: (math.isnan(row["delta"]), row["delta"]))
    listed = order if len(order) <= _MOST_ROWS else [*order[: _MOST_ROWS - 3], *order[-3:]]
    metric, margin = rows[0]["metric"], rows[0]["margin"]
    flips = "flips" if metric in CLASS_METRICS else "mean change"
    ruled_out = "p (margin)" if margin is None else f"p (loss ≥ {number(100 * margin, 1)})"
    cells = [
        {
            kind.singular: kind.label_of(row),
            metric_label(metric): number(row["score"]),
            "change, points": number(100 * row["delta"], 2, signed=True),
            f"{rows[0]['level']:.0%} interval, by itself": _interval(row["low"], row["high"]),
            f"for all {len(rows)} together": MISSING
            if row["low_simultaneous"] is None
            else _interval(row["low_simultaneous"], row["high_simultaneous"]),
            "p (uncorrected)": p_value(row["p_value"]),
            "p (false discovery)": p_value(row["p_bh"]),
            "p (needed)": p_value(row["p_needed"]),
            flips: f"{row['flips']:.1%}" if metric in CLASS_METRICS else f"{row['flips']:.3f}",
            ruled_out: p_value(math.nan if row["p_margin"] is None else row["p_margin"]),
            "verdict": WORDS[shown_verdict(row)],
        }
        for row in listed
    ]
    title = kind.title if kind.done else f"Disabled {kind.plural}{_how(rows[0])}"
    caption = f"{title}, most harmful first" + (
        f": the first {_MOST_ROWS - 3} and the last 3 of {len(order)}" if len(order) > _MOST_ROWS else ""
    )
    return Table.of(cells, caption)


def _interval(low: float, high: float) -> str:
    return low_to_high(100 * low, 100 * high, 2, signed=True)


def _figures(table: AblationTable, rows: list[Row]) -> list[FigureBlock]:
    first = rows[0]
    kind, mode, metric = KINDS[first["kind"]], first["mode"], first["metric"]
    how = _how(first)
    stem = f"ablation_{kind.name}_{mode}_{metric}"
    subject = f"{kind.plural} {kind.done or 'disabled'}{how}: {metric_label(metric)}"
    title = f"{kind.title}{how}: {metric_label(metric)}"
    drawings: list[tuple[str, str, Callable[..., Figure]]] = []
    if "head" in kind.axes:
        drawings.append((stem, title, partial(disabling_heatmap, rows, smallest_effect=_reach(rows))))
    if kind.axes == ("layer",):
        drawings.append((stem, title, partial(layer_bars, rows)))
    elif kind is CUMULATIVE:
        drawings.append((stem, title, partial(cumulative_curve, rows)))
    elif kind is not RANDOM:
        drawings.append((f"{stem}_sorted", f"Effects in order, {subject}", partial(sorted_effects, rows)))
    if kind is HEAD:
        drawings.append((f"{stem}_volcano", f"Effect and surprise, {subject}", partial(volcano, rows)))
    history = _of(
        table.rows(), kind=kind.name, mode=mode, metric=metric, stage=TRAINING, evaluation=first["evaluation"]
    )
    if kind.axes and kind is not ALL_BUT_ONE and len({row["step"] for row in history}) > 1:
        title = f"Effects during training, {subject}"
        drawings.append((f"{stem}_trajectory", title, partial(effect_trajectory, rows, history)))
    return [_block(name, title, partial(draw, title=title)) for name, title, draw in drawings]


def _block(name: str, title: str, drawing: Callable[[], Figure]) -> FigureBlock:
    return FigureBlock(name, drawing, f"{title}.", f"Chart: {title[0].lower()}{title[1:]}.")


def _groups_in_words(groups: Sequence[Group], row: Row) -> str:
    count = {verdict: sum(group.verdict == verdict for group in groups) for verdict in (*VERDICTS, REDUNDANT)}
    needed = count[NEEDED] + count[REDUNDANT]
    uncontrolled = sum(group.verdict == NEEDED and len(group.controls) < FEWEST_CONTROLS for group in groups)
    sentence = (
        f"Groups of heads with similar maps: {len(groups)}. Needed (together they do significant harm): {needed}, of which "
        f"{count[REDUNDANT]} redundant (more harm than their heads alone add up to, more than random groups of the same "
        "layers do, and shown to be within the margin once any one head is left: any one does for all). Can be spared "
        f"({ruled_out_in_words(row)} even together): {count[DISPENSABLE]}. Not enough examples to tell: {count[INCONCLUSIVE]}."
    )
    if uncontrolled:
        sentence += (
            f" Needed groups with fewer than {FEWEST_CONTROLS} random groups of their layers, which cannot be called "
            f"redundant: {uncontrolled}."
        )
    return sentence


def _groups_table(groups: Sequence[Group]) -> Table:
    cells = []
    for group in groups:
        row, controls = group.row, [control["delta"] for control in group.controls]
        beyond = number(math.nan if row["interaction"] is None else 100 * row["interaction"], 1, signed=True)
        if row["interaction_low"] is not None and not math.isnan(row["interaction_low"]):
            low, high = (number(100 * row[f"interaction_{end}"], 1, signed=True) for end in ("low", "high"))
            beyond = f"{beyond} ({low} to {high})"
        cells.append(
            [
                GROUP.label_of(row),
                " ".join(number(100 * member["delta"], 1, signed=True) for member in group.alone),
                number(100 * row["delta"], 1, signed=True),
                beyond,
                f"{number(100 * float(np.mean(controls)), 1, signed=True)} ({len(controls)})" if controls else MISSING,
                WORDS.get(group.verdict, group.verdict),
            ]
        )
    header = ["heads", "alone, points", "together", "beyond the sum", "random groups of the layers, mean", "verdict"]
    return Table(header, cells, "Groups of heads with similar maps")


def points_in_words(row: Row) -> str:
    """The change of score without what was disabled, with the interval that holds for all variants together."""
    # A loss is not shown as zero points.
    digits = 3 if 0 < abs(row["delta"]) < 0.0005 else 1
    delta, low, high = (number(100 * value, digits, signed=True) for value in (row["delta"], *joint_limits(row)))
    return f"{delta} points ({low} to {high})"


def metric_label(name: str) -> str:
    """A metric's label on pages."""
    return {
        "f1": "F1",
        "macro_f1": "macro-F1",
        "auc": "AUC",
        "matthews": "Matthews correlation",
        "pearson": "Pearson r",
        "spearman": "Spearman rho",
    }.get(name, name)
