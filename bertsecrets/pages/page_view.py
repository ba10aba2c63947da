"""A page for a notebook or a file."""

from html import escape
from pathlib import Path

from bertsecrets.errors import UserError
from bertsecrets.present.report.content import Report
from bertsecrets.present.report.page import report_page, write_report

_HEIGHT = 900


class PageView:
    """An offline page: show it in a notebook, or :meth:`save` it.

    Args:
        report: The page.
    """

    def __init__(self, report: Report) -> None:
        self.report = report

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {_HEIGHT}px; border: 0"
        return f'<iframe title="Attention heads" style="{style}" srcdoc="{escape(self.html())}"></iframe>'

    def html(self) -> str:
        """The page, at most 3 MB."""
        return report_page(self.report)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file and return its path.

        Raises:
            UserError: If the folder does not exist, or the disk is full.
        """
        target = Path(path)
        if not target.parent.is_dir():
            raise UserError(f"Folder '{target.parent}' does not exist; create it, or save the view elsewhere.")
        write_report(target, self.report)
        return target
