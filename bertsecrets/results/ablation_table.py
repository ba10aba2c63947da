"""The long table of a disabling sweep: one row per variant, metric and training step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bertsecrets.results.files import read_table, write_parquet
from bertsecrets.results.verdicts import WORDS

_TEXT = ("run", "model", "task", "init", "stage", "evaluation", "metric", "mode", "kind", "variant", "heads")
_WHOLE = ("step", "num_heads", "count")
_REAL = (
    "baseline",
    "score",
    "delta",
    "stderr",
    "low",
    "high",
    "p_value",
    "p_bh",
    "p_needed",
    "flips",
    "smallest_effect",
)
_SETTINGS = ("level", "false_discovery_rate")
_MARGIN = ("margin", "p_margin")
_GROUP = ("interaction", "interaction_low", "interaction_high", "p_interaction", "p_controls")
_SIMULTANEOUS = ("low_simultaneous", "high_simultaneous")
_MEANS = ("loss_change", "loss_low", "loss_high", "logit_margin_change", "logit_margin_low", "logit_margin_high")
_LOSS = ("loss_baseline", "loss_low_simultaneous", "loss_high_simultaneous", "p_loss_rise")

SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in _TEXT),
        *(pa.field(name, pa.int64(), nullable=False) for name in _WHOLE),
        pa.field("layer", pa.int32()),
        pa.field("head", pa.int32()),
        *(pa.field(name, pa.float64(), nullable=False) for name in (*_REAL, *_SETTINGS)),
        pa.field("significant", pa.bool_(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        *(pa.field(name, pa.float64()) for name in (*_MARGIN, *_GROUP)),
        pa.field("redundant", pa.bool_()),
        pa.field("sweep", pa.string()),
        pa.field("evaluated", pa.float64()),
        *(pa.field(name, pa.float64()) for name in (*_MEANS, *_SIMULTANEOUS)),
        pa.field("correction", pa.string()),
        *(pa.field(name, pa.float64()) for name in _LOSS),
    ]
)
"""The columns.

run, model, task, init, stage, step: As in the head table.
evaluation, metric: The evaluation set and the score of the row.
mode: ``uniform``, ``zero`` or ``mean``.
kind: ``head``, ``layer``, ``group``, ``group_but_one``, ``all_but_one``, ``cumulative`` or ``random``.
variant: A sortable name: ``l03h11``, ``l03``, ``all-but-l03h11``, ``group-002``, ``group-002-but-l03h11``,
    ``top-010``, ``random-04-001``, ``random-02.03-001``.
heads: The disabled heads, e.g. ``3-11 5-2``, counted from 0.
num_heads: Number of disabled heads.
count: Number of examples.
layer, head: The disabled head, the remaining head (``all_but_one``) or the layer (head null); else null.
baseline, score, delta: The score without and with the heads disabled, and ``score - baseline``.
stderr, low, high: Bootstrap standard error, and confidence limits of ``delta``.
p_value, p_bh: Paired test of no change; raw, and corrected to the false discovery rate over all variants of one kind,
    mode, metric and step.
p_needed, correction: One-sided test of no loss, corrected over the same variants with the method ``correction``:
    ``family_wise`` or ``false_discovery``.
flips: Share of examples with a changed predicted class; for scores, mean absolute change of the prediction.
smallest_effect: The smallest loss detectable with this set (80 % power at the corrected level); NaN if unknown.
level, false_discovery_rate: Level of the limits, and false discovery rate of significant changes.
significant: Whether ``p_bh`` is at most ``false_discovery_rate``.
verdict: The code ``needed``, ``dispensable`` or ``inconclusive``; in files and in pandas the words used on pages
    (``WORDS``).
margin, p_margin: The margin, and the one-sided p-value of a loss of at least the margin, corrected as ``p_bh``. If its
    uncorrected value is no larger than that of a variant without changed predictions, it is capped at the latter, so
    that no other variant decides the verdict.
