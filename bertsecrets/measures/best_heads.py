"""The best head for each kind of thing, chosen on some texts and scored on others, compared across conditions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.grid import replicate_rows
from bertsecrets.present.report.content import Section, Table
from bertsecrets.results.formatting import MISSING, heads_label, percent
from bertsecrets.results.views import Comparison, MeasureView


@dataclass(frozen=True)
class BestHead:
    """A head, and the shares that it and its baseline get right on texts that did not choose it."""

    layer: int
    head: int
    accuracy: float
    baseline: float


def compare_best_heads(
    comparison: Comparison, read: Callable[[MeasureView], Mapping[str, BestHead]], kind: str, caption: str, share: str
) -> Section | None:
    """A table of the best heads by condition, mean over seeds; None if no condition has any.

    Args:
        comparison: The conditions.
        read: The best heads of a run by the kinds of things they find.
        kind: Heading of these kinds.
        caption: Caption of the table.
        share: What the numbers and those in brackets are, as a sentence without its end.
    """
    heads: dict[str, dict[str, list[BestHead]]] = {}
    rows: list[Mapping[str, object]] = []
    for label, replicates in comparison.replicates.items():
        for view in replicates.views:
            for name, best in read(view).items():
                heads.setdefault(label, {}).setdefault(name, []).append(best)
        rows += replicate_rows(label, replicates)
    if not heads:
        return None
    names = dict.fromkeys(name for condition in heads.values() for name in condition)
    cells = [[name, *(_cell(condition.get(name, [])) for condition in heads.values())] for name in names]
    seeds = seeds_in_words([max(map(len, condition.values())) for condition in heads.values()])
    title = next(iter(comparison.replicates.values())).title
    return Section(title, [], [f"{share}; {seeds}."], [Table([kind, *heads], cells, caption)], rows=rows)


def _cell(heads: Sequence[BestHead]) -> str:
    if not heads:
        return MISSING
    accuracy, baseline = (float(np.mean([getattr(best, name) for best in heads])) for name in ("accuracy", "baseline"))
    return f"{percent(accuracy)} {heads_label({(best.layer, best.head) for best in heads})} ({percent(baseline)})"
