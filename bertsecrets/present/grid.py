"""Default sections of any experiment: its columns, comparisons with other models, and across conditions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.grid import Column
from bertsecrets.present.figures.curves import trajectory
from bertsecrets.present.figures.grids import HeadPanel, head_panels, heatmap
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.style import sample_size, seeds_in_words
from bertsecrets.present.ranking import like_the_extreme, picked, ties_in_words
from bertsecrets.present.report.content import FigureBlock, HeadLine, Highlights, Section, Table, block
from bertsecrets.results.formatting import (
    MISSING,
    counted,
    head_label,
    heads_label,
    listed,
    low_to_high,
    lower_first,
    number,
    p_value,
    percentage,
    with_error,
)
from bertsecrets.results.run import INITIAL, RANDOM
from bertsecrets.results.views import LEVEL, Array, Change, Comparison, Grids, MeasureView, Replicates
from bertsecrets.statistics.ranks import FEWEST_POINTS, RankCorrelation, spearman_within
from bertsecrets.statistics.replicates import (
    Difference,
    corrected_together,
    difference,
    intraclass_correlation,
    mean_interval,
    rank_agreement,
)

_Grid = tuple[Array, Array, NDArray[np.int64]]
"""Values, standard errors and counts of a column."""

MOST_PANELS = 21
"""Largest number of conditions in a figure of a comparison."""

_MOST_CONTRASTS, _MOST_CHANGES = 12, 12
_LISTED, _OUTLINED = 10, 5
_TOP = 5
_ROUNDING = 3e-7
"""Largest difference of a number from its reference due to float32 rounding."""

SHORT = {INITIAL: "before fine-tuning", RANDOM: "random weights"}
"""Names of comparison models in headings."""

_LONG = {INITIAL: "the model before fine-tuning", RANDOM: "a model with random weights"}


_COMPARED = (
    "“Higher here” and “lower here” count the heads with a significant difference: both models received the same "
    "examples, and differences are tested with a paired t test over examples, corrected jointly over heads and columns."
)
_COMPARED_RANDOM = (
    " The model with random weights has seen no text, so similarities come from the architecture and token positions."
)


def grid_section(view: MeasureView) -> Section | None:
    """Every column as a heatmap and a row of a table, a sentence on the top head, and the elements requested in
    ``view.shown``.

    For whole layers, the table has one row each, as they are few and a heatmap with one column is hard to read.
    """
    shown = view.shown
    columns = [column for column in view.columns if column.role != "p_value" and view.has(column.name)]
    if not columns:
        return None
    told = [column for name in shown.each for column in columns if column.name == name]
    first = (told or columns)[0]
    grids = {column: view.grid(column.name) for column in columns}
    drawn = {column: grid for column, grid in grids.items() if np.isfinite(grid[0]).any()}
    mapped = [column for column, grid in drawn.items() if not _constant(column, grid[0])]
    foremost = _listed(view, first) if shown.verb and first in drawn else []
    marked = [(line.layer, line.head) for line in foremost[:_OUTLINED]]
    # Columns of one unit share a colour scale; the one with outlined heads stands apart.
    groups: dict[object, list[Column]] = {}
    for column in mapped:
        groups.setdefault((column.unit, column.limits, bool(marked) and column == first), []).append(column)
    blocks = [
        block(
            view.name if index == 0 else f"{view.name}_{group[0].name}",
            f"{view.title}: {group[0].label}" if len(group) == 1 else view.title,
            _draw,
            f"{view.title}, {group[0].label if len(group) == 1 else 'all on one scale'}.",
            view=view,
            columns=group,
            marked=marked if group == [first] else None,
        )
        for index, group in enumerate(groups.values())
    ]
    undefined = [column.label for column in columns if column not in drawn]
    section = Section(
        view.title,
        [_column_in_words(view, column) for column in told] or [_extreme_in_words(view, first, shown.lowest)],
        [*([_without_values(undefined)] if undefined else []), *([shown.about] if shown.about else [])],
        [_layers_table(drawn) if view.of_layers else _heads_table(drawn, shown.lowest)] if drawn else [],
        [*blocks, *_by_layer(view), *_over_steps(view, marked)],
        descriptive=True,
        head=_extreme(grids[first][0], shown.lowest) if first in drawn and not view.of_layers else None,
        news=_news(view, [column for column in told if column in drawn]),
    )
    return _ranked(view, first, foremost, section) if shown.verb and first in drawn else section


def _news(view: MeasureView, columns: Sequence[Column]) -> str:
    """What the head with the highest number of all columns does, if it is above ``view.shown.beyond``; else empty."""
    shown = view.shown
    if not shown.says or shown.beyond is None or not columns:
        return ""
    top = {column: float(np.nanmax(view.value(column.name))) for column in columns}
    column = max(columns, key=lambda column: top[column])
    if top[column] <= shown.beyond:
        return ""
    name = head_label(*highest(view.value(column.name)))
    return f"{name} {shown.says.format(value=number(top[column]), label=column.label)}"


def _listed(view: MeasureView, column: Column) -> list[HeadLine]:
    """The top heads by a column; none if no head differs from its reference beyond rounding."""
    value_LH, stderr_LH, _ = view.grid(column.name)
    unchanged = view.shown.unchanged
    if unchanged is not None and np.nanmax(np.abs(value_LH - unchanged)) < _ROUNDING:
        return []
    order = np.argsort(value_LH if view.shown.lowest else -value_LH, axis=None, kind="stable")
    heads = [divmod(int(index), value_LH.shape[1]) for index in order if np.isfinite(value_LH.flat[index])]
    return [
        HeadLine(head[0], head[1], column.name, float(value_LH[head]), float(stderr_LH[head]))
        for head in heads[:_LISTED]
    ]


def _ranked(view: MeasureView, column: Column, foremost: Sequence[HeadLine], section: Section) -> Section:
    """A section with a list of the top heads, and sentences on the top head, its ties, and layers."""
    shown = view.shown
    value_LH, stderr_LH, count_LH = view.grid(column.name)
    examples = counted(int(count_LH.max()), "example")
    if not foremost:
        heads = (
            f"None of {count} heads differs from its"
            if (count := np.isfinite(value_LH).sum()) > 1
            else "The only head equals its"
        )
        finding = f"{heads} reference beyond rounding on {examples}: {column.label} {shown.unchanged:g}."
        return replace(section, findings=[finding], descriptive=False, head=None)
    top = foremost[0].layer, foremost[0].head
    number_of_top = f"{column.name} {picked(top, value_LH, stderr_LH, count_LH, bounds=column.limits)} over {examples}"
    if value_LH.size == 1:
        findings = [f"The only head, {head_label(*top)}, has a {number_of_top}: {column.label}."]
    else:
        ties = like_the_extreme(value_LH, stderr_LH, count_LH, lowest=shown.lowest)
        if shown.first and view.has(shown.first):
            p_LH, _, tested_LH = view.grid(shown.first)
            ahead = f"It {shown.verb}, significantly ahead of every other head"
            ties = ties_in_words(
                -value_LH if shown.lowest else value_LH, p_LH, tested_LH, tests="paired t tests", ahead=ahead
            )
        findings = [f"The head that {shown.verb} is {head_label(*top)}: {number_of_top}. {ties}".strip()]
        if layers := _layers_in_words(value_LH, f"mean {column.label}"):
            findings.insert(0, layers)
    rows = [[head_label(line.layer, line.head), with_error(line.value, line.stderr)] for line in foremost]
    table = Table(["head", f"{column.name} ± standard error"], rows, f"The heads that {shown.verb}")
    return replace(
        section,
        findings=findings,
        tables=[table, *section.tables],
        highlights=Highlights(f"Heads that {shown.verb}", foremost),
        head=top,
        descriptive=False,
    )


def _column_in_words(view: MeasureView, column: Column) -> str:
    """Sentences on the highest head of a column, on its layers, and on heads above ``view.shown.beyond``."""
    value_LH, limit = view.value(column.name), view.shown.beyond
    sentences = [_extreme_in_words(view, column, view.shown.lowest)]
    # Equal numbers everywhere need only one sentence.
    if np.isfinite(value_LH).any() and number(float(np.nanmin(value_LH))) != number(float(np.nanmax(value_LH))):
        sentences.append(_layers_in_words(value_LH, "mean"))
        if limit is not None and (over_LH := value_LH > limit).any():
            means = [
                layer for layer, over_H in enumerate(over_LH) if over_H.any() and np.nanmean(value_LH[layer]) > limit
            ]
            beyond = f"; the mean of {_layers(means)} too" if means else ""
            heads = counted(int(over_LH.sum()), "head")
            sentences.append(f"Above {limit:g}: {heads} of {_layers(np.flatnonzero(over_LH.any(1)))}{beyond}.")
    return " ".join(filter(None, sentences))


def _layers(layers: Iterable[int]) -> str:
    names = list(map(str, layers))
    return f"layer{'s' * (len(names) > 1)} {listed(names)}"


def _layers_in_words(value_LH: Array, mean: str) -> str:
    """A sentence on the layers with the lowest and the highest mean; empty for one layer."""
    mean_L = {layer: float(np.nanmean(value_H)) for layer, value_H in enumerate(value_LH) if np.isfinite(value_H).any()}
    low, high = min(mean_L, key=lambda layer: mean_L[layer]), max(mean_L, key=lambda layer: mean_L[layer])
    if len(mean_L) == 1:
        return ""
    if number(mean_L[low]) == number(mean_L[high]):
        return f"All {len(mean_L)} layers have the same {mean}, {number(mean_L[low])}."
    return (
        f"By layer, the {mean} is lowest in layer {low} ({number(mean_L[low])}) and highest in layer {high} "
        f"({number(mean_L[high])})."
    )


def _by_layer(view: MeasureView) -> list[FigureBlock]:
    """Heads as dots by layer, for the columns listed in ``view.shown``."""
    panels: dict[str, list[LayerLine]] = {}
    names = [name for name in view.shown.by_layer if view.has(name)]
    for name in names:
        panels.setdefault(view.shown.by_layer[name], []).append(LayerLine(view.column(name).label, view.value(name)))
    if not names:
        return []
    column, level_name = view.shown.level or ("", "")
    title = f"{view.title}, by layer"
    figure = block(
        f"{view.name}_layers",
        title,
        layer_scatter,
        f"{title}: a dot for each head{f', the dashed line for {level_name}' * bool(level_name)}.",
        panels=panels,
        unit=view.column(names[0]).unit,
        note=sample_size([view.count(name) for name in names]),
        level=float(np.nanmean(view.value(column))) if view.has(column) else None,
        level_name=level_name,
    )
    return [figure]


def _over_steps(view: MeasureView, named: Sequence[tuple[int, int]]) -> list[FigureBlock]:
    """The columns listed in ``view.shown`` at every validation."""
    blocks = []
    for name in view.shown.history:
        history = [(step, value_LH) for step, value_LH in view.history(name) if step > 0]
        if not history:
            continue
        start = view.shown.start
        if start is not None:
            history.insert(0, (0, np.where(np.isfinite(history[0][1]), start, np.nan)))
        steps, values = zip(*history, strict=True)
        column = view.column(name)
        caption = f"{column.label[:1].upper()}{column.label[1:]} over every validation"
        caption += f", from step 0 ({start:g} by definition)" if start is not None else ""
        caption += "; labelled: the listed heads." if named else "."
        blocks.append(
            block(
                f"{view.name}_{name}_steps",
                f"{view.title} during training",
                trajectory,
                caption,
                steps=steps,
                value_SLH=np.stack(values),
                unit=column.unit,
                count=view.grid(name)[2],
                named=named,
            )
        )
    return blocks


def _heads_table(grids: Mapping[Column, _Grid], lowest: bool) -> Table:
    rows = []
    for column, grid in grids.items():
        head = _extreme(grid[0], lowest)
        mean = number(float(np.nanmean(grid[0])))
        name = "all heads" if _constant(column, grid[0]) else head_label(*head)
        rows.append([column.label, mean, name, picked(head, *grid, bounds=column.limits)])
    return Table(["column", "mean over heads", f"{_rank(lowest)} head", "value (95 %, simultaneous over heads)"], rows)


def _layers_table(grids: Mapping[Column, _Grid]) -> Table:
    cells_CL = [
        [with_error(*pair) for pair in zip(grid[0][:, 0], grid[1][:, 0], strict=True)] for grid in grids.values()
    ]
    rows = [[f"{layer}", *cells] for layer, cells in enumerate(zip(*cells_CL, strict=True))]
    return Table(["layer", *(column.label for column in grids)], rows, "Value ± standard error")


def _constant(column: Column, value_LH: Array) -> bool:
    """Whether a column is a baseline that is the same for every head."""
    return column.role == "baseline" and bool(np.nanmax(value_LH) - np.nanmin(value_LH) < _ROUNDING)


def _extreme(value_LH: Array, lowest: bool) -> tuple[int, int]:
    return highest(-value_LH if lowest else value_LH)


def _rank(lowest: bool) -> str:
    return "lowest" if lowest else "highest"


def _without_values(labels: Sequence[str]) -> str:
    return f"No head has a value, so there is nothing to draw: {', '.join(labels)}."


def _extreme_in_words(view: MeasureView, column: Column, lowest: bool) -> str:
    """A sentence on the highest or lowest head, or whole layer, of a column, if they differ."""
    value_LH, stderr_LH, count_LH = view.grid(column.name)
    defined_N = value_LH[np.isfinite(value_LH)]
    noun = "layer" if view.of_layers else "head"
    # A measure with one column often has the same name.
    alike = lower_first(view.title) == lower_first(column.label)
    subject = "" if alike or view.shown.each else f"{view.title}: "
    tail = ""
    if not defined_N.size:
        which = f"all {value_LH.size} {noun}s" if value_LH.size > 1 else f"the only {noun}"
        sentence = f"{column.label} is undefined for {which}."
    else:
        head = _extreme(value_LH, lowest)
        name = head_label(head[0], None if view.of_layers else head[1])
        most = picked(head, value_LH, stderr_LH, count_LH, bounds=column.limits)
        if value_LH.size == 1:
            sentence = f"{column.label} is {most} in the only {noun}, {name}."
        elif number(float(defined_N.min())) == number(float(defined_N.max())):
            sentence = f"{column.label} is {number(float(defined_N.max()))} in all {defined_N.size} {noun}s."
        else:
            mean = number(float(defined_N.mean()))
            # Labels such as “all tokens” do not read like a property of a head, but a title does.
            what = column.label if alike else f"value of “{column.label}”"
            does = f"has the {_rank(lowest)} {what}, {most}"
            if view.shown.says and column.name not in view.shown.each:
                does = f"{view.shown.says}, {most}"
                if view.shown.level and view.has(view.shown.level[0]):
                    level = number(float(np.nanmean(view.value(view.shown.level[0]))))
                    does += f" of the {level} {column.unit} of {view.shown.level[1]}"
            sentence = f"{name} {does}; the {defined_N.size} {noun}s average {mean}."
            tail = f" {like_the_extreme(value_LH, stderr_LH, count_LH, lowest=lowest, layers=view.of_layers)}"
    sentence = f"{subject}{sentence}"
    return f"{sentence[:1].upper()}{sentence[1:]}{tail}"


def _draw(view: MeasureView, columns: Sequence[Column], marked: Sequence[tuple[int, int]] | None, title: str) -> Figure:
    unit, limits = columns[0].unit or columns[0].label, columns[0].limits
    if len(columns) == 1:
        value_LH, stderr_LH, count_LH = view.grid(columns[0].name)
        return heatmap(
            value_LH,
            title=title,
            unit=unit,
            count=count_LH,
            stderr_LH=stderr_LH,
            limits=limits,
            whole_layers=view.of_layers,
            marked=marked,
        )
    counts = [view.count(column.name) for column in columns]
    panels = [
        HeadPanel(f"{column.label} (n = {count:,})", view.value(column.name))
        for column, count in zip(columns, counts, strict=True)
    ]
    return head_panels(panels, title=title, unit=unit, note=sample_size(counts), limits=limits)


def highest(value_LH: Array) -> tuple[int, int]:
    """Layer and head of the highest value."""
    layer, head = np.unravel_index(int(np.nanargmax(value_LH)), value_LH.shape)
    return int(layer), int(head)


def names_by_head(holds: Mapping[str, NDArray[np.bool_]], shape: tuple[int, ...]) -> list[list[str]]:
    """The names that apply to each head as text ``[layers][heads]``; a dash for none."""
    layers, heads = shape
    return [
        [
            ", ".join(name for name, holds_LH in holds.items() if holds_LH[layer, head]) or MISSING
            for head in range(heads)
        ]
        for layer in range(layers)
    ]


def compared_section(view: MeasureView) -> Section:
    """A measure's numbers compared with those of other models on the same examples."""
    labels = {column.name: column.label for column in view.columns}
    unit = view.columns[0].unit
    sentences, blocks = [], []
    for other, changes in view.compared.items():
        moving = {name: change for name, change in changes.items() if change.moves}
        sentences.append(_change_in_words(view, other))
        if moving:
            title = f"{view.title}: the model minus {SHORT[other]}"
            caption = f"Differences from {SHORT[other]}, paired over examples; only significant ones are coloured."
            shown = {"moving": moving, "labels": labels, "unit": unit}
            blocks.append(block(f"{view.name}_beside_{other}", title, _change_panels, caption, **shown))
    _, widest = view.widest_change(next(iter(view.compared)))
    return Section(
        f"{view.title}, compared with other models",
        sentences[:1],
        [*sentences[1:], _COMPARED + _COMPARED_RANDOM * (RANDOM in view.compared)],
        [table] if (table := _change_table(view.compared, labels)).rows else [],
        blocks,
        head=widest.largest if widest.differs_LH.any() and not view.of_layers else None,
    )


