"""The best head for each kind of thing, chosen on some texts and scored on others, on a page and by condition."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.grid import replicate_rows
from bertsecrets.present.report.content import FigureBlock, OfHead, Section, Table, block
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import MISSING, heads_label, percent
from bertsecrets.results.views import Comparison, MeasureView


class Scored(OfHead, Protocol):
    """The best head for a task, chosen on some texts and scored on others."""

    @property
    def accuracy(self) -> Estimate: ...


HeadRow = TypeVar("HeadRow", bound=Scored)


def scored_elsewhere(units: str, splits: int) -> str:
    """How heads are chosen on some units and scored on others, in two sentences."""
    return (
        f"The best head is chosen on a third of the {units} and scored on the rest; the paper chooses and scores on "
        f"the same {units} (last column). Numbers are medians over {splits} random splits; intervals are medians of "
        f"97.5 % limits, which have 95 % coverage although splits share {units}."
    )


def best_heads_figure(
    name: str,
    title: str,
    rows: Sequence[HeadRow],
    thing: Callable[[HeadRow], str],
    baseline: Callable[[HeadRow], float],
    *,
    rival: str,
    unit: str,
    texts: str,
    splits: int,
) -> FigureBlock:
    """The best head for each kind with its interval, next to the share that a baseline gets right.

    ``thing`` describes what the head of a row finds, ``rival`` the baseline, ``texts`` the texts for choosing and
    scoring.
    """
    return block(
        name,
        title,
        interval_rows,
        f"The best heads next to {rival}.",
        rows=[
            IntervalRow(f"{thing(row)} (layer {row.layer} · {row.head})", share.value, share.low, share.high, of_rival)
            for row in rows
            for share, of_rival in [(row.accuracy, baseline(row))]
        ],
        value="best head",
        baseline=rival,
        unit=unit,
        limits=(0, 1),
        reference=None,
        note=f"bars: 95 % intervals; {texts}, a third for choosing, the rest for scoring, over {splits} splits; layers "
        "and heads are counted from 0",
    )


def best_heads(
    comparison: Comparison,
    rows_of: Callable[[MeasureView], Sequence[HeadRow]],
    heading: str,
    thing: Callable[[HeadRow], str],
    baseline: Callable[[HeadRow], float],
    *,
    caption: str,
    share: str,
) -> Section | None:
    """The best head for each kind by condition, chosen on some texts and scored on others; None without any.

    Args:
        comparison: The conditions.
        rows_of: The best heads of a run.
        heading: Heading of the kinds.
        thing: Label of what the head of a row finds.
        baseline: The share that a row's baseline gets right.
        caption: Caption of the table.
        share: Description of the numbers and those in brackets, as a sentence without its end.
    """
    cells: dict[str, dict[str, str]] = {}
    grid_rows: list[Mapping[str, object]] = []
    seeds = []
    for condition, replicates in comparison.replicates.items():
        by_thing: dict[str, list[HeadRow]] = {}
        for view in replicates.views:
            for row in rows_of(view):
                by_thing.setdefault(thing(row), []).append(row)
        for name, rows in by_thing.items():
            mean, beside = (
                percent(float(np.mean(shares)))
                for shares in ([row.accuracy.value for row in rows], list(map(baseline, rows)))
            )
            heads = heads_label({(row.layer, row.head) for row in rows})
            cells.setdefault(name, {})[condition] = f"{mean} {heads} ({beside})"
        if by_thing:
            seeds.append(max(map(len, by_thing.values())))
        grid_rows += replicate_rows(condition, replicates)
    if not cells:
        return None
    conditions = [label for label in comparison.replicates if any(label in found for found in cells.values())]
    lines = [[name, *(found.get(label, MISSING) for label in conditions)] for name, found in cells.items()]
    title = next(iter(comparison.replicates.values())).title
    tables = [Table([heading, *conditions], lines, caption)]
    return Section(title, [], [f"{share}; {seeds_in_words(seeds)}."], tables, rows=grid_rows)