interaction, interaction_low, interaction_high, p_interaction: For groups whose heads were also disabled singly: the
    joint effect minus the sum of the single effects, its bootstrap limits, and the one-sided p-value, corrected over
    groups, of the joint effect being no worse than the sum; null for other rows.
p_controls: Share of random groups from the same layers (and the group itself) that do at least as much harm; NaN if too
    few.
redundant: Whether the heads of the group can replace each other; null for other rows.
sweep, evaluated: ``exact`` or ``screened``, and the share of the examples on which the variant was evaluated exactly.
loss_change, loss_low, loss_high: Change of the mean loss (cross-entropy or squared error) with its confidence limits;
    positive is harm. In a screened sweep an estimate, whose sign may be wrong if the limits include 0.
logit_margin_change, logit_margin_low, logit_margin_high: The same for the logit of the gold class minus the largest
    other logit; negative is harm; null for scores.
low_simultaneous, high_simultaneous: Confidence limits of ``delta`` that hold for all variants of one kind, mode, metric
    and step together.
loss_baseline: The mean loss with nothing disabled.
loss_low_simultaneous, loss_high_simultaneous: Confidence limits of ``loss_change``, likewise for all variants together.
p_loss_rise: One-sided test of no rise of the mean loss, corrected as ``p_needed``.
"""

UNCORRECTED = {
    "p_value": "p_uncorrected",
    "low": "low_pointwise",
    "high": "high_pointwise",
    "loss_low": "loss_low_pointwise",
    "loss_high": "loss_high_pointwise",
    "logit_margin_low": "logit_margin_low_pointwise",
    "logit_margin_high": "logit_margin_high_pointwise",
}
"""Names in files, pandas and W&B of pointwise values, which must not be confused with those behind the verdict."""

_KEY = [*(name for name in _TEXT if name != "heads"), "step"]


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
        """One dictionary per row."""
        return cls(pa.Table.from_pylist(rows, schema=SCHEMA))

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per row."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def append(self, other: "AblationTable") -> "AblationTable":
        """The rows of both; a row of ``other`` replaces a row with the same key."""
        row_of_key = {tuple(row[name] for name in _KEY): row for row in [*self.rows(), *other.rows()]}
        return AblationTable.from_rows(list(row_of_key.values()))

    def select(self, **equal: str | int) -> "AblationTable":
        """The rows in which each named column has the requested value."""
        selected = self.table
        for name, value in equal.items():
            selected = selected.filter(pc.equal(selected[name], pa.scalar(value, SCHEMA.field(name).type)))
        return AblationTable(selected)

    def to_pandas(self) -> Any:
        """A pandas table of :meth:`shown`."""
        return self.shown().to_pandas()

    def shown(self) -> pa.Table:
        """The table for readers: verdicts in words, and uncorrected columns named as such (:data:`UNCORRECTED`)."""
        table = _spelt(self.table, WORDS)
        return table.rename_columns([UNCORRECTED.get(name, name) for name in table.schema.names])

    def write(self, path: Path) -> None:
        """Write :meth:`shown` as Parquet, atomically."""
        write_parquet(path, self.shown())

    @classmethod
    def read(cls, path: Path) -> "AblationTable":
        """Read a file written by ``write``; raise UserError if it is missing or not such a file."""
        table = read_table(path, SCHEMA, "an ablation table", {shown: name for name, shown in UNCORRECTED.items()})
        return cls(_spelt(table, {word: code for code, word in WORDS.items()}))


def _spelt(table: pa.Table, spelling: Mapping[str, str]) -> pa.Table:
    """A table with its verdicts respelled."""
    verdicts = [spelling.get(verdict, verdict) for verdict in table["verdict"].to_pylist()]
    return table.set_column(SCHEMA.names.index("verdict"), SCHEMA.field("verdict"), pa.array(verdicts, pa.string()))