def _change_in_words(view: MeasureView, other: str) -> str:
    changes, title = view.compared[other], lower_first(view.title)
    if not any(np.isfinite(change.delta_LH).any() for change in changes.values()):
        return f"Compared with {_LONG[other]}, no difference in {title} is defined."
    if not any(change.moves for change in changes.values()):
        return f"Compared with {_LONG[other]}, no head differs at all in {title}."
    column, change = view.widest_change(other)
    if not change.differs_LH.any():
        return f"Compared with {_LONG[other]}, no head differs significantly in {title}."
    largest = change.largest
    where = f" ({column.label}, the column with the most)" if len(changes) > 1 else ""
    return (
        f"Compared with {_LONG[other]}, {int(change.differs_LH.sum())} of {change.delta_LH.size} heads differ "
        f"significantly in {title}{where}, most of all {head_label(*largest)} ({number(change.other_LH[largest])} "
        f"there, {number(change.model_LH[largest])} here)."
    )


def _change_panels(moving: Mapping[str, Change], labels: Mapping[str, str], title: str, unit: str) -> Figure:
    widest = sorted(moving, key=lambda name: -int(moving[name].differs_LH.sum()))[:_MOST_CHANGES]
    shown = {name: change for name, change in moving.items() if name in widest}
    part = f"; the {len(shown)} of {len(moving)} columns with most differing heads" if len(shown) < len(moving) else ""
    return head_panels(
        [HeadPanel(labels[name], change.delta_LH, change.differs_LH) for name, change in shown.items()],
        title=title,
        unit=f"difference of {unit}" if unit else "difference",
        note=(
            f"pale: not significant (paired t test over examples, false discovery rate {percentage(LEVEL)} over the "
            f"heads of all columns){part}; {sample_size([change.count for change in shown.values()])}"
        ),
        signed=True,
    )


