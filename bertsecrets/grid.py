"""Grids: one number for each attention head, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

# Settings and pages use columns without loading PyTorch.
if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["value", "baseline", "p_value"]


@dataclass(frozen=True)
class Column:
    """One column of a grid: what its numbers are and how they are shown.

    Args:
        name: Name in tables and in W&B.
        label: Name on pages and in figures.
        unit: What the number measures, on axes and colour bars.
        limits: The smallest and the largest possible number: the ends of the colour scale and of intervals. None
            without any; the scale then has the range of the values.
        role: ``value``; ``baseline`` for numbers that any model has, such as the weight of uniform attention, and
            differences from them, which are not compared between models; ``p_value``, which is neither averaged nor
            compared.
        keep: For a score that ranks heads, which of them are worth keeping: those with ``high`` or those with ``low``
            numbers; None if the column does not say so.
    """

    name: str
    label: str
    unit: str = ""
    limits: tuple[float, float] | None = None
    role: Role = "value"
    keep: Literal["high", "low"] | None = None


@dataclass(frozen=True)
class Shown:
    """How pages show a grid beyond heatmaps, a table and the highest head: data, so that a measure has no page code.

    Args:
        about: The last paragraph: how to read the numbers, and what they do not show.
        lowest: Whether the lowest heads are those to name.
        verb: What the first head does, to list the first heads and name those like it: ``changed most``; empty for no
            list.
        first: Column of corrected p-values of each head equalling the first; empty for a test by standard errors.
        unchanged: The number of a head that does not differ from its reference at all, if there is one.
        each: Columns with sentences of their own, on their highest head and by layer; empty for one on the first
            column.
        beyond: A number above which these sentences count heads and layers; None for no count.
        says: What a head above it does, for titles: a format of ``value`` and ``label``; without ``each``, what the
            highest head does: ``attends most broadly``; empty for none.
        by_layer: Columns drawn as dots by layer, and the panel of each.
        level: A column whose mean is a line there, and its name; empty for none.
        history: Columns drawn over training steps.
        start: Their number before the first step, if it is known.
        reads_task: Whether findings speak of what fine-tuning on the task did; a model that learned nothing has none of
            them.
        effects: Whether the numbers are changes of a score, whose losses are drawn from white to dark red.
        compared: Whether pages that compare runs show them.
    """

    about: str = ""
    lowest: bool = False
    verb: str = ""
    first: str = ""
    unchanged: float | None = None
    each: tuple[str, ...] = ()
    beyond: float | None = None
    says: str = ""
    by_layer: Mapping[str, str] = field(default_factory=dict)
    level: tuple[str, str] | None = None
    history: tuple[str, ...] = ()
    start: float | None = None
    reads_task: bool = False
    effects: bool = False
    compared: bool = True


class HeadGrid:
    """Values, standard errors and counts of one measure, for each head and named column.

    Args:
        measure: Name of the measure, e.g. ``"drift"``.
        columns: The C columns: their names, e.g. ``("cosine", "jensen_shannon")``, or :class:`Column` with labels and
            units.
        value_LHC: Means over examples, float64; NaN where ``count`` is 0.
        stderr_LHC: Standard errors of those means, float64; NaN where fewer than two examples were seen.
        count_LHC: Numbers of examples, int64.

    Layers and heads count from 0. A grid of whole layers has H = 1 and ``whole_layers=True``.

    Raises:
        ValueError: If the three tensors are not ``[layers, heads, len(columns)]``.
    """

    def __init__(
        self,
        measure: str,
        columns: Sequence[str | Column],
        value_LHC: Tensor,
        stderr_LHC: Tensor,
        count_LHC: Tensor,
        whole_layers: bool = False,
    ) -> None:
        for name, tensor in (("value", value_LHC), ("stderr", stderr_LHC), ("count", count_LHC)):
            if tensor.shape != value_LHC.shape or tensor.dim() != 3 or tensor.shape[2] != len(columns):
                raise ValueError(
                    f"{name} of grid '{measure}' has shape {list(tensor.shape)}; expected [layers, heads, "
                    f"{len(columns)}]"
                )
        self.measure = measure
        self.described = tuple(
            column if isinstance(column, Column) else Column(column, column.replace("_", " ")) for column in columns
        )
        self.columns = tuple(column.name for column in self.described)
        self.value_LHC = value_LHC.detach().cpu().double()
        self.stderr_LHC = stderr_LHC.detach().cpu().double()
        self.count_LHC = count_LHC.detach().cpu().long()
        self.whole_layers = whole_layers

    @property
    def num_layers(self) -> int:
        return self.value_LHC.shape[0]

    @property
    def num_heads(self) -> int:
        return self.value_LHC.shape[1]

    def column(self, name: str) -> Tensor:
        """The ``[layers, heads]`` values of one column; raises ``ValueError`` if it does not exist."""
        return self.value_LHC[:, :, self.columns.index(name)]

    def only(self, columns: tuple[str, ...]) -> HeadGrid:
        """A grid of some of the columns; raises ``ValueError`` if one does not exist."""
        indices = [self.columns.index(name) for name in columns]
        return HeadGrid(
            self.measure,
            [self.described[index] for index in indices],
            self.value_LHC[:, :, indices],
            self.stderr_LHC[:, :, indices],
            self.count_LHC[:, :, indices],
            self.whole_layers,
        )

    @classmethod
    def from_sums(
        cls,
        measure: str,
        columns: Sequence[str | Column],
        total_LHC: Tensor,
        squares_LHC: Tensor,
        count_LHC: Tensor,
        *,
        whole_layers: bool = False,
    ) -> HeadGrid:
        """Means and standard errors (n - 1 in the variance) from sums over examples of x and of x squared."""
        n_LHC = count_LHC.double()
        mean_LHC = (total_LHC / n_LHC.clamp(min=1)).masked_fill(n_LHC <= 0, math.nan)
        variance_LHC = (squares_LHC - n_LHC * mean_LHC.square()).clamp(min=0) / (n_LHC - 1).clamp(min=1)
        stderr_LHC = (variance_LHC / n_LHC.clamp(min=1)).sqrt().masked_fill(n_LHC <= 1, math.nan)
        return cls(measure, columns, mean_LHC, stderr_LHC, count_LHC, whole_layers)
