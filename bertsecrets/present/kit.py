"""Shared code of presenters: tables from rows, and blocks of figures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.report.content import FigureBlock, Table
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import head_label

Row = TypeVar("Row")


class OfHead(Protocol):
    """A row about a head."""

    @property
    def layer(self) -> int: ...

    @property
    def head(self) -> int: ...


def name_of(row: OfHead) -> str:
    """A head's name on pages."""
    return head_label(row.layer, row.head)


def table(
    rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]], caption: str = "", **settings: Any
) -> Table:
    """A table with a line for each row and a column for each heading."""
    return Table(list(columns), [[cell(row) for cell in columns.values()] for row in rows], caption, **settings)


def block(name: str, title: str, draw: Callable[..., Figure], caption: str = "", **settings: Any) -> FigureBlock:
    """A figure that is drawn when a page shows it; its title is its caption unless another is given."""
    return FigureBlock(name, partial(draw, title=title, **settings), caption or f"{title}.", f"Chart: {title}.")


def intervals(
    rows: Sequence[Row],
    label: Callable[[Row], str],
    value: Callable[[Row], Estimate],
    baseline: Callable[[Row], float] = lambda row: np.nan,
    *,
    names: tuple[str, str] = ("", ""),
    **settings: Any,
) -> Figure:
    """A dot with its interval for each row, next to a baseline; ``names`` of both for the legend, other arguments as in
    ``interval_rows``.
    """
    drawn = [IntervalRow(label(row), (e := value(row)).value, e.low, e.high, baseline(row)) for row in rows]
    return interval_rows(drawn, value=names[0], baseline=names[1], **settings)
