"""A finished run in a notebook."""

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from bertsecrets.errors import UserError
from bertsecrets.present.figures.saving import html_image
from bertsecrets.reporting.run_report import RunReport, report_run
from bertsecrets.results.run import Run as RunFolder

if TYPE_CHECKING:
    from bertsecrets.pages.head_dossier import HeadDossier


class Run:
    """A finished run's folder, which prints its findings, plots, shows itself in a notebook and turns into pandas.

    Args:
        folder: The folder of a run of ``train.py`` or ``analyze.py``.

    Raises:
        UserError: If it is not the folder of a finished run, or a file in it cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UserError(f"'{self.folder}' is not a folder; give the folder of a run.")
        self.record = RunFolder.open(self.folder)
        """The run's files, table by table."""

    @cached_property
    def _report(self) -> RunReport:
        return report_run(self.record, heads=1)

    def __repr__(self) -> str:
        report = self._report.report
        sentences = [sentence for _, sentence in report.answers] or report.lead
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
            raise UserError(f"The report of '{self.folder}' has no figure; take a measure or disable heads first.")
        return figures[0]

    def to_pandas(self) -> Any:
        """All that the run knows about each head as a ``pandas.DataFrame``: a row for each layer and head.

        Raises:
            UserError: If the run measured no head and disabled none.
        """
        heads = self._report.heads
        if heads is None:
            raise UserError(f"'{self.folder}' has no number of a head; take a measure or disable heads first.")
        return heads.arrow().to_pandas()

    def head(self, layer: int, head: int) -> "HeadDossier":
        """The dossier of a head over the whole evaluation set: what it decides, and what it attends to.

        Raises:
            UserError: If the head does not exist, or the run's model or data cannot be loaded.
        """
        # A run that is only read need not wait for what loads models.
        from bertsecrets.pages.head_dossier import head_dossier

        return head_dossier(self.record, layer, head)

    def disabled(self) -> Any:
        """The effect of each disabled head, layer or group as a ``pandas.DataFrame``; no row if none was disabled."""
        return self.record.ablation_table().to_pandas()
