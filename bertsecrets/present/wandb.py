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
from bertsecrets.present.figures.style import drawn, sample_size
from bertsecrets.present.report.content import FigureBlock
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.formatting import head_code
from bertsecrets.results.table import SCHEMA, HeadTable

# Slow to import and only needed if a run logs to W&B; pages do not need it.
if TYPE_CHECKING:
    import wandb
    from wandb.sdk.wandb_run import Run

STEP = "trainer/global_step"
"""Name of the x axis of everything logged here: Lightning's name for the training step."""

_MOST_VALUES = 36
"""The same resolution as files and pages, so that each figure is rendered once."""


def define_axes(run: "Run") -> None:
    """Make the training step the default x axis, and keep everything except the loss out of the summary, which
    :func:`log_summary` sets. Call this before anything is logged.

    W&B resolves overlapping globs at random, so this is the only one.
    """
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP, step_sync=True, summary="none")
    run.define_metric("train/loss", step_metric=STEP, summary="last")


def log_grid(run: "Run", grid: HeadGrid, step: int, *, title: str | None = None, effects: bool = False) -> None:
    """Log a grid: a heatmap of each column, one table, and scalars of layers.

    ``drift/cosine/heatmap`` is a picture under the same name at every step, ``drift/table`` (none for effects) has a
    row for each head, and ``drift/cosine/l11`` is the mean over a layer's heads (not of p-values, and not of effects,
    where it would be mistaken for the effect of the whole layer). A grid of whole layers only has their scalars.
    Missing values are skipped.

    Args:
        run: The run.
        grid: The grid.
        step: Training step, counted in optimiser updates.
        title: Title of the heatmaps; None for the measure's name.
        effects: Whether values are changes of a score, with losses drawn from white to dark red.
    """
    content: dict[str, object] = {STEP: step}
    for column in grid.described:
        means_L = grid.column(column.name).nanmean(dim=1).tolist()
        for layer, mean in enumerate(means_L):
            name = f"{grid.measure}/{column.name}/{head_code(layer, None)}"
            if math.isfinite(mean) and (grid.whole_layers or not (effects or column.role == "p_value")):
                content[name] = mean
                if not grid.whole_layers:
                    # The heatmap shows them all; panels that list them still show them.
                    run.define_metric(name, step_metric=STEP, hidden=True, summary="none")
        if not grid.whole_layers:
            figure = _heatmap(grid, column, f"{title or grid.measure}: {column.label}, step {step}", effects)
            content[f"{grid.measure}/{column.name}/heatmap"] = _image(figure)
    if not (grid.whole_layers or effects):
        # Effects of a sweep are in the table of ``log_ablation``, with their verdicts.
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
    """One row per head, with the value and standard error of every column."""
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
    _log_in_summary(run, "heads", _table(SCHEMA.names, rows))


def log_ablation(run: "Run", table: AblationTable) -> None:
    """Log the long table of a disabling sweep under ``ablation/table``."""
    shown = table.shown()
    rows = [list(row.values()) for row in shown.to_pylist()]
    _log_in_summary(run, "ablation/table", _table(shown.schema.names, rows))


def _log_in_summary(run: "Run", name: str, table: "wandb.Table") -> None:
    run.log({name: table})
    run.summary[name] = table


def log_curves(run: "Run", curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Log curves with separate x axes, once at the end of a run.

    Args:
        run: The run.
        curves: Name of the x axis -> its points: x and the value of every curve there, by name.
    """
    for axis, points in curves.items():
        run.define_metric(axis, hidden=True, summary="none")
        for name in dict.fromkeys(name for point in points for name in point if name != axis):
            run.define_metric(name, step_metric=axis, summary="none")
        for point in points:
            run.log(dict(point))


def log_figures(run: "Run", blocks: Sequence[FigureBlock]) -> None:
    """Log every figure of a report under ``figures/<name>``."""
    if blocks:
        run.log({f"figures/{block.name}": _image(block.figure) for block in blocks})


def artifact_name(identity: str) -> str:
    """Name of the artifact with a run's results."""
    return f"run-{identity}"


def log_summary(run: "Run", values: Mapping[str, float | str | None]) -> None:
    """Set the first defined values as a run's summary: forty including loss, step and two tables."""
    defined = {name: value for name, value in values.items() if value is not None and value == value}
    run.summary.update(dict(list(defined.items())[:_MOST_VALUES]))


def _table(columns: Sequence[str | int], rows: list[list[object]]) -> "wandb.Table":
    import wandb

    return wandb.Table(columns=list(columns), data=rows)


def _image(figure: Figure) -> "wandb.Image":
    import wandb

    # Given the figure itself, W&B would import pyplot.
    return wandb.Image(Image.open(io.BytesIO(drawn(figure, "png"))))
