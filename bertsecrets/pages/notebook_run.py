"""A finished run in a notebook."""

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from bertsecrets.errors import UserError
from bertsecrets.present.figures.style import html_image
from bertsecrets.reporting.run_report import RunReport, firsts, report_run
from bertsecrets.results.run import Run as RunFolder

if TYPE_CHECKING:
    from bertsecrets.pages.head_dossier import HeadDossier


class Run:
    """A finished run: its findings, with printing, plots, notebook display and conversion to pandas.

    Args:
        folder: A run folder of ``train.py`` or ``analyze.py``.

    Raises:
        UserError: If it is not the folder of a finished run, or a file cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UserError(f"'{self.folder}' is not a folder; give a run folder.")
        self.record = RunFolder.open(self.folder)
        """The run's files, table by table."""

    @cached_property
    def _report(self) -> RunReport:
        return report_run(self.record, heads=1)

    def __repr__(self) -> str:
        report = self._report.report
        sentences = dict.fromkeys([*report.notes, report.title, *firsts(report.sections)])
        return "\n".join([f"{type(self).__name__} '{self.folder}'", *sentences])

    def _repr_html_(self) -> str:
        first, *sentences = repr(self).splitlines()
        lines = [f"<p><b>{escape(first)}</b></p>", *(f"<p>{escape(sentence)}</p>" for sentence in sentences)]
        return "".join(lines + [html_image(figure, "first figure of the report") for figure in self.plots()[:1]])

    def plots(self) -> list[Figure]:
        """The figures of the run's report."""
        return [block.figure for block in self._report.report.figures]

    def plot(self) -> Figure:
        """The first of :meth:`plots`.

        Raises:
            UserError: If the report has no figure.
        """
        figures = self.plots()
        if not figures:
            raise UserError(f"The report of '{self.folder}' has no figure; measure or disable heads first.")
        return figures[0]

    def to_pandas(self) -> Any:
        """All numbers of each head as a ``pandas.DataFrame``, one row per head.

        Raises:
            UserError: If the run measured no head and disabled none.
        """
        heads = self._report.heads
        if heads is None:
            raise UserError(f"'{self.folder}' has no numbers of heads; measure or disable heads first.")
        return heads.arrow().to_pandas()

    def head(self, layer: int, head: int) -> "HeadDossier":
        """The dossier of a head: what it decides and attends to on the whole evaluation set.

        Raises:
            UserError: If the head does not exist, or the run's model or data cannot be loaded.
        """
        # Imported late: reading a run needs no model.
        from bertsecrets.pages.head_dossier import head_dossier

        return head_dossier(self.record, layer, head)

    def disabled(self) -> Any:
        """The effects of disabled heads, layers and groups as a ``pandas.DataFrame``; empty if none was disabled."""
        return self.record.ablation_table().to_pandas()