def _change_table(compared: Mapping[str, Mapping[str, Change]], labels: Mapping[str, str]) -> Table:
    header = ["column", "this model"]
    for other in compared:
        header += [SHORT[other], "higher here", "lower here", "largest difference"]
    rows = []
    for name, first in next(iter(compared.values())).items():
        if not any(changes[name].moves for changes in compared.values()):
            continue
        row = [labels[name], _mean(first.model_LH)]
        for change in (changes[name] for changes in compared.values()):
            row.append(_mean(change.other_LH))
            row += [str(change.risen), str(change.fallen)]
            largest = change.largest
            row.append(
                f"{number(float(change.delta_LH[largest]))} ({head_label(*largest)})"
                if change.differs_LH.any()
                else number(math.nan)
            )
        rows.append(row)
    return Table(header, rows, "Means over heads, and heads that differ")


def _mean(value_LH: Array) -> str:
    return number(float(np.nanmean(value_LH))) if np.isfinite(value_LH).any() else number(math.nan)


def grid_comparison(comparison: Comparison) -> Section | None:
    """Every value column of a measure by condition, with agreement between seeds, and differences in the first
    column.
    """
    replicates = comparison.replicates
    if not next(iter(replicates.values())).views[0].shown.compared:
        return None
    title = next(iter(replicates.values())).title
    columns = {
        column.name: column
        for condition in replicates.values()
        for column in condition.columns
        if column.role == "value"
    }
    blocks: list[FigureBlock] = []
    tables: list[Table] = []
    findings: list[str] = []
    paragraphs: list[str] = []
    rows: list[Mapping[str, object]] = []
    measure = next(iter(replicates.values())).views[0].name
    grids_of = {
        name: {label: grid for label, condition in replicates.items() if (grid := condition.grids(name)) is not None}
        for name in columns
    }
    empty: list[str] = []
    layers = next(iter(replicates.values())).views[0].of_layers
    for index, column in enumerate(columns.values()):
        grids = grids_of[column.name]
        for label, grid in grids.items():
            rows += condition_rows(label, measure, column.name, grid.value_RLH, grid.stderr_RLH)
        # Features without examples, often coreferent words, would give an empty figure.
        if not any(np.isfinite(grid.value_RLH).any() for grid in grids.values()):
            empty.append(column.label)
            continue
        heading = f"{title}: {column.label}"
        panels = [HeadPanel(label, grid.value_RLH.mean(axis=0)) for label, grid in grids.items()]
        counts = [grid.count for grid in grids.values()]
        seeds = seeds_in_words([len(grid.value_RLH) for grid in grids.values()])
        blocks.append(
            block(
                f"{measure}_{column.name}",
                heading,
                head_panels,
                f"{heading}, side by side on one scale.",
                panels=panels[:MOST_PANELS],
                unit=column.unit or column.label,
                note=f"{seeds}, {sample_size(counts)} for each{left_out_panels(panels)}",
                limits=_common_limits([grids_of[name] for name, other in columns.items() if other.unit == column.unit]),
                whole_layers=layers,
            )
        )
        if index == 0:
            repeated = {label: grid.value_RLH for label, grid in grids.items() if len(grid.value_RLH) > 1}
            if repeated:
                tables.append(agreement_table(repeated, f"{heading}: agreement between seeds", layers=layers))
                named = f"{lower_first(column.label)} ({lower_first(title)})"
                findings.append(agreement_in_words(repeated, named, layers=layers))
            differences = _differences(measure, column, heading, comparison, layers)
            if differences is not None:
                blocks.append(differences[0])
                findings.append(differences[1])
    if empty:
        paragraphs.append(_without_values(empty))
    return Section(title, findings, paragraphs, tables, blocks, rows=rows) if blocks else None


