"""What a run prints when it is done: its scores, the heads that changed most, and where the report is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertsecrets.results.score import Score
from bertsecrets.results.table import HeadTable


@dataclass(frozen=True)
class HeadLine:
    """One head's number, as printed: ``layer 5 · head 3   cosine 0.412 ± 0.010``.

    Args:
        layer: Layer, from 0.
        head: Head, from 0.
        quantity: What the number is, e.g. ``"cosine"``.
        value: The number.
        stderr: Its standard error; NaN where unknown.
    """

    layer: int
    head: int
    quantity: str
    value: float
    stderr: float


def outstanding_heads(
    table: HeadTable,
    measure: str,
    column: str,
    stage: str,
    step: int,
    *,
    first: Literal["lowest", "highest"],
    limit: int = 5,
) -> list[HeadLine]:
    """The heads with the lowest or highest values of one column, most extreme first; heads without a value left out.

    Raises:
        ValueError: If the table does not hold that column at that stage and step, for one experiment.
    """
    value_LH, stderr_LH, _ = table.grid(measure, column, stage, step)
    sign = 1.0 if first == "lowest" else -1.0
    order = np.argsort(sign * value_LH, axis=None, kind="stable")
    places = [divmod(int(place), value_LH.shape[1]) for place in order]
    return [
        HeadLine(layer, head, column, float(value_LH[layer, head]), float(stderr_LH[layer, head]))
        for layer, head in places
        if np.isfinite(value_LH[layer, head])
    ][:limit]


def print_summary(console: Console, scores: Sequence[Score], heads: Sequence[HeadLine], report_path: Path) -> None:
    """Prints the scores beside their constant baselines, a line for each head, and the report's path.

    Undefined numbers show as an en dash. Errors after ± are standard errors.
    """
    if scores:
        table = Table("metric", box=None, pad_edge=False)
        table.add_column("model", justify="right")
        table.add_column("constant answer", justify="right")
        for score in scores:
            table.add_row(Text(score.name), _with_error(score.value, score.stderr), _number(score.baseline))
        console.print(table)
    if heads:
        console.print(Text("\nHeads that changed most (± one standard error; layers and heads count from 0)"))
        names = [f"layer {line.layer} · head {line.head}" for line in heads]
        for name, line in zip(names, heads, strict=True):
            padded = name.ljust(max(map(len, names)))
            console.print(Text(f"{padded}   {line.quantity} {_with_error(line.value, line.stderr)}"))
    # A path broken over two lines could be neither clicked nor copied.
    console.print(Text(f"\nReport: {report_path}"), soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "\N{EN DASH}"


def _with_error(value: float, stderr: float) -> str:
    if math.isfinite(value) and math.isfinite(stderr):
        return f"{value:.3f} ± {stderr:.3f}"
    return _number(value)
