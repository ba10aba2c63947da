"""Figures and tables that any page can show."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from bertsecrets.ablation.seeds import Effects
from bertsecrets.doors import error_text, resolve
from bertsecrets.errors import UserError, choices
from bertsecrets.papers.lines import Columns, Line, cell, check_fields, tables
from bertsecrets.papers.models import Studied
from bertsecrets.papers.sources import State, states
from bertsecrets.papers.statements.judge import subjects
from bertsecrets.papers.statements.sheet import DISABLE
from bertsecrets.present.disabling_compared import heads_figure, layers_figure
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.maps import MapPanel, gallery
from bertsecrets.present.figures.style import sample_size, seeds_in_words
from bertsecrets.present.grid import highest
from bertsecrets.present.presenter import Presenter, presenter_of
from bertsecrets.present.report.content import FigureBlock, Section
from bertsecrets.results.captures import CapturedExample, read_examples, read_maps, read_steps
from bertsecrets.results.formatting import head_label, level_text, number
from bertsecrets.results.verdicts import BETTER, DISPENSABLE, NEEDED, WORDS
from bertsecrets.results.views import Comparison, Replicates
from bertsecrets.settings import configurations

_NONE: Mapping[str, Any] = MappingProxyType({})


def _without_counterpart(theirs: Iterable[str], ours: Collection[str]) -> list[str]:
    """A sentence on published numbers that these runs lack; none if they have all."""
    missing = [name for name in theirs if name not in ours]
    return [f"Published, but not measured here: {', '.join(missing)}."] if missing else []


def _other_tasks(theirs: Collection[str], ours: Collection[str]) -> list[str]:
    """:func:`_without_counterpart` of tasks.

    Raises:
        UserError: If there is no such task.
    """
    known = {*configurations("task"), *ours}
    for task in theirs:
        if task not in known:
            raise UserError(f"A page has published numbers for the unknown task '{task}'; {choices(task, known)}.")
    return _without_counterpart(theirs, ours)


def table(
    models: Studied,
    of: str,
    columns: Columns,
    caption: str,
    *,
    apart: bool = False,
    paragraphs: Sequence[str] = (),
    summary: str = "",
    summary_of: Mapping[str, float] = _NONE,
    published: Mapping[str, Any] = _NONE,
    by: Sequence[str] = (),
    called: Mapping[str, str] = _NONE,
    all_published: bool = False,
    paper: Sequence[Line] = (),
    **settings: Any,
) -> Section | None:
    """A table of lines, with published numbers in the field ``paper``; None without lines.

    Args:
        models: The models.
        of: The source of the lines: a function in :mod:`bertsecrets.papers.sources`, or ``<module>.<function>``.
        columns, caption, apart: Arguments of :func:`~bertsecrets.papers.lines.tables`.
        paragraphs: Text before it.
        summary: A short summary of the first line of the first task, as a cell format; empty for none.
        summary_of: A field with a number: the line nearest to it is summarised instead.
        published: The paper's numbers, by the values of fields.
        by: These fields, one per level of ``published``.
        called: Value of the first of these fields -> its name in the paper, if different.
        all_published: Whether to list published numbers that these runs lack.
        paper: Further lines from the paper.
        settings: Settings of the source of the lines.
    """
    source = function(of, "sources", f"A table of a page uses '{of}', which yields no lines")
    made = list(source(models, **settings))
    if not made:
        return None
    lines = []
    for line in made:
        theirs: Any = published
        for field in by:
            key: Any = line.get(field)
            theirs = theirs.get(called.get(key, key)) if isinstance(theirs, Mapping) else None
        lines.append({**line, "paper": theirs} if by else line)
    check_fields([*lines, *paper], columns, ["paper"])
    of_first = [line for line in lines if line.get("task") == lines[0].get("task")]
    said = min(of_first, key=lambda line: sum(abs(line[name] - number) for name, number in summary_of.items()))
    first = by[0] if by else ""
    missing = _without_counterpart(published, {called.get(line[first], line[first]) for line in made}) if first else []
    return Section(
        paragraphs=[*paragraphs, *(missing if all_published else [])],
        tables=tables([*lines, *paper], columns, caption, apart=apart),
        summary=cell(summary, said) if summary else "",
    )


def function(name: str, module: str, missing: str, *, foreign: bool = False) -> Any:
    """A function of :mod:`bertsecrets.papers` by ``<module>.<name>``, or by its name in the module given; if foreign
    ones are allowed, also that of an installed package by ``<package>.<module>:<name>``.

    Raises:
        UserError: If there is none; it begins with ``missing``.
    """
    other, _, attribute = name.rpartition(".")
    try:
        if foreign and ":" in name:
            return resolve(name)
        return getattr(import_module(f"bertsecrets.papers.{other or module}"), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{missing} ({error_text(error)}).") from error


def layers(
    models: Studied,
    columns: Mapping[str, Mapping[str, Any]],
    caption: str,
    name: str = "token",
    *,
    tuned: bool = True,
    over: str = "",
) -> Section | None:
    """A table of means by layer, with published means next to ours.

    Args:
        models: The models.
        columns: Column, ``measure/column``, -> its ``label``, and the paper's means (``published``), by task of
            fine-tuned models.
        caption: Caption of the table.
        name: Heading of the labels, which are omitted if there is one column.
        tuned: Whether rows are means over seeds of fine-tuned models; otherwise the states of models, before
            fine-tuning first.
        over: A column by which the means are divided; empty for none.
    """
    lines: list[Line] = []
    for column, about in columns.items():
        measure, _, measured = column.partition("/")
        label, theirs = {"label": about.get("label", measured)}, about.get("published")
        if tuned:
            for group in models.tuned:
                if (grids := group.grids(measure, measured)) is not None:
                    mean_L = np.nanmean(grids.value_RLH, axis=(0, 2))
                    lines.append({**label, "task": group.name, "mean": mean_L, "paper": (theirs or {}).get(group.task)})
            continue
        found = [state for state in states(models, measure) if state.view.has(measured)]
        for state in found:
            mean_L, count = np.nanmean(state.view.value(measured), axis=1), state.view.count(measured)
            mean_L = mean_L / np.nanmean(state.view.value(over), axis=1) if over else mean_L
            # With several models, the paper has a separate row.
            paper = theirs if len(found) == 1 else None
            lines.append({**label, "model": state.name, "mean": mean_L, "paper": paper, "examples": count})
        if theirs is not None and len(found) > 1:
            lines.append({**label, "model": "paper (figure)", "mean": theirs, "paper": None})
    if not lines:
        return None
    tasks = {task: 0 for about in columns.values() if tuned for task in about.get("published", {})}
    who = {"task": "{task}"} if tuned else {"model": "{model}"}
    labels = {name: "{label}"} if len(columns) > 1 else {}
    cells = {**labels, **who, "mean by layer": "{mean:layers}", "paper (figure)": "{paper:layers}"}
    return Section(
        paragraphs=_other_tasks(tasks, {line["task"] for line in lines if tuned}), tables=tables(lines, cells, caption)
    )


def layer_dots(
    models: Studied,
    columns: Mapping[str, Mapping[str, Any]],
    name: str,
    title: str,
    unit: str,
    top: float | None = None,
    *,
    theirs: bool = True,
) -> Section | None:
    """A dot for each head by layer, for the first state of a model with given columns.

    Args:
        models: The models.
        columns: Column, ``measure/column``, -> its ``panel``, its ``line`` there, and the paper's means
            (``published``).
        name, title, unit, top: Name, title and unit of the figure, and the upper end of its axis.
        theirs: Whether to draw the paper's means.
    """
    first_measure, _, first_column = next(iter(columns)).partition("/")
    state = next((state for state in states(models, first_measure) if state.view.has(first_column)), None)
    if state is None:
        return None
    panels: dict[str, list[LayerLine]] = {}
    for column, about in columns.items():
        measured = column.partition("/")[2]
        if "panel" in about and state.view.has(measured):
            published_L = about.get("published") if theirs else None
            line = LayerLine(about.get("line", about["panel"]), state.view.value(measured), published_L)
            panels.setdefault(about["panel"], []).append(line)
    # A panel with one line has no legend.
    panels = {
        f"{panel} {series[0].name}" if len(series) == 1 and series[0].name != panel else panel: series
        for panel, series in panels.items()
    }
    note = f"{state.name}; {sample_size(state.view.count(first_column))}"
    figure = layer_scatter(panels, title=title, unit=unit, note=note, top=top)
    caption = f"{title} ({state.name}): a dot for each head."
    return Section(figures=[FigureBlock(name, figure, caption, "Scatter of heads by layer.")])


def heatmaps(
    models: Studied,
    column: str,
    name: str,
    title: str,
    unit: str,
    caption: str,
    limits: Sequence[float] | None = None,
    *,
    before: bool = False,
) -> Section | None:
    """A heatmap of a column for each group of fine-tuned models, averaged over seeds; None if no model has it.

    Args:
        models: The models.
        column: The column, ``measure/column``.
        name, title, unit, caption: Of the figure.
        limits: Ends of the colour scale; None for 0 and the largest number, or for changes of a score all of them.
        before: Whether to show models before fine-tuning instead, each on the texts of one task.
    """
    measure, _, measured = column.partition("/")
    found: list[tuple[HeadPanel, int]] = []
    if before:
        sheets = {subject.name: sheet for subject in subjects(models, "before") for sheet in subject.sheets}
        found = [
            (HeadPanel(name, grid.value_LH), grid.count)
            for name, sheet in sheets.items()
            if (grid := sheet.found(column)) is not None
        ]
        seeds = ""
    else:
        tuned = [
            (group, of_seeds) for group in models.tuned if (of_seeds := group.grids(measure, measured)) is not None
        ]
        found = [(HeadPanel(group.title, grids.value_RLH.mean(axis=0)), grids.count) for group, grids in tuned]
        seeds = f"{seeds_in_words([len(grids.value_RLH) for _, grids in tuned])}, " if tuned else ""
    if not found:
        return None
    panels = [panel for panel, _ in found]
    note = f"{seeds}{sample_size([count for _, count in found])}{' for each' * bool(seeds)}"
    effects = measure == DISABLE
    if limits is None and not effects:
        limits = 0.0, max(float(np.nanmax(panel.value_LH)) for panel in panels)
    ends = None if limits is None else (float(limits[0]), float(limits[1]))
    figure = head_panels(panels, title=title, unit=unit, note=note, limits=ends, effects=effects)
    return Section(figures=[FigureBlock(name, figure, caption, "Heatmaps by layer and head.")])


_BY_HEAD: Columns = {
    "task": "{task}",
    "metric (mode)": "{what}",
    "examples": "{examples:,}",
    "score": ["{score}", "{paper[0]}"],
    "lowest and highest, one head disabled": ["{lowest} to {highest}", "{paper[1]} to {paper[2]}"],
    "mean change, points": "{mean:+.2}",
    "heads with a significant change": "{certain}",
    WORDS[NEEDED]: "{needed}",
    WORDS[DISPENSABLE]: "{dispensable}",
    WORDS[BETTER]: "{better}",
    "paper (figure)": "{theirs[0]}: {theirs[1]} to {theirs[2]}",
}
_BY_LAYER: Columns = {
    "task": "{task}",
    "examples": "{examples:,}",
    "score": "{score}",
    "change by layer, points": "{change:+.1}",
    "paper (figure)": "{theirs:+.1}",
}


def disabled(
    models: Studied,
    kind: str,
    mode: str,
    name: str,
    caption: str,
    scores: Mapping[str, Sequence[float]] = _NONE,
    whole: Mapping[str, Sequence[float]] = _NONE,
) -> Section | None:
    """Scores with one head, or all heads of one layer, disabled, by task; None if no run disabled all of them.

    Args:
        models: The models.
        kind: ``head`` or ``layer``.
        mode: The paper's mode of disabling; if no model has it, any mode.
        name, caption: Of the figure.
        scores: The paper's scores by task: of the intact model, and the lowest and highest with one head disabled; or
            with each layer disabled.
        whole: The paper's scores of the intact model by task, for layers.
    """
    measured = models.effects(kind, mode)
    if not measured:
        return None
    of_heads, by_title = kind == "head", {group.title: effect for group, effect in measured}
    paragraphs = _other_tasks(scores, {group.task for group, _ in measured})
    lines: list[dict[str, Any]] = []
    for group, effect in measured:
        theirs: Any = scores.get(group.task)
        if theirs and whole:
            theirs = 100 * (np.array(theirs) - whole[group.task][0])
        numbers = _heads_of(effect) if of_heads else {"change": 100 * effect.delta_RLH[:, :, 0].mean(axis=0)}
        facts = {"task": group.name, "examples": effect.count, "seeds": len(effect.delta_RLH)}
        lines.append({**facts, "score": float(effect.baseline_R.mean()), **numbers, "theirs": theirs})
    if of_heads and scores and not any(line["theirs"] for line in lines):
        # Rows of the paper's own tasks are more informative than a list of their names.
        paragraphs = []
        lines += [{"task": f"paper: {task}", "paper": [float(n) for n in theirs]} for task, theirs in scores.items()]
    if of_heads:
        means = "; numbers of heads are means" * any(len(effect.delta_RLH) > 1 for _, effect in measured)
        rate = level_text(max(effect.false_discovery_rate for _, effect in measured))
        told = (
            f"One head disabled, {{seeds}}{means}; significant at a false discovery rate of {rate}, regardless of size"
        )
        figure = heads_figure(by_title, "Change of score when one head is disabled")
        columns, alt = _BY_HEAD, "Heatmaps of changes by layer and head."
    else:
        figure = layers_figure(by_title, "Change of score when a whole layer is disabled")
        told, columns, alt = "Change of score by disabled layer, from layer 0", _BY_LAYER, "Bar charts by layer."
    block = FigureBlock(name, figure, caption, alt)
    return Section(paragraphs=paragraphs, tables=tables(lines, columns, told), figures=[block])


def _heads_of(effect: Effects) -> dict[str, Any]:
    """The extreme scores with one head disabled, and the mean number of heads with each verdict over seeds."""
    score_LH = effect.baseline_R.mean() + effect.delta_RLH.mean(axis=0)
    gain_RLH = effect.certain_RLH & (effect.delta_RLH > 0)
    masks = {
        "certain": effect.certain_RLH,
        "needed": effect.needed_RLH,
        "dispensable": effect.dispensable_RLH & ~gain_RLH,
        "better": gain_RLH,
    }
    seeds = len(effect.delta_RLH)
    counts = {name: int(mask_RLH.sum()) for name, mask_RLH in masks.items()}
    return {
        "what": effect.what,
        "lowest": float(np.nanmin(score_LH)),
        "highest": float(np.nanmax(score_LH)),
        "mean": 100 * float(np.nanmean(effect.delta_RLH)),
        **{name: f"{round(count / seeds, 1)}" if seeds > 1 else f"{count}" for name, count in counts.items()},
    }


def compared(models: Studied, experiment: str, figures: Sequence[str] | None = None) -> Section | None:
    """The comparison page's section on an experiment in the fine-tuned models; None if no run has it.

    Args:
        models: The models.
        experiment: The experiment.
        figures: As in :func:`presented`.
    """
    replicates = {group.name: Replicates(views) for group in models.tuned if (views := group.views(experiment))}
    presenter = _presenter(models, experiment)
    section = presenter.comparison(Comparison(replicates)) if presenter and replicates else None
    return None if section is None else _picked(section, figures)


def presented(
    models: Studied,
    experiment: str,
    figures: Sequence[str] | None = None,
    *,
    tuned: bool = False,
    tables: bool = True,
) -> Section | None:
    """The run page's section on an experiment, for the first state of the models; None if no run has it.

    Args:
        models: The models.
        experiment: The experiment.
        figures: The figures to show, with their method notes; null for the whole section.
        tuned: Whether to show a fine-tuned model.
        tables: Whether to show its tables.
    """
    presenter = _presenter(models, experiment)
    for state in states(models, experiment):
        if presenter is None or (tuned and state.pretrained) or (section := presenter.section(state.view)) is None:
            continue
        section = _picked(section, figures)
        named = [replace(table, caption=f"{table.caption} ({state.name})") for table in section.tables]
        drawn = [replace(block, caption=f"{state.name}: {block.caption}") for block in section.figures]
        return replace(section, tables=named if tables else [], figures=drawn)
    return None


def _presenter(models: Studied, experiment: str) -> Presenter | None:
    """The presenter of an experiment; None if no run has it."""
    declarations = (run.experiments[experiment][0] for run in models.runs if experiment in run.experiments)
    return next((presenter_of(declaration) for declaration in declarations), None)


def _picked(section: Section, figures: Sequence[str] | None) -> Section:
    """The content of a section of another page, or some of its figures with their method notes."""
    if figures is None:
        findings = [*section.findings, *section.paragraphs]
        return Section(paragraphs=findings, tables=section.tables, figures=section.figures)
    return Section(paragraphs=section.paragraphs, figures=[block for block in section.figures if block.name in figures])


_READABLE = 30
"""Longest text, in tokens, for which all tokens can be labelled."""


def maps(
    models: Studied,
    columns: Mapping[str, Sequence[str]],
    name: str,
    title: str,
    caption: str,
    *,
    tasks: Sequence[str] = (),
    lowest: bool = False,
    before: bool = False,
    any_of: bool = False,
) -> Section | None:
    """A captured text in the head with the highest number in each column; None without maps of a model with the
    columns.

    A frame marks the first tokens of a word and of its syntactic head, for the relation that a column is named after.

    Args:
        models: The models.
        columns: Description of a head -> its column, ``measure/column``, and the unit if its number is a share.
        name, title, caption: Of the figure.
        tasks: Tasks whose fine-tuned models are shown, each with a text; empty for the first state overall.
        lowest: Whether to show the head with the lowest number instead.
        before: Whether to also show the map before fine-tuning.
        any_of: Whether a model with some of the columns is enough.
    """
    panels: list[MapPanel] = []
    told = []
    measures = list(dict.fromkeys(column.partition("/")[0] for column, *_ in columns.values()))
    for state in states(models, measures[0]):
        views = {
            measure: other.view
            for measure in measures
            for other in states(models, measure)
            if (other.name, other.view.run.folder) == (state.name, state.view.run.folder)
        }
        measured = {
            label: (*column.partition("/")[::2], *unit)
            for label, (column, *unit) in columns.items()
            if (view := views.get(column.partition("/")[0])) is not None and view.has(column.partition("/")[2])
        }
        kept = _kept_text(state, {column for _, column, *_ in measured.values()}, before=before)
        chosen = state.task in tasks and not state.pretrained if tasks else not panels
        if kept is None or not measured or not (any_of or len(measured) == len(columns)) or not chosen:
            continue
        example, stages = kept
        heads = []
        for label, (measure, column, *unit) in measured.items():
            value_LH = views[measure].value(column)
            at = highest(-value_LH if lowest else value_LH)
            share = f": {number(100 * float(value_LH[at]), 0)} % {unit[0]}" if unit else f": {number(value_LH[at], 2)}"
            heads.append(f"{label}, {head_label(*at)}{share}")
            pairs = [(word, head) for word, head, relation in example.relations if relation == column]
            for stage, map_LHQK in stages.items():
                row = f"{state.name}, {head_label(*at)}" if before else ""
                panel = stage if before else f"{label}\n{head_label(*at)}"
                panels.append(MapPanel(row, panel, map_LHQK[at], example.tokens, marked=pairs))
        told.append(f"{state.name}, one text: “{' / '.join(example.texts)}” ({example.label}); {'; '.join(heads)}")
    if not panels:
        return None
    block = FigureBlock(
        name, gallery(panels, title=title), f"{caption}. {'. '.join(told)}.", "Attention maps of heads."
    )
    return Section(figures=[block])


def _kept_text(
    state: State, relations: Collection[str], *, before: bool
) -> tuple[CapturedExample, dict[str, Any]] | None:
    """A readable text with its maps ``[L, H, Q, K]`` by stage: the one with the most relations, then the longest."""
    folder = state.view.run.captures
    steps = read_steps(folder)
    examples = [example for example in read_examples(folder) if len(example.tokens) <= _READABLE]
    # Maps of step 0 belong to the model before fine-tuning.
    if not steps or not examples or (0 not in steps and (state.pretrained or before)):
        return None
    named = {"before fine-tuning": 0, "after fine-tuning": max(steps)}
    taken = list(named) if before else [list(named)[not state.pretrained]]

    def telling(example: CapturedExample) -> tuple[int, int]:
        return len({relation for _, _, relation in example.relations} & {*relations}), len(example.tokens)

    example = max(examples, key=telling)
    return example, {stage: read_maps(steps[named[stage]])[example.index].astype(np.float64) for stage in taken}