def _common_limits(columns: Sequence[Mapping[str, Grids]]) -> tuple[float, float] | None:
    """The range of the means over seeds of several columns; None without a value."""
    means = [grid.value_RLH.mean(axis=0).ravel() for grids in columns for grid in grids.values()]
    defined = [value_N[np.isfinite(value_N)] for value_N in means]
    value_N = np.concatenate(defined) if defined else np.zeros(0)
    return (float(value_N.min()), float(value_N.max())) if value_N.size else None


def _differences(
    measure: str,
    column: Column,
    heading: str,
    comparison: Comparison,
    layers: bool,
) -> tuple[FigureBlock, str] | None:
    replicates = comparison.replicates
    tested: list[tuple[str, Difference]] = []
    for contrast in comparison.contrasts:
        if contrast.first in replicates and contrast.second in replicates:
            first, second = (replicates[label].grids(column.name) for label in (contrast.first, contrast.second))
            if first is not None and second is not None:
                errors = (_typical(first.stderr_RLH), _typical(second.stderr_RLH))
                tested.append((contrast.name, difference(first.value_RLH, second.value_RLH, *errors)))
    if not tested:
        return None
    names, tests = zip(*tested, strict=True)
    shown = list(zip(names, corrected_together(tests), strict=True))[:_MOST_CONTRASTS]
    over = {test.over_seeds for _, test in shown}
    how = (
        "tested over seeds"
        if over == {True}
        else "tested over examples"
        if over == {False}
        else "tested over seeds if there are several, else over examples"
    )
    part = f"; the first {len(shown)} of {len(tested)} differences" if len(shown) < len(tested) else ""
    title = f"Differences: {lower_first(heading)}"
    figure = block(
        f"{measure}_{column.name}_differences",
        title,
        head_panels,
        f"{title}; only significant differences are coloured.",
        panels=[HeadPanel(name, test.delta_LH, test.p_LH <= LEVEL) for name, test in shown],
        unit=f"difference of {(column.unit or column.label).split(' (')[0]}",
        note=f"pale: not significant ({how}, false discovery rate {percentage(LEVEL)} over the heads of all "
        f"comparisons){part}",
        signed=True,
        whole_layers=layers,
    )
    return figure, _differences_in_words(f"{lower_first(heading)} ({how})", shown, "layers" if layers else "heads")


