"""The paper as a page: its sections in its order, from one run or many."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bertsecrets.papers.chapter import MODEL, Chapter, PaperRuns, claims_in_words
from bertsecrets.papers.clark2019.attention import entropy, gradients, positions, special_tokens
from bertsecrets.papers.clark2019.groups import groups
from bertsecrets.papers.clark2019.syntax import coreference, dependency, probes
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import FinishedRun, left_out
from bertsecrets.results.report.content import Report, Section
from bertsecrets.results.report.page import save_figures, write_report

PAGE = "what_does_bert_look_at.html"

CHAPTERS: tuple[Callable[[PaperRuns], Chapter], ...] = (
    positions,
    special_tokens,
    gradients,
    entropy,
    dependency,
    coreference,
    probes,
    groups,
)
"""The chapters of the page, in the order of the paper."""


def write_paper(runs: Sequence[FinishedRun], folder: Path, unfinished: Sequence[str] = ()) -> Path:
    """Write the page and its figures into a folder; returns the page.

    Args:
        runs: At least one finished run; a section of the paper without numbers in any of them says how to get them.
        folder: Created if missing.
        unfinished: Names of the unfinished runs, which are left out.
    """
    paper_runs = PaperRuns(*find_conditions(runs))
    chapters = [make(paper_runs) for make in CHAPTERS]
    names = sorted({condition.factors["model"] for condition in paper_runs.conditions})
    report = Report(
        title="What does BERT look at, run again",
        subtitle=f"Clark et al. 2019, section by section, from {len(runs)} run{'s' * (len(runs) > 1)}",
        facts=[
            ("tasks", ", ".join(sorted({condition.task for condition in paper_runs.conditions}))),
            ("models", ", ".join(names)),
        ],
        notes=[
            *claims_in_words([claim for chapter in chapters for claim in chapter.claims]),
            *(
                [
                    f"The paper looks at bert-base-uncased, these runs at {', '.join(names)}: its numbers of attention by "
                    "layer are left out, and its general statements are checked."
                ]
                if MODEL not in names
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
            "Statements are checked on models before fine-tuning, of which the paper speaks, except for the gradients of a "
            "task; fine-tuned models (of several seeds the first) stand below them in the tables. A statement holds, or does "
            "not, only where a test says so; “cannot be told” where the data leave both open.",
            "Layers and heads are counted from 0; the paper counts from 1, so that its head 8-11 is layer 7 · head 10 here, "
            "l07h10 in tables. Numbers of the paper's figures were read off the pictures. A layer's standard error is the "
            "mean of its heads', the most that it can be.",
        ],
    )
