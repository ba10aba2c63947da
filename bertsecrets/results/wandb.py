"""Grids, tables and figures in Weights & Biases, under the same names in every run."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import wandb
from matplotlib.figure import Figure
from PIL import Image

from bertsecrets.grid import HeadGrid
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.figures.saving import png
from bertsecrets.results.formatting import head_code
from bertsecrets.results.report.content import FigureBlock
from bertsecrets.results.table import SCHEMA, HeadTable

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

STEP = "trainer/global_step"
"""Name of the x axis of everything logged here: Lightning's name for the training step."""

_SCREEN_DPI = 110


def define_axis(run: "Run | None", measure: str) -> None:
    """Make the training step the x axis of everything that ``log_grid`` logs for a measure; does nothing without a run."""
    if run is not None:
        run.define_metric(STEP)
        run.define_metric(f"{measure}/*", step_metric=STEP)


def log_grid(run: "Run | None", grid: HeadGrid, step: int, heatmaps: Mapping[str, Figure] | None = None) -> None:
    """Log ``drift/cosine/l11h03`` for every head with a value, and ``drift/cosine/heatmap`` if there is a figure.

    Args:
        run: The run; None to log nothing.
        grid: The grid.
        step: Training step, counted in optimiser updates.
        heatmaps: Figures by column of the grid.
    """
    if run is None:
        return
    content: dict[str, object] = {STEP: step}
    for cell in grid.cells():
        if math.isfinite(cell.value):
            content[f"{grid.measure}/{cell.column}/{head_code(cell.layer, cell.head)}"] = cell.value
    for column, figure in (heatmaps or {}).items():
        content[f"{grid.measure}/{column}/heatmap"] = _image(figure)
    run.log(content)


def log_table(run: "Run | None", table: HeadTable) -> None:
    """Log the whole head table under ``heads``, once at the end of a run; does nothing without a run."""
    if run is not None:
        rows = [list(row) for row in zip(*table.table.to_pydict().values(), strict=True)]
        run.log({"heads": wandb.Table(columns=list(SCHEMA.names), data=rows)})


def log_ablation(run: "Run | None", table: AblationTable) -> None:
    """Log the long table of a disabling sweep under ``ablation/table``; does nothing without a run."""
    if run is not None:
        columns = table.table.schema.names
        rows = [[row[name] for name in columns] for row in table.rows()]
        run.log({"ablation/table": wandb.Table(columns=columns, data=rows)})


def log_figures(run: "Run | None", blocks: Sequence[FigureBlock]) -> None:
    """Log every figure of a report under ``figures/<name>``; does nothing without a run."""
    if run is not None and blocks:
        run.log({f"figures/{block.name}": _image(block.figure) for block in blocks})


def artifact_name(identity: str) -> str:
    """Name of the artifact with a run's results."""
    return f"run-{identity}"


def log_summary(run: "Run | None", values: Mapping[str, float | int | str]) -> None:
    """Set the summary values of a run, ignoring NaN; does nothing without a run."""
    if run is not None:
        run.summary.update({name: value for name, value in values.items() if value == value})


def _image(figure: Figure) -> wandb.Image:
    # Given the figure itself, W&B would import pyplot.
    return wandb.Image(Image.open(io.BytesIO(png(figure, _SCREEN_DPI))))