def _differences_in_words(what: str, tested: Sequence[tuple[str, Difference]], nouns: str) -> str:
    if not any(np.isfinite(test.p_LH).any() for _, test in tested):
        return f"Differences of {what} could not be tested, because with one seed each they need at least two examples."
    counts = [int((test.p_LH <= LEVEL).sum()) for _, test in tested]
    most = int(np.argmax(counts))
    name, test = tested[most]
    differing = test.delta_LH[test.p_LH <= LEVEL]
    by = f", those by {number(differing.mean(), signed=True)} on average" if differing.size else ""
    heads = f"{counts[most]} of {test.delta_LH.size}"
    if len(tested) == 1:
        return f"{name}: {what} differs in {heads} {nouns}{by}."
    return f"Among {len(tested)} comparisons of {what}, {name} has the most differing {nouns}: {heads}{by}."


def _typical(stderr_RLH: Array) -> Array:
    """Root mean square over replicates, an upper bound on the standard error of their mean."""
    return np.asarray(np.sqrt((stderr_RLH**2).mean(axis=0)))


def left_out_panels(panels: Sequence[object]) -> str:
    """The end of a note if a figure omits conditions."""
    return f"; the first {MOST_PANELS} of {len(panels)} conditions" if len(panels) > MOST_PANELS else ""


