"""The pages made from runs besides reports and comparisons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bertsecrets.papers.ledger import Ledger
from bertsecrets.papers.names import FOLDER, LEDGER, page_files
from bertsecrets.papers.page import read_page
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


def find_page(name: str, statements: Sequence[str] = (), kept: str | None = None) -> Page:
    """A page by its name, or by the path of its file.

    Args:
        name: A name or path that :func:`~bertsecrets.papers.names.page_name` accepts.
        statements: For the ledger, the statements to show; empty for all.
        kept: For the ledger, the folder of readings; None for one beside the page.

    Raises:
        UserError: If the page's file is wrong.
    """
    if name == LEDGER:
        return Ledger(tuple(statements), kept)
    path = page_files().get(name)
    if path is None:
        return read_page(Path(name))
    return read_page(path, functions=path.parent != FOLDER)
