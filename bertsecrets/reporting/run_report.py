"""The report of a run: a page made from the run's folder, without a model."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from bertsecrets.errors import UserError
from bertsecrets.present.grid import SHORT, compared_section
from bertsecrets.present.presenter import presenter_of
from bertsecrets.present.report.content import (
    CSV,
    PARQUET,
    Colouring,
    Grid,
    HeadColumn,
    HeadHistory,
    HeadsTogether,
    Highlights,
    Overview,
    Report,
    Section,
    Table,
)
from bertsecrets.present.report.page import save_figures, write_report
from bertsecrets.reporting.joins import JOINS, READ_TASK
from bertsecrets.reporting.long_table import FILE, findings_content
from bertsecrets.reporting.overview import DisabledHeads, next_steps, overview, scores_in_words, together_in_words
from bertsecrets.results.captures import moment_name, read_steps
from bertsecrets.results.files import on_page
from bertsecrets.results.formatting import MISSING, counted, low_to_high, lower_first, number, p_value, upper_first
from bertsecrets.results.rows import RecordError
from bertsecrets.results.run import CAPTURES, Declaration, Run, controls_in_words
from bertsecrets.results.scores import RunScores, Score
from bertsecrets.results.table import HeadTable, MissingColumnError
from bertsecrets.results.views import MeasureView


@dataclass(frozen=True)
class RunReport:
    """The content of a run's report.

    Args:
        report: The page.
        scores: Scores of the run's last validation.
        highlights: Heads highlighted by the first experiment that highlights any; None without one.
        scalars: Summary values for W&B.
        curves: Curves for W&B, see :meth:`bertsecrets.results.experiment.Experiment.curves`.
        heads: Everything that the run knows about each head; None without a measured head.
        printed: Sentences for the terminal: for an analysis the notes, the answer and the first finding of each
            experiment; for training the first note, else the answer.
    """

    report: Report
    scores: RunScores
    highlights: Highlights | None
    scalars: Mapping[str, float | str]
    curves: Mapping[str, Sequence[Mapping[str, float]]]
    heads: HeadsTogether | None
    printed: Sequence[str] = ()

    def write(self, run: Run) -> None:
        """Write the page, its findings as JSON, its figures and the table of all heads to the run's folder.

        Raises:
            UserError: If a file cannot be written.
        """
        save_figures(self.report.figures, run.figures)
        if self.heads is not None:
            self.heads.write(run.folder)
        run.write_json(run.folder / FILE, findings_content(run, self.report, self.scores))
        write_report(run.report_path, self.report)


def views_of(run: Run, table: HeadTable | None = None) -> dict[str, tuple[Declaration, MeasureView]]:
    """The experiments of a run with their numbers, by name; measures without a declaration come last.

    Args:
        run: The run.
        table: The run's head table; None to read it.
    """
    table = run.table() if table is None else table
    declarations = {declaration.name: declaration for declaration in run.declarations()}
    for name in dict.fromkeys(table.table["measure"].to_pylist()):
        declarations.setdefault(name, Declaration(name, name.replace("_", " ").capitalize(), ""))
    return {name: (declaration, MeasureView(run, declaration, table)) for name, declaration in declarations.items()}


def report_run(run: Run, heads: int, figures: int | None = None) -> RunReport:
    """The report of a run.

    Args:
        run: A run with scores, tables and the configuration in its folder.
        heads: Number of highlighted heads in the map gallery.
        figures: Maximum number of figures, taking the first of each section before any second; None for all.

    Raises:
        UserError: If the folder's scores, tables or configuration cannot be read.
    """
    scores = RunScores.read(run.scores_path)
    experiments = views_of(run)
    sections: dict[str, Section] = {}
    scalars: dict[str, float | str] = {}
    curves: dict[str, Sequence[Mapping[str, float]]] = {}
    of_task: set[str] = set()
    damaged: set[str] = set()
    for name, (declaration, view) in experiments.items():
        presenter = presenter_of(declaration)
        of_task |= {name} if view.shown.reads_task else set()
        try:
            section = presenter.section(view)
            scalars |= presenter.scalars(view)
            curves |= presenter.curves(view)
        except MissingColumnError as error:
            advice = f"It was measured by another version ({error}); repeat the analysis to see it here."
            section = Section(view.title, paragraphs=[advice])
        except RecordError as error:
            section = Section(view.title, paragraphs=[str(error)])
            damaged.add(name)
        if section is not None:
            sections[name] = section
    experiments = {name: experiment for name, experiment in experiments.items() if name not in damaged}
    views = {name: view for name, (_, view) in experiments.items()}
    compared = {f"{name}, compared": compared_section(view) for name, view in views.items() if view.compared}
    config = run.config()
    # That of a training is a section: when to save one.
    analysis = isinstance(config.get("checkpoint"), str)
    nothing_learned = scores.learned is False
    joins = [
        section
        for join in (JOINS if len(views) > 1 else ())
        if not (nothing_learned and join in READ_TASK) and (section := join(views, sections, heads)) is not None
    ]
    if nothing_learned:
        sections = {
            name: _not_interpreted(section) if name in of_task else section for name, section in sections.items()
        }
    disabled = None if nothing_learned or "ablation" in damaged else DisabledHeads.of(run)
    together = heads_together(experiments)
    steps = next_steps(run, disabled, views, learned=scores.learned)
    # The figure of an analysis such as pruning is more informative than a grid of heads.
    leads = {name: section for name, section in sections.items() if analysis and (section.summary or section.steps)}
    notes, picture = [], None
    if leads:
        steps = [*(step for section in leads.values() for step in section.steps), *steps]
        notes = [scores_in_words(scores)] * (together is not None)
        notes += [] if disabled is None else together_in_words(disabled)
        title = _analysis_title(run, views.values(), list({**leads, **sections}.values()))
    else:
        described = next(iter(sections.values()), Section()).descriptive
        if analysis and disabled is None and described and not nothing_learned:
            # Differences from another model say more than which head has the highest number.
            leads = dict(list(compared.items())[:1])
        ordered = list({**leads, **sections}.values())
        picture = _picture(run, scores, disabled, together, views.values(), ordered, len(leads))
        if disabled is not None:
            title = disabled.title()
        elif analysis:
            title = _analysis_title(run, views.values(), ordered)
        elif nothing_learned:
            title = (
                f"{run.model} does not significantly beat the majority baseline on {run.task}; its heads are not "
                "interpreted."
            )
        else:
            title = f"What fine-tuning on {run.task} changed in {run.model}"
    others = [section for name, section in {**sections, **compared}.items() if name not in leads]
    parts = [*leads.values(), *joins, *others] if leads else [*others, *joins]
    singled = {name: section.highlights for name, section in sections.items() if section.highlights is not None}
    highlights = next(iter(singled.values()), None)
    # The head that matters most, else the one that is highlighted first.
    start = (highlights.heads[0].layer, highlights.heads[0].head) if highlights and highlights.heads else (0, 0)
    start = start if disabled is None else disabled.start
    in_order = [part for section in parts for part in section.flat()]
    if any(part.viewer is not None for part in in_order):
        followed = _histories(views.values(), read_steps(run.captures))
        in_order = [
            part if part.viewer is None else replace(part, viewer=replace(part.viewer, start=start, histories=followed))
            for part in in_order
        ]
    of_heads = [] if together is None else [heads_section(together, None if disabled is None else disabled.by_need)]
    of_scores = [_scores_section(scores)] if scores.lines() else []
    # An analysis leads with what was asked for.
    in_order += [*of_heads, *of_scores] if analysis else [*of_scores, *of_heads]
    if scores.notes:
        in_order.append(Section("Left out or unusual in the data", paragraphs=scores.notes))
    drawn, left_out = _first_figures(in_order, figures)
    folder = (config.get("trained") or {}).get("folder") if analysis else None
    origin = Path(folder) if isinstance(folder, str) else run.folder
    # The report of the run whose checkpoint was analysed.
    training = "" if origin == run.folder else address_of(origin / run.report_path.name, run.folder)
    report = Report(
        title=title,
        subtitle=run.name,
        facts=_facts(run, scores, config),
        notes=[
            *([_nothing_learned(scores)] if nothing_learned else []),
            *notes,
            *(
                f"Scores are of the weights at step {scores.step}; {lower_first(view.title)} is of the weights at step "
                f"{view.step}."
                for view in map(views.__getitem__, singled)
                if view.step not in (None, scores.step)
            ),
        ],
        links=[(f"Drift and gradients during training: the report of {run.name}", training)] if training else [],
        maps=training if (origin / CAPTURES).is_dir() else "",
        sections=[*drawn, _reading_section(run, left_out)],
        overview=picture,
        steps=steps,
    )
    # Other titles are the beginning of a finding, or a subject.
    own = disabled is not None or any(title == section.summary for section in sections.values())
    printed = [*(report.notes if analysis else report.notes[:1]), *([title] * own)]
    printed = list(dict.fromkeys([*printed, *firsts({**leads, **sections}.values())])) if analysis else printed[:1]
    return RunReport(report, scores, highlights, scalars, curves, together, printed)


def _histories(views: Iterable[MeasureView], captured: Collection[int]) -> list[HeadHistory]:
    """The first column of each experiment with several validations, for the viewer."""
    columns = [(view, column) for view in views for column in view.columns[:1]]
    histories = [(f"{view.title}: {column.label}", dict(view.history(column.name))) for view, column in columns]
    return [
        HeadHistory(label, {moment_name(step): value_LH for step, value_LH in history.items()})
        for label, history in histories
        # What is recorded between validations has a chart of its own.
        if len(history) > 1 and history.keys() <= set(captured)
    ]


def _first_figures(sections: Sequence[Section], most: int | None) -> tuple[list[Section], int]:
    """The sections with at most ``most`` figures, the first of each before any second; and the number omitted."""
    # By rank within the section first: every section keeps its first figure before any has a second.
    ranks = sorted((rank, index) for index, section in enumerate(sections) for rank in range(len(section.figures)))
    shown = set(ranks if most is None else ranks[:most])
    drawn = [
        replace(section, figures=[block for rank, block in enumerate(section.figures) if (rank, index) in shown])
        for index, section in enumerate(sections)
    ]
    return drawn, len(ranks) - len(shown)


def address_of(page: Path, folder: Path) -> str:
    """Address of a page relative to a folder, for a link; empty if the page does not exist."""
    return quote(Path(os.path.relpath(page.resolve(), folder.resolve())).as_posix()) if page.is_file() else ""


def _nothing_learned(scores: RunScores) -> str:
    name, first = next(iter(scores.sets.items()))
    line = scores.lines()[0]
    examples = f"{counted(first.count, 'example')} of {name}"
    return (
        f"The model learned nothing measurable on {examples}: {line.name} is {number(line.value)}, not significantly "
        f"better than always answering “{scores.constant_answer}”, which has {_constant(line)} "
        f"(one-sided p = {p_value(first.p_constant)}). Its heads are not interpreted."
    )


def _not_interpreted(section: Section) -> Section:
    """A section without its findings but with its numbers."""
    return replace(
        section,
        findings=(),
        summary="",
        paragraphs=["Not interpreted: the model does not significantly beat the majority baseline."],
        highlights=None,
        head=None,
        parts=[_not_interpreted(part) for part in section.parts],
    )


def _facts(run: Run, scores: RunScores, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("model", run.model), ("task", run.task)]
    if run.foreign is not None:
        facts.append(("checkpoint", f"{run.foreign}, trained elsewhere"))
    else:
        facts += [
            ("initialisation", run.init.replace("_", " ")),
            ("seed", str(config.get("seed", "–"))),
            ("optimiser steps", str(scores.step)),
        ]
    facts.append(("time", f"{scores.seconds:.0f} s"))
    facts += [("control", control) for control in controls_in_words(config)]
    if "optimizer" in config:
        try:
            rate = config["optimizer"]["learning_rate"]
            facts += [
                ("learning rate", f"{rate:g}" if isinstance(rate, float) else str(rate)),
                ("batch size", str(config["task"]["training"]["batch_size"])),
                ("epochs", str(config["trainer"]["max_epochs"])),
            ]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"'{run.config_path}' is not the configuration of a training run ({error}); restore it."
            ) from error
    return facts


def _constant(line: Score) -> str:
    return number(line.baseline) if np.isfinite(line.baseline) else "no defined score"


def _scores_section(scores: RunScores) -> Section:
    lines = scores.lines()
    first = lines[0]
    count = next(iter(scores.sets.values())).count
    value = (
        f"is {number(first.value)}"
        if np.isfinite(first.value)
        else "is undefined because all predictions or all labels are equal"
    )
    better = {name: entry.p_constant for name, entry in scores.sets.items() if np.isfinite(entry.p_constant)}
    tested = (
        [
            "One-sided p-value that the model is no better than the majority baseline: "
            f"{', '.join(f'{name} {p_value(p)}' for name, p in better.items())} (McNemar's exact test; for "
            "correlations a permutation test)."
        ]
        if better
        else []
    )
    rows = [
        [
            line.name,
            number(line.value),
            low_to_high(line.low, line.high),
            number(line.baseline),
            number(line.value - line.baseline, signed=True),
        ]
        for line in lines
    ]
    names = {line.name.rpartition("/")[2] for line in lines}
    wilson = " (accuracy: Wilson's interval)" * ("accuracy" in names)
    of_f1 = " If that class is the negative one, its F1 is 0 and easy to beat: compare the accuracy instead."
    of_f1 *= {"f1", "accuracy"} <= names
    return Section(
        "Scores",
        [
            f"On {counted(count, 'development example')} the model's {first.name} {value}; always answering "
            f"“{scores.constant_answer}” has {_constant(first)}."
        ],
        [
            "The majority baseline always answers with the most frequent class of the first set, or its mean score. "
            f"The heads of a model that does not beat it are not interpreted.{of_f1}",
            *tested,
        ],
        [Table(["metric", "model", "95 % interval", "majority baseline", "difference"], rows, f"Scores{wilson}")],
    )


def _reading_section(run: Run, left_out: int) -> Section:
    """How to read the page, and how to draw the omitted figures."""
    further = (
        [f"python -m bertsecrets report run={on_page(run.folder)} draws {counted(left_out, 'further figure')}."]
        if left_out
        else []
    )
    return Section(
        "How to read this page",
        paragraphs=[
            *further,
            "Layers and heads are counted from 0; layer 0 is next to the input. The papers count from 1: their head "
            "12-9 is layer 11 · head 8 here.",
            "The numbers of this page are in the run folder: heads.parquet (measures of each head), ablation.parquet "
            "(effects of disabling) and scores.json. A difference between two heads of less than about two standard "
            "errors may be noise.",
        ],
    )


def firsts(sections: Iterable[Section]) -> list[str]:
    """The first finding of each section that has one."""
    findings = ([line for part in section.flat() for line in part.findings] for section in sections)
    return [lines[0] for lines in findings if lines]


def _picture(
    run: Run,
    scores: RunScores,
    disabled: DisabledHeads | None,
    heads: HeadsTogether | None,
    views: Iterable[MeasureView],
    sections: Sequence[Section],
    leads: int,
) -> Overview | None:
    """The grid of heads; without verdicts, the first findings stand next to it.

    Args:
        leads: How many of the sections are on differences from another model, by which heads are coloured first.
    """
    named = (part.head for section in sections for part in section.flat() if part.head is not None)
    screen = overview(run, scores, disabled, heads, next(named, None))
    if screen is None or disabled is not None:
        return screen
    differences = []
    for view in views if leads else ():
        if view.compared and not view.of_layers:
            other = next(iter(view.compared))
            column, change = view.widest_change(other)
            label = f"{view.title}: {column.label}, difference from {SHORT[other]}"
            differences += [Colouring(label, change.delta_LH, digits=2, signed=True)] * change.moves
    about = {
        (layer, head): [*(f"{one.label} {one.texts[layer][head]}." for one in differences), *lines]
        for (layer, head), lines in screen.about.items()
    }
    notes = [*firsts(sections)[: 1 + leads], *screen.notes]
    return replace(screen, colourings=[*differences, *screen.colourings], about=about, notes=notes)


def _analysis_title(run: Run, views: Iterable[MeasureView], sections: Sequence[Section]) -> str:
    """The answer of an analysis in a sentence, else its subject.

    Measures with more to report than their highest head take precedence.
    """
    news = [section.news for section in sections if section.news]
    told = [section for section in sections if section.findings]
    if news and told and told[0].descriptive:
        return f"{upper_first('; '.join(news[:2]))}."
    titles = [view.title for view in views if view.title]
    subject = titles[0] if len(titles) == 1 else "Attention heads"
    return (
        next((section.summary for section in sections if section.summary), "")
        or next((section.headline for section in told), "")
        or f"{subject}: {run.model} on {run.task}"
    )


def heads_section(table: HeadsTogether, verdicts: Mapping[tuple[int, int], str] | None) -> Section:
    """The section of a page, with the verdict on each head, the most needed first."""
    return Section(
        "All heads",
        paragraphs=[
            "One row per head; click it to open the head in the viewer, if the run captured maps. All "
            f"{len(table.columns)} columns are in {CSV} and {PARQUET} next to this page."
        ],
        joint=replace(table, verdicts=verdicts or {}),
    )


def heads_together(experiments: Mapping[str, tuple[Declaration, MeasureView]]) -> HeadsTogether | None:
    """Join all experiments of a run head by head; None if none has a number per head.

    Args:
        experiments: The experiments by name, with their numbers.
    """
    columns: list[HeadColumn] = []
    for declaration, view in experiments.values():
        numbers = [column for column in view.columns if column.role == "value" and view.has(column.name)]
        grids = {
            column: view.value(column.name)
            for column in numbers
            # Numbers of whole layers belong to no head.
            if not view.rows.select(column=column.name, stage=view.stage, step=view.step).table["head"].null_count
        }
        try:
            texts = presenter_of(declaration).classes(view)
        except RecordError:
            # Its section says so.
            texts = {}
        columns += [
            HeadColumn(view.name, view.title, heading, heading, np.array(text_LH)) for heading, text_LH in texts.items()
        ]
        columns += [
            HeadColumn(view.name, view.title, column.name, column.label, value_LH, view.shown.effects)
            for column, value_LH in grids.items()
        ]
    if not columns:
        return None
    layers, heads = (max(column.value_LH.shape[axis] for column in columns) for axis in (0, 1))
    padded = []
    for column in columns:
        # Undefined numbers, or dashes, stand for heads that a grid lacks.
        lacking = np.nan if column.is_number else MISSING
        value_LH: Grid = np.full((layers, heads), lacking, column.value_LH.dtype)
        value_LH[tuple(map(slice, column.value_LH.shape))] = column.value_LH
        padded.append(replace(column, value_LH=value_LH))
    return HeadsTogether(padded)
