"""Views of an experiment's numbers in one run, or in all runs of a condition, for page sections."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsecrets.grid import Column
from bertsecrets.results.rows import Row, as_rows, kind_name, moments, read_lines, rows_path
from bertsecrets.results.run import CHECKPOINT, INITIAL, RANDOM, TRAINING, Declaration, Run, difference_stage
from bertsecrets.results.table import HeadTable
from bertsecrets.statistics.corrections import LEVEL as LEVEL
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.student import mean_differs_from_zero, mean_exceeds_zero

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """One column of a measure in a model, compared with another model on the same examples.

    Args:
        model_LH, other_LH: The two models' numbers, ``[layers, heads]``.
        delta_LH: Mean over examples of the differences, the model's minus the other's.
        p_LH: P-values of no difference, paired over examples, corrected over the heads of all compared columns; NaN
            where undefined.
        count: Largest number of examples of a head.
    """

    model_LH: Array
    other_LH: Array
    delta_LH: Array
    p_LH: Array
    count: int

    @property
    def differs_LH(self) -> NDArray[np.bool_]:
        """Mask of the heads that differ at a false discovery rate of 5 %."""
        return np.nan_to_num(self.p_LH, nan=1.0) <= LEVEL

    @property
    def risen(self) -> int:
        """Number of heads that are significantly higher than in the other model."""
        return int((self.differs_LH & (self.delta_LH > 0)).sum())

    @property
    def fallen(self) -> int:
        """Number of heads that are significantly lower than in the other model."""
        return int((self.differs_LH & (self.delta_LH < 0)).sum())

    @property
    def moves(self) -> bool:
        """Whether any head differs at all, significantly or not."""
        return bool(np.nanmax(np.abs(self.delta_LH), initial=0) > 0)

    @property
    def largest(self) -> tuple[int, int]:
        """Layer and head of the largest significant difference."""
        size_LH = np.where(self.differs_LH, np.abs(self.delta_LH), -1.0)
        layer, head = np.unravel_index(size_LH.argmax(), size_LH.shape)
        return int(layer), int(head)


class MeasureView:
    """The numbers of one experiment in one run, at its last step, read from the run's folder.

    Numbers of a finished checkpoint take precedence over those taken during training.

    Args:
        run: The run.
        declaration: The experiment's name, title and columns.
        table: The run's head table; None to read it.
    """

    def __init__(self, run: Run, declaration: Declaration, table: HeadTable | None = None) -> None:
        self.run = run
        self.name = declaration.name
        self.title = declaration.title
        self.shown = declaration.shown
        self.rows = (run.table() if table is None else table).select(measure=declaration.name)
        stages = pc.unique(self.rows.table["stage"]).to_pylist()
        self.stage = CHECKPOINT if CHECKPOINT in stages else TRAINING
        present = self.rows.select(stage=self.stage).table
        self.step: int | None = max(pc.unique(present["step"]).to_pylist(), default=None)
        names = pc.unique(self.rows.table["column"]).to_pylist()
        declared = {column.name: column for column in declaration.columns}
        self.columns = tuple(declared.get(name, Column(name, name.replace("_", " "))) for name in names)
        """The table's columns of any stage, as declared; undeclared columns are labelled by their names."""

    @property
    def of_layers(self) -> bool:
        """Whether all numbers are for whole layers."""
        heads = self.rows.table["head"]
        return len(heads) > 0 and heads.null_count == len(heads)

    def column(self, name: str) -> Column:
        """A column's description; raises ``KeyError`` if the table does not have it."""
        columns = {column.name: column for column in self.columns}
        return columns[name]

    def has(self, name: str) -> bool:
        """Whether the last step has a column."""
        return self.step is not None and bool(
            self.rows.select(column=name, stage=self.stage, step=self.step).table.num_rows
        )

    def grid(self, name: str) -> tuple[Array, Array, NDArray[np.int64]]:
        """Values, standard errors and counts ``[layers, heads]`` of a column.

        Raises:
            MissingColumnError: If the last step does not have it.
        """
        return self.rows.grid(self.name, name, self.stage, -1 if self.step is None else self.step)

    def value(self, name: str) -> Array:
        """Values ``[layers, heads]`` of a column."""
        return self.grid(name)[0]

    def stderr(self, name: str) -> Array:
        """Standard errors ``[layers, heads]`` of a column."""
        return self.grid(name)[1]

    def count(self, name: str) -> int:
        """Largest number of examples in a head's average of a column."""
        return int(self.grid(name)[2].max())

    def beyond(self, limits: Mapping[str, float]) -> dict[str, NDArray[np.bool_]]:
        """Mask of the heads ``[layers, heads]`` that are significantly above the limit of each column.

        One-sided t tests over examples, at a false discovery rate of 5 % over all heads and columns; a head with fewer
        than two examples is not above any limit.

        Args:
            limits: Limits by column.
        """
        p_values = []
        for name, limit in limits.items():
            value_LH, stderr_LH, count_LH = self.grid(name)
            p_values.append(mean_exceeds_zero(value_LH - limit, stderr_LH, count_LH))
        # NaN (nothing to test) counts as not significant.
        return dict(zip(limits, corrected(np.stack(p_values)) <= LEVEL, strict=True)) if p_values else {}

    def differs(self, names: Sequence[str]) -> dict[str, Array]:
        """P-values ``[layers, heads]`` for column means of 0; NaN where not testable.

        Two-sided t tests, adjusted to a false discovery rate over all heads and columns.
        """
        p_values = [mean_differs_from_zero(*self.grid(name)) for name in names]
        return dict(zip(names, corrected(np.stack(p_values)), strict=True))

    def first_of(self, name: str, stages: Sequence[str]) -> tuple[Array, Array, NDArray[np.int64]] | None:
        """:meth:`grid` at the last step of the first given stage that has the column; None if none has it."""
        for stage in stages:
            steps = self.rows.steps(self.name, name, stage)
            if steps:
                return self.rows.grid(self.name, name, stage, steps[-1])
        return None

    def difference(self, name: str, other: str = INITIAL) -> tuple[Array, Array, NDArray[np.int64]] | None:
        """Mean difference over examples of a column from another model's, with standard errors and counts, ``[layers,
        heads]``.

        None if the models were not compared.
        """
        return self.first_of(name, [difference_stage(stage, other) for stage in (CHECKPOINT, TRAINING)])

    def history(self, name: str) -> list[tuple[int, Array]]:
        """Training steps at which a column was measured, ascending, with its values ``[layers, heads]``."""
        steps = self.rows.steps(self.name, name, TRAINING)
        return [(step, self.rows.grid(self.name, name, TRAINING, step)[0]) for step in steps]

    def at(self, stage: str, step: int | None = None) -> "MeasureView | None":
        """The same experiment at another stage, such as the model before fine-tuning; None if not measured.

        Args:
            stage: The stage.
            step: The step; None for the stage's last.
        """
        rows = self.rows.select(stage=stage) if step is None else self.rows.select(stage=stage, step=step)
        if not len(rows):
            return None
        view = copy(self)
        view.stage, view.step = stage, max(pc.unique(rows.table["step"]).to_pylist())
        return view

    def whole_layers(self) -> "MeasureView":
        """The numbers of whole layers only, ``[layers, 1]``."""
        view = copy(self)
        view.rows = self.rows.select(head=None)
        return view

    def lines(self, kind: str) -> list[Mapping[str, Any]]:
        """The experiment's rows of one kind at its last step, as plain values; empty without any.

        Raises:
            RecordError: If their file cannot be read, or belongs to another run.
        """
        stages = (self.stage,) if self.stage in (INITIAL, RANDOM) else (CHECKPOINT, TRAINING)
        present = {stage for stage, _ in self._moments}
        stage = next((stage for stage in stages if stage in present), None)
        if stage is None:
            return []
        # The last step over all kinds: a kind may have rows only at earlier steps, which do not count.
        last = max(moment for moment in self._moments if moment[0] == stage)
        lines = read_lines(self.run.folder, self.name, kind, self.run.name)
        return [line for identity, line in lines if (identity.stage, identity.step) == last]

    @cached_property
    def _moments(self) -> set[tuple[str, int]]:
        return moments(self.run.folder, self.name, self.run.name)

    def found(self, kind: type[Row]) -> list[Row]:
        """:meth:`lines` as rows.

        Raises:
            RecordError: If their file is damaged, or from another version or run.
        """
        name = kind_name(kind)
        return as_rows(kind, self.lines(name), f"'{rows_path(self.run.folder, self.name, name)}'")

    def fact(self, kind: type[Row]) -> Row | None:
        """The only row of a kind; None without one."""
        return next(iter(self.found(kind)), None)

    @cached_property
    def compared(self) -> dict[str, dict[str, Change]]:
        """Comparisons with other models: ``initial`` or ``random`` -> column -> change; empty if no model was compared.

        Baselines, which are the same for every model, and p-values are excluded.
        """
        models = {other: self._changes(other) for other in (INITIAL, RANDOM)}
        return {other: changes for other, changes in models.items() if changes}

    def widest_change(self, other: str) -> tuple[Column, Change]:
        """The column in which the most heads differ significantly from a model of ``compared``, and its change."""
        name, change = max(self.compared[other].items(), key=lambda item: int(item[1].differs_LH.sum()))
        return self.column(name), change

    def _changes(self, other: str) -> dict[str, Change]:
        for stage in (CHECKPOINT, TRAINING):
            differences = self.rows.select(stage=difference_stage(stage, other)).table
            if differences.num_rows:
                step = max(pc.unique(differences["step"]).to_pylist())
                names = set(pc.unique(differences["column"]).to_pylist())
                changes = {
                    column.name: self._change(column.name, stage, other, step)
                    for column in self.columns
                    if column.name in names and column.role == "value"
                }
                if not changes:
                    return {}
                adjusted = corrected(np.concatenate([change.p_LH.ravel() for change in changes.values()]))
                ends = np.cumsum([change.p_LH.size for change in changes.values()])[:-1]
                return {
                    name: replace(change, p_LH=p_N.reshape(change.p_LH.shape))
                    for (name, change), p_N in zip(changes.items(), np.split(adjusted, ends), strict=True)
                }
        return {}

    def _change(self, name: str, stage: str, other: str, step: int) -> Change:
        delta_LH, stderr_LH, count_LH = self.rows.grid(self.name, name, difference_stage(stage, other), step)
        return Change(
            self.rows.grid(self.name, name, stage, step)[0],
            self.rows.grid(self.name, name, other, 0)[0],
            delta_LH,
            mean_differs_from_zero(delta_LH, stderr_LH, count_LH),
            int(count_LH.max()),
        )


