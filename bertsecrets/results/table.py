"""The head table: one tidy table with the numbers of all analyses."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsecrets.grid import HeadGrid
from bertsecrets.results.files import read_table, write_parquet

SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in ("run", "model", "task", "init", "stage")),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("measure", pa.string(), nullable=False),
        pa.field("column", pa.string(), nullable=False),
        pa.field("layer", pa.int32(), nullable=False),
        pa.field("head", pa.int32(), nullable=True),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("stderr", pa.float64(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
_RESULTS = ("value", "stderr", "count")
_KEY = [name for name in SCHEMA.names if name not in _RESULTS]
_EXPERIMENT = ("run", "model", "task", "init")


class MissingColumnError(ValueError):
    """A table has no rows for a measure's column, because it was not measured or an older version measured it."""


class HeadTable:
    """Rows of one number per attention head (or, with ``head`` null, per layer), with standard error and count.

    Args:
        table: A pyarrow table of exactly ``SCHEMA``.

    Layers and heads count from 0. Every column but ``value``, ``stderr`` and ``count`` is part of a row's key.

    Raises:
        ValueError: If the schema differs.
    """

    def __init__(self, table: pa.Table) -> None:
        if table.schema.names != SCHEMA.names:
            raise ValueError(f"Not a head table: it has the columns {', '.join(table.schema.names)}")
        self.table = table.cast(SCHEMA)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @classmethod
    def empty(cls) -> "HeadTable":
        """A table without rows."""
        return cls(SCHEMA.empty_table())

    @classmethod
    def from_grid(
        cls, grid: HeadGrid, *, run: str, model: str, task: str, init: str, stage: str, step: int
    ) -> "HeadTable":
        """One row per cell of ``grid``, including cells without examples."""
        layers, heads, columns = grid.value_LHC.shape
        column_N, layer_N, head_N = (index_CLH.ravel().tolist() for index_CLH in np.indices((columns, layers, heads)))
        fixed = {
            "run": run,
            "model": model,
            "task": task,
            "init": init,
            "stage": stage,
            "step": step,
            "measure": grid.measure,
        }
        content: dict[str, list[Any]] = {name: [value] * len(layer_N) for name, value in fixed.items()}
        content |= {"column": [grid.columns[column] for column in column_N], "layer": layer_N, "head": head_N}
        if grid.whole_layers:
            content["head"] = [None] * len(layer_N)
        for name, number_LHC in zip(_RESULTS, (grid.value_LHC, grid.stderr_LHC, grid.count_LHC), strict=True):
            content[name] = number_LHC.movedim(2, 0).flatten().tolist()
        return cls(pa.table(content, schema=SCHEMA))

    @classmethod
    def concat(cls, tables: Iterable["HeadTable"]) -> "HeadTable":
        """All rows of all tables; among rows with the same key, the last is kept."""
        joined = pa.concat_tables([SCHEMA.empty_table(), *(part.table for part in tables)])
        indexed = joined.append_column("index", pa.array(np.arange(joined.num_rows), pa.int64()))
        # Unlike a join, grouping treats null heads as equal.
        last = indexed.group_by(_KEY).aggregate([("index", "max")])["index_max"].to_numpy()
        return cls(joined.take(pa.array(np.sort(last), pa.int64())))

    def write(self, path: Path) -> None:
        """Write Parquet; raise UserError if the disk is full."""
        write_parquet(path, self.table)

    @classmethod
    def read(cls, path: Path) -> "HeadTable":
        """Read a file written by ``write``.

        Raises:
            UserError: If the file is missing, cannot be read or has other columns.
        """
        return cls(read_table(path, SCHEMA, "a head table"))

    def select(self, **equal: str | int | None) -> "HeadTable":
        """The rows in which each named column has the requested value; ``head=None`` selects whole layers.

        Raises:
            ValueError: If a column does not exist.
        """
        selected = self.table
        for name, value in equal.items():
            if name not in SCHEMA.names:
                raise ValueError(f"Head tables have no column '{name}'; columns: {', '.join(SCHEMA.names)}")
            column = selected[name]
            selected = selected.filter(
                pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
            )
        return HeadTable(selected)

    def grid(
        self, measure: str, column: str, stage: str, step: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Values, standard errors and counts of one column, each ``[layers, heads]``; NaN and 0 where absent.

        The size is the largest over all steps and stages of this column. Whole layers give ``[layers, 1]``.

        Raises:
            MissingColumnError: If no row matches.
            ValueError: If rows of several runs match.
        """
        rows = self.select(measure=measure, column=column)
        table = rows.select(stage=stage, step=step).table
        if table.num_rows == 0:
            raise MissingColumnError(f"The table has no {measure}/{column} at stage '{stage}', step {step}")
        for name in _EXPERIMENT:
            values = pc.unique(table[name]).to_pylist()
            if len(values) > 1:
                raise ValueError(f"{measure}/{column} exists for several values of '{name}' ({values}); select one")
        layer_N, head_N = _positions(table)
        all_layer_N, all_head_N = _positions(rows.table)
        value_LH = np.full((all_layer_N.max() + 1, all_head_N.max() + 1), np.nan)
        stderr_LH = value_LH.copy()
        count_LH = np.zeros(value_LH.shape, np.int64)
        for name, target_LH in (("value", value_LH), ("stderr", stderr_LH), ("count", count_LH)):
            target_LH[layer_N, head_N] = table[name].to_numpy()
        return value_LH, stderr_LH, count_LH

    def steps(self, measure: str, column: str, stage: str) -> list[int]:
        """Training steps with one column, ascending; empty if the column does not exist."""
        rows = self.select(measure=measure, column=column, stage=stage)
        return sorted(pc.unique(rows.table["step"]).to_pylist())

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``."""
        return self.table.to_pandas()


def _positions(table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    layer_N = table["layer"].to_numpy().astype(np.int64)
    return layer_N, pc.fill_null(table["head"], 0).to_numpy().astype(np.int64)
