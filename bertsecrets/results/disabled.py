"""The rows of an ablation table that pages are about."""

from collections.abc import Iterable, Sequence
from typing import Any

from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.components import Kind, Row
from bertsecrets.results.run import CHECKPOINT


def latest_rows(table: AblationTable) -> list[Row]:
    """The rows of the table's last step; those of a finished checkpoint go before those taken during training."""
    return _latest(table.rows())


def main_rows(table: AblationTable) -> list[Row]:
    """The rows of the table's last step in its first set and mode, of every kind and metric: what a first screen is
    about.
    """
    rows = latest_rows(table)
    return with_values(rows, **{name: rows[0][name] for name in ("evaluation", "mode")}) if rows else []


def rows_of(kind: Kind, table: AblationTable, mode: str | None = None) -> list[Row]:
    """The rows of a kind at its last step, of the first set, metric and mode, or of one mode."""
    rows = _latest([row for row in kind.of(table.rows()) if mode in (None, row["mode"])])
    return (
        with_values(rows, **{name: rows[0][name] for name in ("stage", "evaluation", "metric", "mode")}) if rows else []
    )


def with_values(rows: Iterable[Row], **equal: Any) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row[name] == value for name, value in equal.items())]


def _latest(rows: Sequence[Row]) -> list[Row]:
    rows = [row for row in rows if row["stage"] == CHECKPOINT] or list(rows)
    last = max((row["step"] for row in rows), default=0)
    return with_values(rows, step=last)
