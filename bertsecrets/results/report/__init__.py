"""One self-contained HTML page for a run or a comparison: no network needed to read it."""

from bertsecrets.results.report.content import FigureBlock, HeadViewer, Report, Section, Table, ViewerExample
from bertsecrets.results.report.page import write_report

__all__ = ["FigureBlock", "HeadViewer", "Report", "Section", "Table", "ViewerExample", "write_report"]
