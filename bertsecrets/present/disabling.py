"""Disabled heads, layers and their parts on pages: the verdicts of a sweep in sentences, tables and figures."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bertsecrets.ablation.redundancy import FEWEST_CONTROLS, REDUNDANT, Group, groups_of
from bertsecrets.ablation.rows import (
    OverExamples,
    Power,
    Screened,
    Selection,
    Spared,
    SparedAt,
    Sublayers,
    Swept,
    beside_table,
    only,
)
from bertsecrets.ablation.verdicts import FAMILY_WISE, Judging
from bertsecrets.present.disabling_compared import compare_effects
from bertsecrets.present.figures import disabling as figures
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import FigureBlock, Section, Table, block, joined, table
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.components import (
    ALL_BUT_ONE,
    ATTENTION,
    FEED_FORWARD,
    GROUP,
    HEAD,
    KINDS,
    RANDOM,
    Row,
)
from bertsecrets.results.disabled import latest_rows, main_rows, with_values
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import (
    MISSING,
    are,
    counted,
    each_of,
    level_text,
    low_to_high,
    metric_label,
    number,
    p_value,
    percentage,
    points,
    rounded_up,
    upper_first,
)
from bertsecrets.results.run import TRAINING
from bertsecrets.results.verdicts import (
    CAN_BE_SPARED,
    DISPENSABLE,
    INCONCLUSIVE,
    NEEDED,
    WORDS,
    bound_in_words,
    joint_limits,
    joint_verdicts,
    most_lost,
    needed_in_words,
    shown_verdict,
    tally,
    unknown_in_words,
)
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.power import POWER
from bertsecrets.task_heads import of_classes, unit_of

_GROUPS_SHOWN, _MOST_ROWS = 10, 10

_ONE_BY_ONE = (
    "The first interval of a table is pointwise, for one head or layer; of many such intervals, some exclude 0 by "
    "chance. The second is simultaneous: it is also valid for a head picked because its change is large."
)

_SUBLAYERS = (
    "A disabled sublayer adds nothing to its input. A block is a layer's attention and feed-forward sublayer; without "
    "it the input passes through."
)

ONE_SIDED = "The interval of a needed head or layer may just reach 0, because the test of a loss is one-sided."


def ablation_sections(ablation: AblationTable, beside: Sequence[Any]) -> list[Section]:
    """A section for each set, metric and mode at the last step; only the first has findings.

    Args:
        ablation: The run's ablation table.
        beside: Its rows beside the table, of :data:`~bertsecrets.ablation.rows.BESIDE_TABLE`.
    """
    rows = latest_rows(ablation.rows())
    parts = dict.fromkeys((row["evaluation"], row["metric"], row["mode"]) for row in rows)
    metrics = list(dict.fromkeys(metric for _, metric, _ in parts))
    sections: list[Section] = []
    for evaluation, metric, mode in parts:
        part = with_values(rows, evaluation=evaluation, metric=metric, mode=mode)
        main = evaluation == rows[0]["evaluation"]
        # A run keeps what is beside the table of its first set alone.
        section = _section(ablation, part, beside if main else (), metrics)
        if sections:
            section = replace(section, findings=(), summary="", paragraphs=[*section.findings, *section.paragraphs])
        if not main:
            # The set's name keeps figure names unique if the table holds several sets.
            renamed = [replace(figure, name=f"{figure.name}_{evaluation}") for figure in section.figures]
            section = replace(section, title=f"{section.title}, set {evaluation}", figures=renamed)
        sections.append(section)
    return sections


def _section(ablation: AblationTable, rows: list[Row], beside: Sequence[Any], metrics: Sequence[str]) -> Section:
    """The section of one set, metric and mode."""
    metric, mode = rows[0]["metric"], rows[0]["mode"]
    swept = only(beside, Swept, mode=mode)
    spared = only(beside, Spared, metric=metric, mode=mode)
    findings: list[str] = []
    paragraphs: list[str] = []
    tables: list[Table] = []
    blocks: list[FigureBlock] = []
    groups = groups_of(rows)
    if swept is not None and metric == metrics[0]:
        sublayers_too = any(KINDS[row["kind"]].done for row in rows)
        of_heads = f"The output of a disabled head is {swept.words}." if any(row["num_heads"] for row in rows) else ""
        paragraphs.append(" ".join(filter(None, [of_heads, _SUBLAYERS * sublayers_too])))
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = with_values(rows, kind=kind)
        excluded = spared.excluded if spared is not None and kind == HEAD.name else None
        first, *others = _kind_in_words(of_kind, swept, several=len(metrics) > 1, excluded=excluded)
        power = only(beside, Power, mode=mode, metric=metric)
        unsettled = any(row["verdict"] == INCONCLUSIVE for row in _defined(of_kind))
        if power is not None and unsettled and kind == HEAD.name and not findings:
            first += f" {settling_in_words(power)}"
        if kind != GROUP.name or not groups:
            findings.append(first)
        if kind == HEAD.name and (rises := rises_in_words(of_kind)):
            findings.append(" ".join(rises))
        if others:
            paragraphs.append(" ".join([f"{upper_first(KINDS[kind].plural)}:", *others]))
        tables.append(_table(of_kind))
        blocks += _figures(ablation, of_kind)
    if any(row["low"] * row["high"] > 0 and not row["significant"] for row in rows):
        paragraphs.append(_ONE_BY_ONE)
    # The one-sided test allows it.
    if any(row["verdict"] == NEEDED and joint_limits(row)[1] >= 0 for row in rows):
        paragraphs.append(ONE_SIDED)
    if check := only(beside, Selection, metric=metric, mode=mode):
        unit, limits = unit_of(metric), low_to_high(100 * check.kept.low, 100 * check.kept.high, 2, signed=True)
        claimed, kept = (number(100 * gain, 2, signed=True) for gain in (check.claimed, check.kept.value))
        findings.append(
            f"Selection check: disabling the best head of one half of the examples changes the score by {claimed} "
            f"{unit} there and by {kept} {unit} on the other half (95 % interval {limits}; on all examples p = "
            f"{p_value(check.p_value)}, corrected): “disabling a head improves the model” "
            f"{'survives' if check.survives else 'does not survive'}."
        )
    summary = ""
    if groups:
        # A run that disables groups is about the groups; the single heads only serve to judge them.
        summary = _groups_in_words(groups, metric_label(metric))
        findings.insert(0, summary)
        paragraphs.insert(0, _what_groups_mean(groups, rows[0]))
        tables.insert(0, _groups_table(groups))
        drawn = sorted(groups, key=lambda group: np.nan_to_num(group.row["delta"]))[:_GROUPS_SHOWN]
        part = f", the {len(drawn)} of {len(groups)} that cost most" if len(drawn) < len(groups) else ""
        title = f"Groups of heads with similar maps{part}, disabled ({mode}): {metric_label(metric)}"
        blocks.insert(0, block(f"ablation_groups_{mode}_{metric}", title, figures.redundancy_chart, groups=drawn))
    if spared is not None:
        if words := spared_in_words(spared):
            findings.insert(1 + bool(summary), words)
        heads = HEAD.of(rows)
        title = f"Heads that can be spared, by margin{_how(heads[0])}: {metric_label(metric)}"
        curve = curve_of(beside, spared)
        count = [row["count"] for row in heads]
        name = f"ablation_head_{mode}_{metric}_spared"
        blocks.append(block(name, title, figures.spared_curve, spared=spared, curve=curve, count=count))
    if sublayers := only(beside, Sublayers, metric=metric, mode=mode):
        findings.append(sublayers_in_words(sublayers))
    over_examples = only(beside, OverExamples, mode=mode)
    if over_examples is not None and metric == metrics[0]:
        paragraphs.append(over_examples_in_words(over_examples))
    screened = only(beside, Screened, mode=mode)
    if screened is not None and {row["sweep"] for row in rows} == {"screened"}:
        paragraphs.append(screened_in_words(screened))
    title = f"What disabling does to {metric_label(metric)} (mode: {mode})"
    return Section(title, findings, paragraphs, tables, blocks, summary=summary)


def _kind_in_words(
    rows: Sequence[Row], swept: Swept | None, *, several: bool, excluded: float | None = None
) -> list[str]:
    """The needed variants of a kind, or the most that any costs, and how many can be spared; then gains, and the
    smallest detectable loss.
    """
    kind = KINDS[rows[0]["kind"]]
    defined = _defined(rows)
    metric, unit = metric_label(rows[0]["metric"]), unit_of(rows[0]["metric"])
    done = f"{kind.done or 'disabled'}{' in turn' * (len(rows) > 1)}{_how(rows[0])}"
    if swept is not None and swept.examples is not None:
        why = f" (ablation.budget={swept.budget})" if swept.budget else ""
        done += f" on {swept.examples:,} random examples of {swept.whole:,}{why}"
    subject = f"{counted(len(rows), kind.singular, kind.plural)} {done}"
    if not defined:
        which = f"any of {subject}" if len(rows) > 1 else kind.label_of(rows[0])
        return [f"{upper_first(metric)} is undefined without {which}."]
    needed, spared, unknown = tally(map(shown_verdict, rows))
    # One of several metrics counts other heads than all of them, which titles do.
    by = f" by {metric}" * several
    most = lost_at_most(rows, excluded)
    alone = f"{upper_first(kind.label_of(rows[0]))}, {done}," if len(rows) == 1 else ""
    if needed:
        worst = min((row for row in defined if row["verdict"] == NEEDED), key=lambda row: row["delta"])
        rate = rows[0]["false_discovery_rate"]
        # The error rate of all verdicts “needed” together.
        how_sure = f"of them, about {rate * needed:.1f} falsely, at a false discovery rate of {percentage(rate)}"
        if rows[0]["correction"] == FAMILY_WISE:
            how_sure = f"in {level_text(rows[0]['level'])} of sweeps none falsely"
        elif rows[0]["correction"] is None:
            how_sure = "significantly after correction"
        named = "" if alone else f", {'most of all ' * (needed > 1)}{kind.label_of(worst)}"
        first = f"{needed_in_words(needed, subject, alone)}{by} ({metric} falls; {how_sure}){named}"
        first += f": {points_in_words(worst)}"
    elif most is None:
        first = f"{needed_in_words(0, subject)}{by}"
    else:
        first = bound_in_words(alone or f"Each of {subject}", f"{most} {unit} of {metric}")
    worst = min(defined, key=lambda row: row["delta"])
    largest = f"none lowers {metric} on these examples"
    if worst["delta"] < 0:
        within = worst["significant"] and worst["verdict"] == DISPENSABLE
        chance = "is significant but within the margin" if within else "may be chance"
        largest = f"the largest loss, {kind.label_of(worst)} at {points_in_words(worst)}, {chance}"
    parts = [
        first,
        f"{spared:,} {WORDS[DISPENSABLE]} ({ruled_out_in_words(rows[0])})" if spared else "",
        unknown_in_words(unknown) if unknown else "",
        "" if needed else largest,
    ]
    first = f"{'; '.join(filter(None, parts))}."
    if len(defined) < len(rows):
        first += f" Undefined scores: {len(rows) - len(defined)}."
    better = sum(row["delta"] > 0 for row in defined)
    gain = sum(row["significant"] and row["delta"] > 0 for row in defined)
    second = (
        f"{better} raise{'s' * (better == 1)} the score, {gain or 'none'} significantly; the best of many does so by "
        "chance."
        if better
        else "None raises the score."
    )
    return [first, second, upper_first(smallest_loss_in_words(rows))]


def lost_at_most(rows: Iterable[Row], excluded: float | None = None) -> str | None:
    """Upper bound on the loss of every row, in points; None if it is undefined for some.

    Args:
        rows: Variants of one kind by one metric.
        excluded: The bound if known, as :attr:`bertsecrets.ablation.rows.Spared.excluded`; else it follows from the
            simultaneous limits.
    """
    return most_lost((joint_limits(row)[0] for row in rows) if excluded is None else [-excluded])


def _how(row: Row) -> str:
    """The mode, and whether the sweep was screened, after a space; empty for parts of layers, which have no mode."""
    return "" if KINDS[row["kind"]].done else f" ({row['mode']}{', screened' * (row['sweep'] == 'screened')})"


def ruled_out_in_words(row: Row) -> str:
    """What a head or layer that can be spared cannot cost."""
    margin = row["margin"]
    if margin is None:
        return "not judged, as the run has no margin"
    return f"a loss of {points(margin, unit_of(row['metric']))} or more is ruled out"


def points_in_words(row: Row) -> str:
    """The change of score of a variant with its simultaneous interval."""
    return change_in_words(Estimate(row["delta"], *joint_limits(row)), unit_of(row["metric"]))


def change_in_words(change: Estimate, unit: str = "points") -> str:
    """A change of score; a loss is not shown as zero points."""
    return change.in_hundredths(unit, 3 if 0 < abs(change.value) < 0.0005 else 1, signed=True)


def smallest_loss_in_words(rows: Sequence[Row]) -> str:
    """The smallest detectable loss, as a sentence that begins in lower case."""
    reach, unit = _reach(rows), unit_of(rows[0]["metric"])
    few, many = (limit(row["count"] for row in rows) for limit in (min, max))
    examples = f"with {many:,} examples" if few == many else f"with {few:,} to {many:,} examples"
    if not math.isfinite(reach):
        return f"{examples}, the smallest detectable loss cannot be estimated."
    return (
        f"{examples}, losses of about {points(reach, unit)} or more are detected with 80 % power, for the "
        f"number of predictions that the median {KINDS[rows[0]['kind']].singular} changes."
    )


def _reach(rows: Sequence[Row]) -> float:
    """Median of the smallest detectable effects; NaN if unknown."""
    finite = [row["smallest_effect"] for row in rows if math.isfinite(row["smallest_effect"])]
    return float(np.median(finite)) if finite else math.nan


def _defined(rows: Sequence[Row]) -> list[Row]:
    """Rows with a defined score: a correlation with constant predictions is undefined."""
    return [row for row in rows if math.isfinite(row["delta"])]


def raises_loss(row: Row) -> bool:
    """Whether a variant significantly raises the mean loss, corrected over all variants of its kind."""
    return row["p_loss_rise"] is not None and bool(row["p_loss_rise"] <= Judging.of(row).alpha)


def rise_in_words(row: Row) -> str:
    """The change of the mean loss of a variant, with simultaneous limits."""
    change = Estimate(*(row[name] for name in ("loss_change", "loss_low_simultaneous", "loss_high_simultaneous")))
    if not row["loss_baseline"]:
        return f"{change:+}"
    relative = [100 * value / row["loss_baseline"] for value in (change.value, change.low, change.high)]
    # A significant rise must not read as "0 %".
    rise, low, high = (number(value, int(abs(relative[0]) < 10), signed=True) for value in relative)
    return f"{rise} % ({low} to {high})"


def rises_in_words(rows: Sequence[Row]) -> list[str]:
    """How many heads are needed by the mean loss, compared with these rows' metric, and which of the two takes
    precedence; empty if the loss was not tested.
    """
    if any(row["p_loss_rise"] is None for row in rows):
        return []
    raising = sorted(filter(raises_loss, rows), key=lambda row: -float(row["loss_change"]))
    metric, needed = metric_label(rows[0]["metric"]), tally(map(shown_verdict, rows)).needed
    first = f"By {metric} {needed or 'none'} {are(needed or 1)} needed, by the mean loss {len(raising) or 'none'}"
    if not raising:
        return [f"{first}."]
    # The panel of each head says whether it raises the loss.
    spared, largest = tally(map(shown_verdict, raising)).spared, raising[0]
    of_spared = " (spared)" * (shown_verdict(largest) in CAN_BE_SPARED)
    named = f"{HEAD.label_of(largest)}{of_spared}, {rise_in_words(largest)}"
    most = ", most of all" if len(raising) > 1 else ":"
    some = "All" if spared == len(raising) else f"{spared} of the {len(raising)}"
    also = f" {some} can be spared by {metric}." if spared and len(raising) > 1 else ""
    moves = ", because it also changes where no prediction does" * of_classes(rows[0]["metric"])
    return [
        f"{first} {are(len(raising))}{most} {named}.{also}",
        f"{upper_first(metric)} takes precedence; the loss is more sensitive{moves}.",
    ]


def settling_in_words(power: Power) -> str:
    """A sentence on how many examples would settle the heads without a verdict."""
    one = power.undecided == 1
    if power.examples is None:
        only_so_many = f"only {percentage(power.share or 0)}"
        settled = (
            f"the head without a verdict in {only_so_many} of simulations"
            if one
            else f"{only_so_many} of the {power.undecided:,} heads without a verdict"
        )
        return (
            f"Even {power.most:,} examples would settle {settled}, because losses near the margin of "
            f"{points(power.margin, unit_of(power.metric))} need very many (simulated from these {power.count:,})."
        )
    share = "the head" if one else f"{percentage(POWER)} of the {power.undecided:,} heads"
    return (
        f"About {rounded(power.examples):,} examples, including these {power.count:,}, would settle {share} without a "
        f"verdict ({range_in_words(power.examples_low, power.examples_high)})."
    )


def range_in_words(low: float | None, high: float | None) -> str:
    """The range of numbers of examples over simulated sweeps; None is infinite, or unknown in earlier records."""
    if low is None:
        return "simulated from these"
    upper = "more than was simulated" if high is None else f"{rounded(high):,}"
    return f"{rounded(low):,} to {upper} in eight of ten simulations"


def rounded(examples: float) -> int:
    """An estimated number of examples, rounded up to two digits so that it exceeds the present one."""
    digits = max(0, math.floor(math.log10(examples)) - 1)
    return int(math.ceil(examples / 10**digits - 1e-9) * 10**digits)


def curve_of(beside: Sequence[Any], spared: Spared) -> list[SparedAt]:
    """The points of the curve of heads that can be spared."""
    return [
        row for row in beside if isinstance(row, SparedAt) and (row.metric, row.mode) == (spared.metric, spared.mode)
    ]


def spared_in_words(spared: Spared) -> str:
    """How many heads can be spared, unless there is no margin, and the bound on the loss of any head, if defined."""
    unit, level = unit_of(spared.metric), level_text(spared.level)
    loss = "" if spared.margin is None else points(spared.margin, unit)
    parts = []
    if spared.each:
        parts.append(
            f"{spared.each:,} of {spared.heads:,} heads can each be spared, of which at most about "
            f"{number(spared.falsely, 1)} are expected to lose {loss} or more"
        )
    if spared.at_least:
        fewer = spared.of_each < spared.at_least and spared.each
        among = f", including {spared.of_each:,} of these {spared.each:,}" if fewer else ""
        parts.append(
            f"with {level} confidence at least {spared.at_least:,} of {spared.heads:,} lose less than {loss}{among}"
        )
    sentence = f"{'; '.join(parts) or f'for no head is a loss of {loss} ruled out'}." if loss else ""
    if spared.excluded is not None:
        excluded = rounded_up(spared.excluded)
        bound = bound_in_words(each_of(spared.heads, HEAD.singular), points(excluded / 100, unit))
        sentence += f" With {level} confidence (one-sided), {bound}"
        if spared.excluded_unchanged is not None and (of_these := rounded_up(spared.excluded_unchanged)) < excluded:
            sentence += f", each of the {spared.unchanged:,} that change no prediction at most {number(of_these, 1)}"
        sentence += "."
    return upper_first(sentence.lstrip())


def sublayers_in_words(row: Sublayers) -> str:
    """Which kind of sublayer this model needs more."""
    attention, feed_forward, difference = (
        number(100 * change, 1, signed=True) for change in (row.attention, row.feed_forward, row.difference.value)
    )
    low, high = row.difference.low, row.difference.high
    sentence = (
        f"Over {counted(row.layers, 'layer')}, {metric_label(row.metric)} changes by {attention} {unit_of(row.metric)} "
        f"on average without an attention sublayer and by {feed_forward} without a feed-forward sublayer; the "
        "difference is "
        f"{difference} ({level_text(row.level)} interval {low_to_high(100 * low, 100 * high, 1, signed=True)})"
    )
    if low <= 0 <= high:
        return f"{sentence}, so neither kind is significantly more important."
    needed = FEED_FORWARD if row.difference.value > 0 else ATTENTION
    return f"{sentence}: this model needs its {needed.plural} more."


def over_examples_in_words(row: OverExamples) -> str:
    """How much of the variance of single effects is between examples."""
    share, low, high = (number(100 * value, 1) for value in (row.share.value, row.share.low, row.share.high))
    return (
        f"{share} % ({level_text(row.level)} interval {low} to {high}) of the variance of the change of the loss over "
        f"{row.heads:,} heads and {row.examples:,} examples is between examples, the rest between heads; near 100 %, "
        "the effect on one example reveals little about a head."
    )


def screened_in_words(screened: Screened) -> str:
    """What a screened sweep evaluated and what it may have missed, in a few sentences."""
    pairs, whole, bound = screened.pairs, screened.whole, screened.bound
    bf16 = screened.precision == "bf16-mixed"
    fully, roughly = (number(100 * count / pairs, 1) for count in (screened.evaluated, screened.bf16))
    how = f"in fp32 and {roughly} % in bf16 alone" if bf16 else "exactly"
    missed = f"{screened.missed or 'none'} of {screened.audited:,} audited pairs had changed"
    sentences = [
        f"The sweep is screened: {fully} % of the {pairs:,} pairs of a variant and an example were evaluated {how}, "
        "namely those whose prediction may change according to the gradients of the logits, and a random audit. The "
        f"others count as unchanged ({missed}).",
        f"{screened.missed_bf16 or 'None'} of {screened.audited_bf16:,} audited pairs in bf16 had another "
        "prediction in fp32."
        if bf16
        else f"No pass used bf16 apart from the trainer's, because {screened.reason}." * (screened.reason is not None),
        "Linear layers in fp32 were computed by oneDNN." * screened.onednn,
        f"{upper_first(counted(whole, 'variant'))} had to be evaluated on all examples.",
        f"With 95 % confidence at most {bound:,} prediction{'s differ' if bound != 1 else ' differs'} from an exact "
        f"sweep, and at most {screened.each:,} for any one variant; intervals and verdicts allow for the changes that "
        "each variant's audit may have missed.",
    ]
    return " ".join(filter(None, sentences))


def _table(rows: Sequence[Row]) -> Table:
    """The most harmful variants, and the least."""
    first, kind = rows[0], KINDS[rows[0]["kind"]]
    order = sorted(rows, key=lambda row: (math.isnan(row["delta"]), row["delta"]))
    listed = order if len(order) <= _MOST_ROWS else [*order[: _MOST_ROWS - 3], *order[-3:]]
    metric, margin, classes = first["metric"], first["margin"], of_classes(first["metric"])
    title = kind.title if kind.done else f"Disabled {kind.plural}{_how(first)}"
    few = f": the first {_MOST_ROWS - 3} and the last 3 of {len(order)}" if len(order) > _MOST_ROWS else ""
    columns: dict[str, Callable[[Row], str]] = {
        kind.singular: kind.label_of,
        metric_label(metric): lambda row: number(row["score"]),
        f"change, {unit_of(metric)}": lambda row: number(100 * row["delta"], 2, signed=True),
        f"{level_text(first['level'])} interval, by itself": lambda row: _interval(row, ""),
        f"for all {len(rows)} together": lambda row: _interval(row, "_simultaneous"),
        "p (uncorrected)": lambda row: p_value(row["p_value"]),
        "p (false discovery)": lambda row: p_value(row["p_bh"]),
        "p (needed)": lambda row: p_value(row["p_needed"]),
        "flips" if classes else "mean change": lambda row: (
            percentage(row["flips"], 1) if classes else f"{row['flips']:.3f}"
        ),
        "p (margin)" if margin is None else f"p (loss ≥ {number(100 * margin, 1)})": lambda row: p_value(
            math.nan if row["p_margin"] is None else row["p_margin"]
        ),
        "verdict": lambda row: WORDS[shown_verdict(row)],
    }
    return table(listed, columns, f"{title}, most harmful first{few}")


def _interval(row: Row, which: str) -> str:
    low, high = row[f"low{which}"], row[f"high{which}"]
    return MISSING if low is None else low_to_high(100 * low, 100 * high, 2, signed=True)


def _figures(ablation: AblationTable, rows: list[Row]) -> list[FigureBlock]:
    first = rows[0]
    kind, mode, metric = KINDS[first["kind"]], first["mode"], first["metric"]
    stem = f"ablation_{kind.name}_{mode}_{metric}"
    subject = f"{kind.plural} {kind.done or 'disabled'}{_how(first)}: {metric_label(metric)}"
    title = f"{kind.title}{_how(first)}: {metric_label(metric)}"
    drawn = partial(block, rows=rows)
    blocks = []
    if "head" in kind.axes:
        blocks.append(drawn(stem, title, figures.disabling_heatmap))
    if kind.axes == ("layer",):
        blocks.append(drawn(stem, title, figures.effects_in_order))
    elif kind is not RANDOM:
        blocks.append(drawn(f"{stem}_sorted", f"Effects in order, {subject}", figures.effects_in_order))
    same = {"kind": kind.name, "mode": mode, "metric": metric, "evaluation": first["evaluation"]}
    history = with_values(ablation.rows(), stage=TRAINING, **same)
    if kind.axes and kind is not ALL_BUT_ONE and len({row["step"] for row in history}) > 1:
        title = f"Effects during training, {subject}"
        blocks.append(drawn(f"{stem}_trajectory", title, figures.effect_trajectory, history=history))
    return blocks


def _groups_in_words(groups: Sequence[Group], metric: str) -> str:
    """How many groups are needed, redundant, or removable, or the most that any costs; a title."""
    count = Counter(group.verdict for group in groups)
    needed, subject = count[NEEDED] + count[REDUNDANT], f"{counted(len(groups), 'group')} of similar heads"
    most = lost_at_most([group.row for group in groups])
    if needed or most is None:
        first = needed_in_words(needed, subject) + f", {count[REDUNDANT]} of them redundant" * bool(needed)
    else:
        each = upper_first(each_of(len(groups), "group"))
        first = bound_in_words(f"{each} of similar heads", f"{most} {unit_of(groups[0].row['metric'])} of {metric}")
    spared, unknown = count[DISPENSABLE], count[INCONCLUSIVE]
    parts = [
        first,
        f"{spared} can each be removed as a whole" if spared else "",
        unknown_in_words(unknown) if unknown else "",
    ]
    return f"{'; '.join(filter(None, parts))}."


def _what_groups_mean(groups: Sequence[Group], row: Row) -> str:
    """What the verdicts on groups mean, and which groups could not be tested for redundancy."""
    sentence = (
        "A group is needed if disabling its heads together does significant harm. It is redundant if this harm exceeds "
        "the sum of the single effects and that of random groups of the same layers, and if keeping any one head "
        f"suffices. A group can be removed if {ruled_out_in_words(row)} for all its heads together."
    )
    uncontrolled = sum(group.verdict == NEEDED and len(group.controls) < FEWEST_CONTROLS for group in groups)
    if uncontrolled:
        sentence += (
            f" Needed groups with fewer than {FEWEST_CONTROLS} random groups of their layers, and so not tested for "
            f"redundancy: {uncontrolled}."
        )
    return sentence


def _groups_table(groups: Sequence[Group]) -> Table:
    def beyond(group: Group) -> str:
        names = ("interaction", "interaction_low", "interaction_high")
        value, low, high = (math.nan if group.row[name] is None else group.row[name] for name in names)
        return f"{Estimate(value, low, high):+%}"

    def random(group: Group) -> str:
        return f"{_tenths(group.controls)} ({len(group.controls)})" if group.controls else MISSING

    columns: dict[str, Callable[[Group], str]] = {
        "heads": lambda group: GROUP.label_of(group.row),
        "alone, points": lambda group: " ".join(_tenths([member]) for member in group.alone),
        "together": lambda group: _tenths([group.row]),
        "beyond the sum": beyond,
        "random groups of the layers, mean": random,
        "verdict": lambda group: WORDS.get(group.verdict, group.verdict),
    }
    return table(groups, columns, "Groups of heads with similar maps")


def _tenths(rows: Sequence[Row]) -> str:
    """The mean change of score, in points."""
    return number(100 * float(np.mean([row["delta"] for row in rows])), 1, signed=True)


def counted_verdict(code: str) -> str:
    """Name in W&B of the number of variants with a verdict.

    >>> counted_verdict("dispensable")
    'ablation/can_be_spared'
    """
    return f"ablation/{WORDS[code].replace(' ', '_')}"


def ablation_scalars(ablation: AblationTable) -> dict[str, float | str]:
    """Summary values for W&B, of the first set and mode and single heads (else the first kind), at the last step.

    By the first metric: ``ablation/worst``, the head without which the score falls most, ``worst_delta`` (points), and
    ``smallest_effect`` (points, the median over variants). ``n_variants``, how many have each verdict over all metrics
    (``needed``, ``can_be_spared``, ``not_enough_examples_to_tell``, and ``better_without``, which count as spared too),
    and ``n_loss_rises``, without how many the mean loss rises significantly. For variants with an undefined score there
    are not enough examples to tell. Empty without a sweep.
    """
    rows = main_rows(ablation)
    if not rows:
        return {}
    of_metrics = HEAD.of(rows) or with_values(rows, kind=rows[0]["kind"])
    codes = list(joint_verdicts(of_metrics).values())
    count = {**Counter(codes), DISPENSABLE: tally(codes).spared}
    of_first = with_values(of_metrics, metric=rows[0]["metric"])
    worst = min(_defined(of_first), key=lambda row: row["delta"], default=None)
    named = {} if worst is None else {"ablation/worst": KINDS[worst["kind"]].label_of(worst)}
    return {
        **named,
        "ablation/worst_delta": math.nan if worst is None else 100 * worst["delta"],
        "ablation/n_variants": len(of_first),
        **{counted_verdict(code): count.get(code, 0) for code in WORDS},
        "ablation/n_loss_rises": sum(map(raises_loss, of_first)),
        "ablation/smallest_effect": 100 * _reach(of_first),
    }


def named_scalars(rows: Sequence[Row]) -> dict[str, float | str | None]:
    """What W&B groups and sorts runs by that disable one thing each, of its rows
    (:func:`bertsecrets.results.disabled.named_rows`): effect and interval in points.
    """
    if not rows:
        return {}
    row = rows[0]
    return {
        "disabled/what": KINDS[row["kind"]].label_of(row),
        "disabled/layer": row["layer"],
        "disabled/head": row["head"],
        "disabled/score": row["score"],
        "disabled/effect": 100 * row["delta"],
        "disabled/low": 100 * row["low"],
        "disabled/high": 100 * row["high"],
        "disabled/verdict": WORDS[shown_verdict(row)],
    }


def _verdicts(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
    """The verdict on each single head over all metrics; a dash for heads that were not disabled alone."""
    rows = HEAD.of(main_rows(view.run.ablation_table()))
    if not rows:
        return {}
    layers, heads = (1 + max(row[name] for row in rows) for name in ("layer", "head"))
    verdicts = [[MISSING] * heads for _ in range(layers)]
    codes = joint_verdicts(rows)
    for row in rows:
        verdicts[row["layer"]][row["head"]] = WORDS[codes[row["variant"]]]
    return {"verdict": verdicts}


PRESENTER = Presenter(
    section=lambda view: joined(ablation_sections(view.run.ablation_table(), beside_table(view.run))),
    comparison=compare_effects,
    classes=_verdicts,
    scalars=lambda view: ablation_scalars(view.run.ablation_table()),
)