def agreement_table(values: Mapping[str, Array], caption: str, *, layers: bool = False) -> Table:
    """Table of the agreement between seeds on the order of heads, or of whole layers, by condition.

    Args:
        values: Condition -> ``[replicates, layers, heads]``.
        caption: Caption of the table.
        layers: Whether the numbers are for whole layers.
    """
    rows = []
    for label, value_RLH in values.items():
        value_NR = value_RLH.reshape(len(value_RLH), -1).T
        mean, least = rank_agreement(value_NR)
        # NaN sorts last.
        lowest_of = [set(np.argsort(v_N, kind="stable")[: min(_TOP, np.isfinite(v_N).sum())]) for v_N in value_NR.T]
        shared = sorted(map(int, set.intersection(*lowest_of)))
        if layers:
            common = ", ".join(head_label(layer, None) for layer in shared)
        else:
            common = heads_label(divmod(head, value_RLH.shape[2]) for head in shared)
        rows.append(
            {
                "condition": label,
                "seeds": str(len(value_RLH)),
                "rank correlation, mean": number(mean, 2),
                "smallest": number(least, 2),
                **({} if layers else {"mean within layers": number(_within_layers(value_RLH), 2)}),
                "ICC": number(intraclass_correlation(value_NR), 2),
                f"among the lowest {_TOP} in every seed": (common or "none") if math.isfinite(mean) else MISSING,
            }
        )
    return Table(list(rows[0]), [list(row.values()) for row in rows], caption)


