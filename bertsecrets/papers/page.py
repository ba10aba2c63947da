"""Pages made from runs besides reports and comparisons: ordered sections of statements, figures and tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import Field

from bertsecrets.errors import UserError, choices
from bertsecrets.models.spec import INITIAL as BEFORE_TRAINING
from bertsecrets.papers.ledger import (
    STORED,
    answer,
    counts_in_words,
    objectives_in_words,
    overview,
    statement_sections,
    steps,
    stored,
    unlearned_in_words,
    versions_in_words,
)
from bertsecrets.papers.models import Studied
from bertsecrets.papers.names import is_path, page_files
from bertsecrets.papers.shows import function
from bertsecrets.papers.statements.judge import (
    UNMEASURED,
    UNTOLD,
    VERDICTS,
    Entry,
    counted,
    expected_false,
    judged,
)
from bertsecrets.papers.statements.statement import check_names, files, read_keys
from bertsecrets.present.report.content import Report, Section, Table
from bertsecrets.present.report.page import save_figures, write_report
from bertsecrets.reporting.runs import FinishedRun, left_out
from bertsecrets.results.files import write_text
from bertsecrets.settings import CONF, Settings

Show = Callable[..., Section | None]
"""Creates the figures and tables of a section from the models and its settings; None if no run has the data."""

_SECTION = "section"
"""Name that refers to the figures and tables of another page's section."""


class SectionSettings(Settings):
    """A section of a page.

    Args:
        title: The title.
        paragraphs: Text before the statements.
        statements: Names of the statements, in order.
        show: Figures and tables: for each, the function (``show``) and its settings, or ``section``, with ``page`` and
            the start of a ``title`` there.
        missing: What to run if no run has data for the section; empty to omit the section.
    """

    title: str = Field(min_length=1, description="a text")
    paragraphs: list[str] = Field(default=[], description="a list of texts")
    statements: list[str] = Field(default=[], description="a list of names of statements")
    show: list[dict[str, Any]] = Field(default=[], description="a list of functions with their settings")
    missing: str = Field(default="", description="a sentence, or an empty text")


class PageSettings(Settings):
    """The file of a page.

    Args:
        file: File name of the page.
        title: Title of the page.
        citation: Authors and year, or the subject of the page.
        model: Our name of the paper's model; empty for a page without published numbers.
        other_model: A sentence on the published numbers, shown if no run uses that model; ``{models}`` is replaced by
            the runs' models.
        published: The paper's numbers by name, for functions that show them next to ours.
        sizes_may_differ: Whether models of different sizes can be combined.
        overview: Name of a section in the summary table of all sections at the top; empty for no such table.
        every_statement: Whether each statement has a section, instead of ``sections``, and the title gives their
            verdicts, if there are any.
        sections: The sections, in order.
        reading: How to read the page.
    """

    file: str = Field(min_length=1, pattern=r"^[\w-]+\.html$", description="the name of an HTML file")
    title: str = Field(min_length=1, description="a text")
    citation: str = Field(min_length=1, description="a text")
    model: str = Field(default="", description="the name of a model, or an empty text")
    other_model: str = Field(default="", description="a sentence, or an empty text")
    published: dict[str, Any] = Field(default={}, description="numbers by name")
    sizes_may_differ: bool = Field(default=False, description="true or false")
    overview: str = Field(default="", description="a word, or an empty text")
    every_statement: bool = Field(default=False, description="true or false")
    sections: list[SectionSettings] = Field(default=[], description="a list of sections")
    reading: list[str] = Field(default=[], description="a list of texts")


