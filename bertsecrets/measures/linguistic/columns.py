"""Columns of the linguistic measures: their labels, and those worth showing."""

from collections.abc import Sequence

import numpy as np

from bertsecrets.present.grid import highest
from bertsecrets.present.ranking import picked
from bertsecrets.results.formatting import head_label
from bertsecrets.results.views import MeasureView

SPECIAL = {"cls": "[CLS]", "sep": "[SEP]", "sep_total": "all [SEP] together"}
"""Labels of the features of special tokens."""


def feature_label(feature: str) -> str:
    """A feature's label on pages."""
    return SPECIAL.get(feature, feature.replace("_", " "))


def pair_label(pair: str) -> str:
    """A pair's label on pages: ``verb → subject``."""
    return pair.replace("_to_", " → ").replace("_", " ")


def occurring(view: MeasureView) -> list[str]:
    """Columns with at least one example, without those that repeat another.

    With one separator per example, the sum over all separators repeats the single one.
    """
    names = [column.name for column in view.columns if view.has(column.name) and view.count(column.name)]
    return [name for name in names if not _repeats(view, name, names)]


def _repeats(view: MeasureView, name: str, names: Sequence[str]) -> bool:
    single = name.replace("sep_total", "sep")
    return single != name and single in names and np.array_equal(view.value(name), view.value(single), equal_nan=True)


def strongest(view: MeasureView, name: str) -> str:
    """The head with the highest value of a column, with limits of the value that hold for all heads together."""
    top = highest(view.value(name))
    return f"{head_label(*top)}: {picked(top, *view.grid(name), bounds=view.column(name).limits)}"


def counted(view: MeasureView, name: str, title: str) -> str:
    """A panel's title with the number of examples, kept on one line."""
    return f"{title} (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{view.count(name):,})"
