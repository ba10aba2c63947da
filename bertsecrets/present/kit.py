"""What presenters share: tables from rows, blocks of figures, and the best heads of several conditions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.grid import replicate_rows
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import MISSING, head_label, heads_label, percent
from bertsecrets.results.views import Comparison, MeasureView

Row = TypeVar("Row")


class OfHead(Protocol):
    """A row about a head."""

    @property
    def layer(self) -> int: ...

    @property
    def head(self) -> int: ...


HeadRow = TypeVar("HeadRow", bound=OfHead)


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
    """A dot with its interval for each row beside a baseline; ``names`` of both for the legend, others as ``interval_rows``."""
    drawn = [IntervalRow(label(row), (e := value(row)).value, e.low, e.high, baseline(row)) for row in rows]
    return interval_rows(drawn, value=names[0], baseline=names[1], **settings)


def best_heads(
    comparison: Comparison,
    rows_of: Callable[[MeasureView], Sequence[HeadRow]],
    kind: str,
    accuracy: Callable[[HeadRow], float],
    baseline: Callable[[HeadRow], float],
    *,
    caption: str,
    share: str,
) -> Section | None:
    """The best head for each kind of thing by condition, chosen on some texts and scored on others; None without any.

    Args:
        comparison: The conditions.
        rows_of: The best heads of a run.
        kind: The rows' field that says what the head finds.
        accuracy, baseline: Shares that a head and its baseline get right, on texts that did not choose it.
        caption: Caption of the table.
        share: What the numbers and those in brackets are, as a sentence without its end.
    """
    cells: dict[str, dict[str, str]] = {}
    grid_rows: list[Mapping[str, object]] = []
    seeds = []
    for condition, replicates in comparison.replicates.items():
        by_thing: dict[str, list[HeadRow]] = {}
        for view in replicates.views:
            for row in rows_of(view):
                by_thing.setdefault(getattr(row, kind), []).append(row)
        for thing, rows in by_thing.items():
            means = [percent(float(np.mean([number(row) for row in rows]))) for number in (accuracy, baseline)]
            heads = heads_label({(row.layer, row.head) for row in rows})
            cells.setdefault(thing, {})[condition] = f"{means[0]} {heads} ({means[1]})"
        if by_thing:
            seeds.append(max(map(len, by_thing.values())))
        grid_rows += replicate_rows(condition, replicates)
    if not cells:
        return None
    conditions = [label for label in comparison.replicates if any(label in found for found in cells.values())]
    lines = [[thing, *(found.get(label, MISSING) for label in conditions)] for thing, found in cells.items()]
    title = next(iter(comparison.replicates.values())).title
    tables = [Table([kind, *conditions], lines, caption)]
    return Section(title, [], [f"{share}; {seeds_in_words(seeds)}."], tables, rows=grid_rows)