@dataclass(frozen=True)
class Page:
    """A page defined by its file.

    Args:
        settings: Its content.
        path: Its file.
        functions: Whether its sections may call functions outside the package; true for installed packages, not for
            files.
        names: On a page of every statement, the ids or paths of those to show; empty for all of the package and of
            installed packages.
    """

    settings: PageSettings
    path: Path
    functions: bool = False
    names: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return self.settings.file

    @property
    def sizes_may_differ(self) -> bool:
        return self.settings.sizes_may_differ

    def write(self, runs: Sequence[FinishedRun], folder: Path, unfinished: Sequence[str] = ()) -> Path:
        """Write the page and its figures into a folder; returns the page.

        Args:
            runs: At least one finished run.
            folder: Created if missing.
            unfinished: Names of the unfinished runs, which are skipped.

        Raises:
            UserError: If a statement is unknown or invalid, or refers to a column that does not exist, or the page
                refers to a function that does not exist, or to settings that do not fit.
        """
        report, entries = self.report(runs, unfinished)
        save_figures(report.figures, folder / "figures")
        write_report(folder / self.file, report)
        if self.settings.every_statement:
            write_text(folder / STORED, json.dumps(stored(entries, runs), indent=1, ensure_ascii=False))
        return folder / self.file

    def report(self, runs: Sequence[FinishedRun], unfinished: Sequence[str] = ()) -> tuple[Report, list[Entry]]:
        """The content of the page, and its statements.

        Args:
            runs, unfinished: As in :meth:`write`.

        Raises:
            UserError: As :meth:`write`.
        """
        check_names(self.names)
        models, judgement = judged(runs, [name for name in self.names if is_path(name)])
        settings, every = self.settings, self.settings.every_statement
        chosen = [Path(name).stem if is_path(name) else name for name in self.names] or judgement
        names = chosen if every else [name for part in settings.sections for name in part.statements]
        entries = [judgement[name] for name in dict.fromkeys(names)]
        # Statements with a verdict come first; explicitly listed statements keep their order.
        in_order = sorted(entries, key=lambda entry: 0 if self.names else VERDICTS.index(entry.verdict))
        parts = [section for part in settings.sections if (section := self._section(part, models, judgement))]
        model_names = sorted({group.model for group in models.groups} | {model for model, _ in models.parts_before()})
        seeds = sorted({run.seed for run in runs if run.source != BEFORE_TRAINING})
        differs = settings.model and settings.model not in model_names
        # The rate is controlled over all statements, not a subset.
        cells = [cell for entry in entries for cell in entry.cells] if every and not self.names else []
        answered, all_sections = list[str](), list[Section]()
        if name := settings.overview:
            told = sum(section.summary not in ("", UNTOLD, UNMEASURED) for section in parts)
            answered = [f"{told} of {len(parts)} {name}s {'has' if told == 1 else 'have'} an answer from these runs."]
            rows = [[section.title, section.summary or "see its tables"] for section in parts]
            # The summary is the first section.
            links = [f"#section-{index + 2}" for index in range(len(parts))]
            table = Table([name, "answer"], rows, f"Each {name} and its answer", links=links)
            all_sections = [Section(f"All {name}s", tables=[table], unfolded=True)]
        report = Report(
            title=(answer(entries) if every else "") or settings.title,
            subtitle=f"{settings.citation}, from {len(runs)} run{'s' * (len(runs) > 1)}",
            facts=[
                ("tasks", ", ".join(sorted({str(run.config["task"]["name"]) for run in runs}))),
                ("models", ", ".join(model_names)),
                *([("seeds", ", ".join(map(str, seeds)))] if seeds else []),
            ],
            notes=[
                *answered,
                *(counts_in_words(entries) if entries else []),
                *([expected_false([(cell.p_value, cell.over_seeds) for cell in cells])] if cells else []),
                *unlearned_in_words(models),
                *objectives_in_words(models),
                *(versions_in_words(runs) if every else []),
                *([settings.other_model.format(models=", ".join(model_names))] if differs else []),
                *left_out(unfinished),
            ],
            sections=[
                *all_sections,
                *parts,
                *(statement_sections(in_order) if every else []),
                Section("How to read this page", paragraphs=[*settings.reading, *([] if every else [_VERDICTS])]),
            ],
            steps=steps(in_order) if every else (),
            wide=every,
        )
        return report, entries

    def _section(self, part: SectionSettings, models: Studied, judgement: Mapping[str, Entry]) -> Section | None:
        entries = [judgement[name] for name in part.statements]
        shows = self.shown(part, models)
        tables = [table for show in shows for table in show.tables]
        figures = [block for show in shows for block in show.figures]
        of_parts = [*(entry.commands for entry in entries), *(show.commands for show in shows)]
        commands = list(dict.fromkeys(chain(*of_parts)))
        if not any(map(_measured, entries)) and not tables and not figures:
            if not part.missing and not commands:
                return None
            lacking = f"No run measured this. {part.missing}".rstrip()
            return Section(part.title, paragraphs=[lacking], commands=commands, summary=UNMEASURED)
        # Why statements with a number are undecided, once for each reason of a statement.
        reasons = [
            f"“{entry.statement.statement}” cannot be told ({cell.subject}): {cell.reason}"
            for entry in entries
            for cell in entry.where(UNTOLD)
            if cell.finding is not None and cell.reason == entry.statement.one_sided != ""
        ]
        return Section(
            part.title,
            paragraphs=[
                *part.paragraphs,
                *(text for show in shows for text in show.paragraphs),
                *dict.fromkeys(reasons),
            ],
            tables=[*([overview(entries, "Statements, judged")] if entries else []), *tables],
            figures=figures,
            commands=commands,
            summary=_summary(entries, shows),
        )

    def shown(self, part: SectionSettings, models: Studied) -> list[Section]:
        """The figures and tables of a section of the page."""
        shown: list[Section | None] = []
        for settings in part.show:
            name, values = str(settings.get("show", "")), {key: settings[key] for key in settings if key != "show"}
            if name == _SECTION:
                other, title = str(values.get("page")), str(values.get("title"))
                if other not in page_files():
                    raise UserError(f"'{self.path}' shows a section of '{other}'; {choices(other, page_files())}.")
                page = read_page(page_files()[other])
                titles = {part.title: part for part in page.settings.sections}
                fitting = [part for own, part in titles.items() if own.startswith(title)]
                if len(fitting) != 1:
                    raise UserError(
                        f"'{self.path}' shows the section '{title}' of '{other}'; {choices(title, titles)}."
                    )
                shown += page.shown(fitting[0], models)
                continue
            missing = f"'{self.path}' shows '{name}', which does not exist"
            show: Show = function(name, "shows", missing, foreign=self.functions)
            try:
                shown.append(show(models, **values))
            except TypeError as error:
                # An unknown setting of the function, or a value of another type.
                raise UserError(
                    f"Section '{part.title}' of '{self.path}': {error}; correct the settings of its figures."
                ) from error
        return [section for section in shown if section is not None]