def _within_layers(value_RLH: Array) -> float:
    """Mean rank correlation of heads within layers between any two replicates, without the influence of depth."""
    rhos = [spearman_within(first_LH, second_LH) for first_LH, second_LH in combinations(value_RLH, 2)]
    return float(np.mean(rhos)) if rhos else math.nan


def agreement_in_words(values: Mapping[str, Array], title: str, *, layers: bool = False) -> str:
    """A sentence on the rank correlation between seeds, for the conditions that agree best and least."""
    rhos = {label: rank_agreement(v_RLH.reshape(len(v_RLH), -1).T)[0] for label, v_RLH in values.items()}
    defined = {label: rho for label, rho in rhos.items() if math.isfinite(rho)}
    nouns = "layers" if layers else "heads"
    if not defined:
        return f"For {title} the agreement between seeds is undefined."
    worst = min(defined, key=lambda label: defined[label])
    best = max(defined, key=lambda label: defined[label])
    if len(defined) == 1:
        within = _within_layers(values[worst])
        beyond = f", {number(within, 2)} within layers" if math.isfinite(within) else ""
        return (
            f"The rank correlation between two seeds over {nouns} is {number(defined[worst], 2)}{beyond}, by {title}."
        )
    if number(defined[worst], 2) == number(defined[best], 2):
        where = "both" if len(defined) == 2 else f"all {len(defined)}"
        return (
            f"Between seeds, the order of {nouns} by {title} agrees equally in {where} conditions (rank correlation "
            f"{number(defined[best], 2)})."
        )
    return (
        f"Between seeds, the order of {nouns} by {title} agrees best for {best} (rank correlation "
        f"{number(defined[best], 2)}) and least for {worst} ({number(defined[worst], 2)})."
    )


