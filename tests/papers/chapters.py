"""Chapters of papers' pages, made from the runs of a folder."""

from collections.abc import Callable
from pathlib import Path

from bertsecrets.papers.chapter import Chapter, PaperRuns
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs


def chapter_of(make: Callable[[PaperRuns], Chapter | None], folder: Path) -> Chapter:
    """The chapter on all runs of a folder, which has what it needs."""
    chapter = make(PaperRuns(*find_conditions(find_runs([str(folder)])[0])))
    assert chapter is not None
    return chapter


def verdicts(chapter: Chapter) -> list[bool | None]:
    """Whether each of its statements holds."""
    return [claim.holds for claim in chapter.claims]