def _measured(entry: Entry) -> bool:
    return any(cell.finding is not None for cell in entry.cells)


def _summary(entries: Sequence[Entry], shows: Sequence[Section]) -> str:
    """A summary of the figures, then the verdicts with their numbers of statements; without either, the reason."""
    verdicts, summaries = [entry.verdict for entry in entries], [show.summary for show in shows if show.summary]
    told = [summary for summary in summaries if summary not in (UNTOLD, UNMEASURED)]
    if set(verdicts) - {UNTOLD}:
        several = f"{len(verdicts)} statements: {', '.join(counted(verdicts))}"
        told.append(several if len(verdicts) > 1 else f"“{entries[0].statement.statement}” {verdicts[0]}")
    untold = UNTOLD if any(map(_measured, entries)) else next(iter(summaries), "")
    return "; ".join(told) or untold


def read_page(path: Path, *, functions: bool = False) -> Page:
    """The page of a file.

    Raises:
        UserError: If it cannot be read, is not a page, or refers to a statement that does not exist.
    """
    content = read_keys(path, "page")
    # Read one by one, because a message would show the whole list.
    if isinstance(sections := content.get("sections"), list):
        content["sections"] = [SectionSettings.read(f"page {path.stem}: section", section) for section in sections]
    page = Page(PageSettings.read(f"page {path.stem}", content), path, functions)
    if bool(page.settings.sections) == page.settings.every_statement:
        raise UserError(f"'{path}' needs either sections, or every_statement=true.")
    for name in (name for section in page.settings.sections for name in section.statements):
        if name not in files():
            raise UserError(f"'{path}' refers to the unknown statement '{name}'; {choices(name, files())}.")
    return page


def find_page(name: str, statements: Sequence[str] = ()) -> Page:
    """A page by its name, or by the path of its file.

    Args:
        name: A name or path that :func:`~bertsecrets.papers.names.page_name` accepts.
        statements: As ``names`` of :class:`Page`.

    Raises:
        UserError: If the page's file is invalid.
    """
    path = page_files().get(name, Path(name))
    page = read_page(path, functions=name in page_files() and path.parent != CONF / "page")
    return replace(page, names=tuple(statements))


_VERDICTS = (
    "A statement holds, or does not hold, only if a test over seeds is significant; with one seed, the verdict "
    "applies to this model only. The page of all statements (paper=statements) explains how each was tested, with "
    "its numbers, p-values and threshold. Layers and heads are counted from 0."
)
