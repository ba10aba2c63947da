"""What the sections on linguistics share: the columns of a measure, and which heads stand out in them."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsecrets.results.figures.style import number
from bertsecrets.results.run import CHECKPOINT, TRAINING
from bertsecrets.results.table import HeadTable
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_exceeds_zero

Array = NDArray[np.float64]

SPECIAL = {"cls": "[CLS]", "sep": "[SEP]", "sep_total": "all [SEP] together"}
"""What the features of special tokens are called in front of readers."""

RATE = 0.05
"""False discovery rate at which heads are said to stand out."""


class Columns:
    """The columns of one measure at its last step, a checkpoint's before training's."""

    def __init__(self, table: HeadTable, measure: str) -> None:
        self.measure = measure
        self.rows = table.select(measure=measure)
        stages = pc.unique(self.rows.table["stage"]).to_pylist()
        self.stage = CHECKPOINT if CHECKPOINT in stages else TRAINING
        self.step = max(pc.unique(self.rows.select(stage=self.stage).table["step"]).to_pylist())
        names = pc.unique(self.rows.select(stage=self.stage, step=self.step).table["column"]).to_pylist()
        self.names = [name for name in names if self.count(name) and not self._doubles(name, names)]
        """Columns that at least one example has, without those that say again what another says."""

    def count(self, name: str) -> int:
        """How many examples stand behind a column."""
        return int(self._grid(name)[2].max())

    def _doubles(self, name: str, names: Sequence[str]) -> bool:
        """Whether all separators together are the one that there is, and that one is a column too."""
        single = name.replace("sep_total", "sep")
        return (
            single != name and single in names and np.array_equal(self.value(name), self.value(single), equal_nan=True)
        )

    def value(self, name: str) -> Array:
        """Values ``[layers, heads]``."""
        return self._grid(name)[0]

    def stderr(self, name: str) -> Array:
        """Standard errors ``[layers, heads]``."""
        return self._grid(name)[1]

    def above_zero(self, names: Sequence[str]) -> list[NDArray[np.bool_]]:
        """Which heads' means over examples lie above 0: one-sided t tests, at a false discovery rate over all of them.

        Args:
            names: Columns; a head with fewer than two examples is not above.
        """
        p = [mean_exceeds_zero(*self._grid(name)) for name in names]
        # No number is at most the rate where there is none: what could not be tested is not above.
        return list(corrected(np.stack(p)) <= RATE)

    def _grid(self, name: str) -> tuple[Array, Array, NDArray[np.int64]]:
        return self.rows.grid(self.measure, name, self.stage, self.step)


def shown(feature: str) -> str:
    """A feature's name as readers see it."""
    return SPECIAL.get(feature, feature.replace("_", " "))


def highest(value_LH: Array) -> tuple[int, int]:
    """Layer and head of the highest value."""
    layer, head = np.unravel_index(int(np.nanargmax(value_LH)), value_LH.shape)
    return int(layer), int(head)


def strongest(columns: Columns, name: str) -> str:
    """The head with the highest value of a column, with that value and its standard error."""
    layer, head = highest(columns.value(name))
    value, stderr = columns.value(name)[layer, head], columns.stderr(name)[layer, head]
    return f"layer {layer} · head {head}: {number(value, 3)} ± {stderr:.3f}"


def counted(columns: Columns, name: str, title: str) -> str:
    """A panel's title with the number of examples, which stays on one line."""
    return f"{title} (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{columns.count(name):,})"
