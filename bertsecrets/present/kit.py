"""Shared code of presenters: tables from rows, and blocks of figures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from matplotlib.figure import Figure

from bertsecrets.present.report.content import FigureBlock, Table
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
