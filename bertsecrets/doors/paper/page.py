"""The paper as a page: its sections in its order, made from the runs of a sweep."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bertsecrets.comparison.conditions import find_conditions
from bertsecrets.comparison.published import MODEL
from bertsecrets.comparison.runs import FinishedRun
from bertsecrets.doors.paper import disabling, drift, features, initialisation, patterns, relations, token_to_token
from bertsecrets.doors.paper.claims import Claim
from bertsecrets.doors.paper.material import Material
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.report.content import Report, Section
from bertsecrets.results.report.page import write_report

PAGE = "dark_secrets.html"

_SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    initialisation.section,
    patterns.section,
    relations.section,
    drift.section,
    features.section,
    token_to_token.section,
    disabling.heads_section,
    disabling.layers_section,
)


def write_paper(runs: Sequence[FinishedRun], folder: Path) -> Path:
    """Writes the page and its figures into a folder; returns the page.

    Args:
        runs: Finished runs; what none of them holds has no section.
        folder: Made if missing.
    """
    conditions, varying = find_conditions(runs)
    material = Material(conditions, varying)
    sections = [section for make in _SECTIONS if (section := make(material)) is not None]
    for name, figure in material.figures.items():
        save_figure(figure, folder / "figures" / f"{name}.png")
        save_figure(figure, folder / "figures" / f"{name}.svg")
    tasks = sorted({each.task for each in conditions})
    models = sorted({each.factors["model"] for each in conditions})
    report = Report(
        title="Revealing the Dark Secrets of BERT, run again",
        subtitle=f"Kovaleva et al. 2019, section by section, from {len(runs)} runs",
        facts=[
            ("tasks", ", ".join(tasks)),
            ("models", ", ".join(models)),
            ("seeds", ", ".join(map(str, sorted({run.seed for run in runs})))),
        ],
        lead=_lead(material.claims, models),
        sections=[*sections, _reading()],
    )
    write_report(folder / PAGE, report)
    Console().print(f"The paper's sections: {folder / PAGE}", soft_wrap=True)
    return folder / PAGE


def _lead(claims: Sequence[Claim], models: Sequence[str]) -> list[str]:
    verbs = {
        "agrees": ("agrees with these runs", "agree with these runs"),
        "does not agree": ("does not agree with them", "do not agree with them"),
        "cannot be told": ("cannot be told", "cannot be told"),
    }
    counts = {word: sum(claim.verdict == word for claim in claims) for word in verbs}
    parts = [f"{count} {verbs[word][count != 1]}" for word, count in counts.items() if count]
    lead = [f"Of {len(claims)} statements of the paper, {', '.join(parts)}."] if claims else []
    lead += [f"Does not agree: {claim.statement} {claim.here}" for claim in claims if claim.holds is False]
    if MODEL not in models:
        lead.append(
            f"The paper fine-tuned bert-base-uncased, these runs {', '.join(models)}: published numbers are left out, and "
            "only what the paper says in general is compared."
        )
    return lead


def _reading() -> Section:
    return Section(
        "How to read this page",
        [
            "Layers and heads are counted from 0; the paper counts from 1, so that its head 12-9 is layer 11 · head 8 here. "
            "Numbers of its figures were read off the pictures. A statement “agrees” where the runs' means do what it says; "
            "that is no test, and with few seeds or examples a mean may do so by chance. What is tested is said beside it."
        ],
    )