@dataclass(frozen=True)
class Grids:
    """A column in all replicates of a condition.

    Args:
        value_RLH, stderr_RLH: Values and standard errors over examples, ``[replicates, layers, heads]``.
        count: Largest number of examples of a head.
    """

    value_RLH: Array
    stderr_RLH: Array
    count: int


class Replicates:
    """One experiment in the runs of a condition, which differ only in their seed.

    Args:
        views: One per run with the experiment; at least one.
    """

    def __init__(self, views: Sequence[MeasureView]) -> None:
        self.views = tuple(views)

    @property
    def title(self) -> str:
        return self.views[0].title

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of any replicate."""
        return tuple({column.name: column for view in self.views for column in view.columns}.values())

    def grids(self, name: str) -> Grids | None:
        """A column at the last step of each replicate; None if no replicate has it."""
        grids = [view.grid(name) for view in self.views if view.has(name)]
        if not grids:
            return None
        return Grids(
            np.stack([value_LH for value_LH, _, _ in grids]),
            np.stack([stderr_LH for _, stderr_LH, _ in grids]),
            int(max(count_LH.max() for _, _, count_LH in grids)),
        )


@dataclass(frozen=True)
class Contrast:
    """Two conditions that differ in exactly one factor.

    Args:
        name: Name of the comparison, e.g. ``"mrpc: pretrained − random normal"``.
        first, second: Labels of the conditions.
    """

    name: str
    first: str
    second: str


@dataclass(frozen=True)
class Comparison:
    """One experiment in several conditions.

    Args:
        replicates: Label of each condition with the experiment -> its runs.
        contrasts: Pairs of conditions to compare.
    """

    replicates: Mapping[str, Replicates]
    contrasts: Sequence[Contrast] = ()
