"""The paper as a page: its sections in its order, from the runs of a sweep."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bertsecrets.papers.chapter import MODEL, Chapter, PaperRuns, claims_in_words
from bertsecrets.papers.kovaleva2019.disabling import disabled_heads, disabled_layers
from bertsecrets.papers.kovaleva2019.drift import drift
from bertsecrets.papers.kovaleva2019.features import features
from bertsecrets.papers.kovaleva2019.initialisation import initialisation
from bertsecrets.papers.kovaleva2019.patterns import patterns
from bertsecrets.papers.kovaleva2019.relations import relations
from bertsecrets.papers.kovaleva2019.token_to_token import token_to_token
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import FinishedRun, left_out
from bertsecrets.results.report.content import Report, Section
from bertsecrets.results.report.page import save_figures, write_report

PAGE = "dark_secrets.html"

CHAPTERS: tuple[Callable[[PaperRuns], Chapter | None], ...] = (
    initialisation,
    patterns,
    relations,
    drift,
    features,
    token_to_token,
    disabled_heads,
    disabled_layers,
)
"""The chapters of the page, in the order of the paper."""


def write_paper(runs: Sequence[FinishedRun], folder: Path, unfinished: Sequence[str] = ()) -> Path:
    """Write the page and its figures into a folder; returns the page.

    Args:
        runs: At least one finished run; a section of the paper without numbers in any of them is left out.
        folder: Created if missing.
        unfinished: Names of the unfinished runs, which are left out.
    """
    paper_runs = PaperRuns(*find_conditions(runs))
    chapters = [chapter for make in CHAPTERS if (chapter := make(paper_runs)) is not None]
    models = sorted({condition.factors["model"] for condition in paper_runs.conditions})
    report = Report(
        title="Revealing the Dark Secrets of BERT, run again",
        subtitle=f"Kovaleva et al. 2019, section by section, from {len(runs)} runs",
        facts=[
            ("tasks", ", ".join(sorted({condition.task for condition in paper_runs.conditions}))),
            ("models", ", ".join(models)),
            ("seeds", ", ".join(map(str, sorted({run.seed for run in runs})))),
        ],
        notes=[
            *claims_in_words([claim for chapter in chapters for claim in chapter.claims]),
            *(
                [
                    f"The paper fine-tuned bert-base-uncased, these runs {', '.join(models)}: published numbers are left "
                    "out, and only the paper's general statements are checked."
                ]
                if MODEL not in models
                else []
            ),
            *left_out(unfinished),
        ],
        sections=[*(chapter.section for chapter in chapters), _reading()],
    )
    save_figures(report.figures, folder / "figures")
    write_report(folder / PAGE, report)
    return folder / PAGE


def _reading() -> Section:
    return Section(
        "How to read this page",
        paragraphs=[
            "Layers and heads are counted from 0; the paper counts from 1, so that its head 12-9 is layer 11 · head 8 here, "
            "l11h08 in tables. Numbers of the paper's figures were read off the pictures. A statement “cannot be told” "
            "for a task that was not learned, for differences that are not significant, for changes within rounding, and "
            "where any sample would fulfil it, such as that the best of many heads improves. Differences between layers are "
            "tested over seeds, or over examples where there is one seed."
        ],
    )
