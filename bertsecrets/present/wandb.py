"""Grids, tables and figures in Weights & Biases, under the same names in every run."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from bertsecrets.grid import Column, HeadGrid
from bertsecrets.present.figures.grids import HeadPanel, head_panels, heatmap
from bertsecrets.present.figures.saving import png
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.report.content import FigureBlock
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.formatting import head_code
from bertsecrets.results.table import SCHEMA, HeadTable

# Slow to import, and needed only where a run logs to it: pages describe experiments without it.
if TYPE_CHECKING:
    import wandb
    from wandb.sdk.wandb_run import Run

STEP = "trainer/global_step"
"""Name of the x axis of everything logged here: Lightning's name for the training step."""

_SCREEN_DPI = 150
"""That of files and pages: each figure is rendered once."""


def define_axis(run: "Run", grid: HeadGrid) -> None:
    """Make the training step the x axis of what ``log_grid`` logs, and hide the scalars of heads and layers.

    A panel for each of them would bury the heatmap and the table that show them all; panels that name them show them
    still.
    """
    run.define_metric(STEP)
    if grid.whole_layers:
        run.define_metric(f"{grid.measure}/*", step_metric=STEP)
        return
    for column in grid.columns:
        run.define_metric(f"{grid.measure}/{column}/l*", step_metric=STEP, hidden=True)


def log_grid(run: "Run", grid: HeadGrid, step: int, *, title: str | None = None, effects: bool = False) -> None:
    """Log a grid: a heatmap of each column, one table, and scalars of heads and layers.

    ``drift/cosine/heatmap`` is a picture under the same name at every step, ``drift/table`` (none for effects) has a
    row for each head, ``drift/cosine/l11h03`` is one head, and ``drift/cosine/l11`` the mean over a layer's heads (not
    of p-values, and not of effects, where it would be taken for the effect of the whole layer). A grid of whole layers
    has the scalars of layers only. What has no value is left out.

    Args:
        run: The run.
        grid: The grid.
        step: Training step, counted in optimiser updates.
        title: What the heatmaps show; None for the measure's name.
        effects: Whether values are changes of a score, whose losses are drawn from white to dark red.
    """
    content: dict[str, object] = {STEP: step}
    for cell in grid.cells():
        if math.isfinite(cell.value):
            content[f"{grid.measure}/{cell.column}/{head_code(cell.layer, cell.head)}"] = cell.value
    if not grid.whole_layers:
        for column in grid.described:
            for layer, mean in enumerate(grid.column(column.name).nanmean(dim=1).tolist()):
                if math.isfinite(mean) and column.role != "p_value" and not effects:
                    content[f"{grid.measure}/{column.name}/{head_code(layer, None)}"] = mean
            figure = _heatmap(grid, column, f"{title or grid.measure}: {column.label}, step {step}", effects)
            content[f"{grid.measure}/{column.name}/heatmap"] = _image(figure)
        if not effects:
            # Those of a sweep are in the table that ``log_ablation`` logs, with their verdicts.
            content[f"{grid.measure}/table"] = _heads_table(grid)
    run.log(content)


def _heatmap(grid: HeadGrid, column: Column, title: str, effects: bool) -> Figure:
    value_LH, count_LH = grid.column(column.name).numpy(), grid.count_LHC[:, :, grid.columns.index(column.name)].numpy()
    unit = column.unit or column.label
    if effects:
        panels = [HeadPanel(column.label, value_LH)]
        return head_panels(panels, title=title, unit=unit, note=sample_size(count_LH), effects=True)
    return heatmap(value_LH, title=title, unit=unit, count=count_LH, limits=column.limits)


def _heads_table(grid: HeadGrid) -> "wandb.Table":
    """A row for each head, with the value and the standard error of every column."""
    header: list[str | int] = ["layer", "head"]
    for name in grid.columns:
        header += [name, f"{name}_stderr"]
    number_LHC2 = np.stack([grid.value_LHC, grid.stderr_LHC], axis=-1)
    rows = [
        [layer, head, *(value if math.isfinite(value) else None for value in number_LHC2[layer, head].ravel().tolist())]
        for layer in range(grid.num_layers)
        for head in range(grid.num_heads)
    ]
    return _table(header, rows)


def log_table(run: "Run", table: HeadTable) -> None:
    """Log the whole head table under ``heads``, once at the end of a run."""
    rows = [list(row) for row in zip(*table.table.to_pydict().values(), strict=True)]
    run.log({"heads": _table(SCHEMA.names, rows)})


def log_ablation(run: "Run", table: AblationTable) -> None:
    """Log the long table of a disabling sweep under ``ablation/table``."""
    shown = table.shown()
    run.log({"ablation/table": _table(shown.schema.names, [list(row.values()) for row in shown.to_pylist()])})


def log_curves(run: "Run", curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Log curves over axes of their own, once at the end of a run.

    Args:
        run: The run.
        curves: Name of the x axis -> its points: x and the value of every curve there, by name.
    """
    for axis, points in curves.items():
        run.define_metric(axis, hidden=True)
        for name in dict.fromkeys(name for point in points for name in point if name != axis):
            run.define_metric(name, step_metric=axis)
        for point in points:
            run.log(dict(point))


def log_figures(run: "Run", blocks: Sequence[FigureBlock]) -> None:
    """Log every figure of a report under ``figures/<name>``."""
    if blocks:
        run.log({f"figures/{block.name}": _image(block.figure) for block in blocks})


def artifact_name(identity: str) -> str:
    """Name of the artifact with a run's results."""
    return f"run-{identity}"


def log_summary(run: "Run", values: Mapping[str, float | int | str]) -> None:
    """Set the summary values of a run, ignoring NaN."""
    run.summary.update({name: value for name, value in values.items() if value == value})


def _table(columns: Sequence[str | int], rows: list[list[object]]) -> "wandb.Table":
    import wandb

    return wandb.Table(columns=list(columns), data=rows)


def _image(figure: Figure) -> "wandb.Image":
    import wandb

    # Given the figure itself, W&B would import pyplot.
    return wandb.Image(Image.open(io.BytesIO(png(figure, _SCREEN_DPI))))
