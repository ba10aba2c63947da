"""The long table of a disabling sweep: one row for each variant, metric and training step."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write

_TEXT = ("run", "model", "task", "init", "stage", "evaluation", "metric", "mode", "kind", "variant", "heads")
_WHOLE = ("step", "num_heads", "count")
_REAL = ("baseline", "score", "delta", "stderr", "low", "high", "p_value", "p_bh", "p_holm", "flips", "smallest_effect")
_SETTINGS = ("level", "false_discovery_rate")

SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in _TEXT),
        *(pa.field(name, pa.int64(), nullable=False) for name in _WHOLE),
        pa.field("layer", pa.int32()),
        pa.field("head", pa.int32()),
        *(pa.field(name, pa.float64(), nullable=False) for name in (*_REAL, *_SETTINGS)),
        pa.field("significant", pa.bool_(), nullable=False),
    ]
)
"""The columns.

run, model, task, init, stage, step: As in the head table.
evaluation, metric: The evaluation set and the score of the row.
mode: ``uniform``, ``zero`` or ``mean``.
kind: ``head``, ``layer``, ``group``, ``group_but_one``, ``all_but_one``, ``cumulative`` or ``random``.
variant: A sortable name: ``l03h11``, ``l03``, ``all-but-l03h11``, ``group-002``, ``group-002-but-l03h11``,
    ``top-010``, ``random-04-001``.
heads: The disabled heads, e.g. ``3-11 5-2``, counted from 0.
num_heads: Number of disabled heads.
count: Number of examples.
layer, head: The disabled head, the remaining head (``all_but_one``) or the layer (head null); else null.
baseline, score, delta: The score without and with the heads disabled, and ``score - baseline``.
stderr, low, high: Bootstrap standard error and confidence limits of ``delta``.
p_value, p_bh, p_holm: Paired test of no change; raw, and corrected over all variants of one kind, mode, metric and
    step.
flips: Share of examples with another predicted class; for scores, mean absolute change of the prediction.
smallest_effect: The smallest absolute ``delta`` detectable with this set (80 % power at the corrected level).
level, false_discovery_rate: Level of the limits, and false discovery rate of significant changes.
significant: Whether ``p_bh`` is at most ``false_discovery_rate``.
"""

_KEY = [
    "run",
    "model",
    "task",
    "init",
    "stage",
    "step",
    "evaluation",
    "metric",
    "mode",
    "kind",
    "variant",
]


class AblationTable:
    """Table of ``SCHEMA``; raises ``ValueError`` if the table has other columns."""

    def __init__(self, table: pa.Table) -> None:
        if table.schema.names != SCHEMA.names:
            raise ValueError(f"Not an ablation table: it has the columns {', '.join(table.schema.names)}")
        self.table = table.cast(SCHEMA)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @classmethod
    def from_rows(cls, rows: list[dict[str, Any]]) -> "AblationTable":
        """One dictionary for each row."""
        return cls(pa.Table.from_pylist(rows, schema=SCHEMA))

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each row."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def append(self, other: "AblationTable") -> "AblationTable":
        """The rows of both; a row of ``other`` replaces the row with its key."""
        kept = {tuple(row[name] for name in _KEY): row for row in [*self.rows(), *other.rows()]}
        return AblationTable.from_rows(list(kept.values()))

    def select(self, **equal: str | int) -> "AblationTable":
        """The rows in which each named column has the requested value."""
        chosen = self.table
        for name, value in equal.items():
            chosen = chosen.filter(pc.equal(chosen[name], pa.scalar(value, SCHEMA.field(name).type)))
        return AblationTable(chosen)

    def write(self, path: Path) -> None:
        """Write Parquet atomically."""
        with atomic_write(path) as temporary:
            pq.write_table(self.table, temporary, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> "AblationTable":
        """Read a file that ``write`` wrote; raise UserError if it is missing or something else."""
        try:
            with pq.ParquetFile(path) as file:
                table = file.read()
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{path} cannot be read as an ablation table ({error}); give the path of a run's ablation.parquet."
            ) from error
        if table.schema.names != SCHEMA.names:
            raise UserError(
                f"{path} is not an ablation table: it has the columns {', '.join(table.schema.names)}; "
                "give the path of a run's ablation.parquet."
            )
        return cls(table)
