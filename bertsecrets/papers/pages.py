"""The pages made from runs besides reports and comparisons, by name: one for each paper, the questions, and the statements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bertsecrets.papers.clark2019.page import PAPER as CLARK
from bertsecrets.papers.kovaleva2019.page import PAPER as KOVALEVA
from bertsecrets.papers.michel2019.page import PAPER as MICHEL
from bertsecrets.papers.questions.page import PAGE as QUESTIONS
from bertsecrets.papers.statements.page import PAGE as STATEMENTS
from bertsecrets.papers.voita2019.page import PAPER as VOITA
from bertsecrets.reporting.runs import FinishedRun


class Page(Protocol):
    """A page made from runs."""

    @property
    def file(self) -> str:
        """File name of the page."""

    @property
    def sizes_may_differ(self) -> bool:
        """Whether runs of models of several sizes go together."""

    def write(self, runs: Sequence[FinishedRun], folder: Path, unfinished: Sequence[str] = ()) -> Path:
        """Write the page and its figures into a folder; returns the page."""


PAPERS: dict[str, Page] = {
    "kovaleva2019": KOVALEVA,
    "clark2019": CLARK,
    "michel2019": MICHEL,
    "voita2019": VOITA,
    "questions": QUESTIONS,
    "statements": STATEMENTS,
}
