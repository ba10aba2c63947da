"""The paper as a page: its sections in its order, from one run or many."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bertsecrets.papers.chapter import MODEL, Chapter, PaperRuns, claims_in_words
from bertsecrets.papers.clark2019.attention import entropy, gradients, positions, special_tokens
from bertsecrets.papers.clark2019.groups import groups
from bertsecrets.papers.clark2019.maps import typical_heads
from bertsecrets.papers.clark2019.sinks_and_roles import roles, sinks
from bertsecrets.papers.clark2019.syntax import coreference, dependency, probes
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import FinishedRun, left_out
from bertsecrets.results.report.content import Report, Section
from bertsecrets.results.report.page import save_figures, write_report

PAGE = "what_does_bert_look_at.html"

CHAPTERS: tuple[Callable[[PaperRuns], Chapter], ...] = (
    typical_heads,
    positions,
    special_tokens,
    gradients,
    sinks,
    entropy,
    roles,
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
                    f"The paper studies bert-base-uncased, these runs {', '.join(names)}: the paper's numbers for heads and "
                    "layers are left out, its general statements are checked."
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
            "Statements are checked on the model before fine-tuning, which is what the paper studies. Only the gradients of a "
            "task's loss and the sink heads, which need answers to the task, are checked on fine-tuned models too. In the "
            "tables, fine-tuned models (of several seeds the first) stand below. The runs agree or disagree with a statement "
            "only where a test shows it; otherwise it cannot be told.",
            "Layers and heads are counted from 0; the paper counts from 1, so that its head 8-11 is layer 7 · head 10 here, "
            "l07h10 in tables. Numbers of the paper's figures were read off the pictures. A layer's standard error is the "
            "mean of its heads', the most that it can be.",
        ],
    )
