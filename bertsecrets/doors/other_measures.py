"""A report section for every measure that has none of its own: a newcomer's measure shows without further work."""

import numpy as np
import pyarrow.compute as pc
from matplotlib.figure import Figure

from bertsecrets.doors.frame_relations import MEASURE as FRAME_RELATIONS
from bertsecrets.doors.wording import DRIFT, FEATURES, TOKEN_TO_TOKEN, described
from bertsecrets.patterns.measure import PATTERN_MEASURE
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import CHECKPOINT, TRAINING
from bertsecrets.results.table import HeadTable

_OWN_SECTIONS = (DRIFT, "gradient_flow", "ablation", FRAME_RELATIONS, PATTERN_MEASURE, *FEATURES, *TOKEN_TO_TOKEN)


def other_sections(table: HeadTable, figures: dict[str, Figure]) -> list[Section]:
    """A section for each other measure at its last step, a checkpoint's before training's; adds to ``figures``."""
    names = [name for name in pc.unique(table.table["measure"]).to_pylist() if name not in _OWN_SECTIONS]
    return [_section(table, name, figures) for name in names]


def _section(table: HeadTable, measure: str, figures: dict[str, Figure]) -> Section:
    rows = table.select(measure=measure)
    stage = CHECKPOINT if CHECKPOINT in pc.unique(rows.table["stage"]).to_pylist() else TRAINING
    panels, cells, counts = [], [], []
    for column in pc.unique(rows.table["column"]).to_pylist():
        value_LH, stderr_LH, count_LH = rows.grid(measure, column, stage, rows.steps(measure, column, stage)[-1])
        name = column.replace("_", " ")
        counts.append(int(count_LH.max()))
        panels.append(HeadPanel(f"{name} (n = {counts[-1]:,})", value_LH))
        if np.isfinite(value_LH).any():
            layer, head = np.unravel_index(np.nanargmax(value_LH), value_LH.shape)
            most = f"{value_LH[layer, head]:.3f} ± {stderr_LH[layer, head]:.3f}"
            cells.append([name, f"{np.nanmean(value_LH):.3f}", f"layer {layer} · head {head}", most])
    title, unit = described(measure, "")
    figures[measure] = head_panels(panels, title=title, unit=unit, note=sample_size(counts))
    block = FigureBlock(figures[measure], f"{title}, all on one scale.", f"Heatmaps: {title.lower()}.")
    header = ["column", "mean over heads", "highest head", "its value ± standard error"]
    return Section(title, tables=[Table(header, cells)], figures=[block])