def correlation_in_words(correlation: RankCorrelation) -> str:
    """A rank correlation with its limits and p-value, or why it is untested; for heads, also the one within layers."""
    rho = number(correlation.rho, 2)
    if not math.isfinite(correlation.rho):
        return "undefined"
    if not math.isfinite(correlation.p_value):
        return f"{rho} (not tested: fewer than {FEWEST_POINTS} points)"
    limits = [f"95 % interval {low_to_high(correlation.low, correlation.high, 2)}"] * math.isfinite(correlation.low)
    if correlation.within is None:
        return f"{rho} ({', '.join([*limits, f'permutation p {p_value(correlation.p_value)}'])})"
    # No p-value of the total, which is too small if both depend steadily on depth and would be read as a finding.
    total = f"{rho} ({limits[0]})" if limits else rho
    beyond = f", and {correlation_in_words(correlation.within)} within layers" if correlation.judged else ""
    return f"{total}, including the dependence of both on depth{beyond}"


def replicate_rows(label: str, replicates: Replicates) -> list[Mapping[str, object]]:
    """:func:`condition_rows` of every column of a condition."""
    rows: list[Mapping[str, object]] = []
    for column in replicates.columns:
        grids = replicates.grids(column.name)
        if grids is not None:
            rows += condition_rows(label, replicates.views[0].name, column.name, grids.value_RLH, grids.stderr_RLH)
    return rows


def condition_rows(
    label: str, measure: str, column: str, value_RLH: Array, stderr_RLH: Array
) -> list[Mapping[str, object]]:
    """Mean and interval over seeds of every head of a condition, as rows of ``comparison.parquet``."""
    rows: list[Mapping[str, object]] = []
    for layer, head in np.ndindex(value_RLH.shape[1:]):
        interval = mean_interval(value_RLH[:, layer, head])
        errors_R = stderr_RLH[:, layer, head]
        rows.append(
            {
                "condition": label,
                "measure": measure,
                "column": column,
                "layer": layer,
                "head": head,
                "mean": interval.mean,
                "low_pointwise": interval.low,
                "high_pointwise": interval.high,
                "seeds": interval.count,
                "stderr_over_examples": float(np.sqrt(np.nanmean(errors_R**2)))
                if np.isfinite(errors_R).any()
                else math.nan,
            }
        )
    return rows
