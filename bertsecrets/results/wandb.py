"""Grids, tables and figures in Weights & Biases, under names that stay the same from run to run."""

import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import wandb
from matplotlib.figure import Figure
from PIL import Image

from bertsecrets.grid import HeadGrid
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.figures.saving import png
from bertsecrets.results.table import SCHEMA, HeadTable

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

STEP = "trainer/global_step"
"""Name of the x axis of everything logged here: Lightning's name for the training step."""

_SCREEN_DPI = 110


def head_name(layer: int, head: int | None) -> str:
    """Name of a head that sorts by layer and head, or of a whole layer.

    >>> head_name(11, 3), head_name(0, None)
    ('l11h03', 'l00')
    """
    return f"l{layer:02d}" if head is None else f"l{layer:02d}h{head:02d}"


def define_axis(run: "Run | None", measure: str) -> None:
    """Makes the training step the x axis of everything that ``log_grid`` logs for a measure; nothing without a run."""
    if run is not None:
        run.define_metric(STEP)
        run.define_metric(f"{measure}/*", step_metric=STEP)


def log_grid(run: "Run | None", grid: HeadGrid, step: int, heatmaps: Mapping[str, Figure] | None = None) -> None:
    """Logs ``drift/cosine/l11h03`` for every head with a value, and ``drift/cosine/heatmap`` where there is a figure.

    Args:
        run: The run; None logs nothing.
        grid: The numbers.
        step: Training step, counted in optimiser updates.
        heatmaps: Figures by column of the grid.
    """
    if run is None:
        return
    content: dict[str, object] = {STEP: step}
    for cell in grid.cells():
        if math.isfinite(cell.value):
            content[f"{grid.measure}/{cell.column}/{head_name(cell.layer, cell.head)}"] = cell.value
    for column, figure in (heatmaps or {}).items():
        content[f"{grid.measure}/{column}/heatmap"] = _image(figure)
    run.log(content)


def log_table(run: "Run | None", table: HeadTable) -> None:
    """Logs the whole head table under ``heads``; once, at the end of a run. Nothing without a run."""
    if run is not None:
        rows = [list(row) for row in zip(*table.table.to_pydict().values(), strict=True)]
        run.log({"heads": wandb.Table(columns=list(SCHEMA.names), data=rows)})


def log_ablation(run: "Run | None", table: AblationTable, figures: Mapping[str, Figure]) -> None:
    """Logs a disabling sweep under ``ablation``: its long table, and its figures by name; nothing without a run."""
    if run is not None:
        columns = table.table.schema.names
        rows = [[row[name] for name in columns] for row in table.rows()]
        content: dict[str, object] = {"ablation/table": wandb.Table(columns=columns, data=rows)}
        for name, figure in figures.items():
            content[f"ablation/{name.removeprefix('ablation_')}"] = _image(figure)
        run.log(content)


def log_summary(run: "Run | None", values: Mapping[str, float | int | str]) -> None:
    """Sets the summary values of a run, leaving out NaN; nothing without a run."""
    if run is not None:
        run.summary.update({name: value for name, value in values.items() if value == value})


def _image(figure: Figure) -> wandb.Image:
    # Handing over the figure itself would make W&B start pyplot.
    return wandb.Image(Image.open(io.BytesIO(png(figure, _SCREEN_DPI))))
