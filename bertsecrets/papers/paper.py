"""A paper as a page: its sections in its order, from the runs of a sweep or from one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsecrets.papers.chapter import MODEL, Chapter, PaperRuns, claims_in_words
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import FinishedRun, left_out
from bertsecrets.results.report.content import Report, Section
from bertsecrets.results.report.page import save_figures, write_report


@dataclass(frozen=True)
class Paper:
    """A paper with a page.

    Args:
        file: File name of the page.
        title: Title of the page.
        citation: Authors and year.
        chapters: Make the chapters, in the order of the paper; None leaves a chapter out.
        other_model: A sentence on published numbers, shown where no run is of the paper's model; ``{models}`` stands for
            the names of theirs.
        reading: The last section: how to read the page.
        sizes_may_differ: Whether runs of models of several sizes go together.
    """

    file: str
    title: str
    citation: str
    chapters: tuple[Callable[[PaperRuns], Chapter | None], ...]
    other_model: str
    reading: Section
    sizes_may_differ: bool = False

    def write(self, runs: Sequence[FinishedRun], folder: Path, unfinished: Sequence[str] = ()) -> Path:
        """Write the page and its figures into a folder; returns the page.

        Args:
            runs: At least one finished run.
            folder: Created if missing.
            unfinished: Names of the unfinished runs, which are left out.
        """
        paper_runs = PaperRuns(*find_conditions(runs))
        chapters = [chapter for make in self.chapters if (chapter := make(paper_runs)) is not None]
        models = sorted({condition.factors["model"] for condition in paper_runs.conditions})
        report = Report(
            title=self.title,
            subtitle=f"{self.citation}, section by section, from {len(runs)} run{'s' * (len(runs) > 1)}",
            facts=[
                ("tasks", ", ".join(sorted({condition.task for condition in paper_runs.conditions}))),
                ("models", ", ".join(models)),
                ("seeds", ", ".join(map(str, sorted({run.seed for run in runs})))),
            ],
            notes=[
                *claims_in_words([claim for chapter in chapters for claim in chapter.claims]),
                *([self.other_model.format(models=", ".join(models))] if MODEL not in models else []),
                *left_out(unfinished),
            ],
            sections=[*(chapter.section for chapter in chapters), self.reading],
        )
        save_figures(report.figures, folder / "figures")
        write_report(folder / self.file, report)
        return folder / self.file
