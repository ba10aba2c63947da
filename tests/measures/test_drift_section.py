"""The section on drift, against numbers put into a table by hand."""

import math
from pathlib import Path

import numpy as np
import torch

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.drift import Drift
from bertsecrets.results.report.content import Section
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

COSINE = np.array([[0.9, 0.1, math.nan], [0.2, 0.5, 0.95]])


def rows(value_LH: np.ndarray, step: int, names: tuple[str, ...] = ("cosine",)) -> HeadTable:
    value_LHC = torch.from_numpy(np.stack([value_LH] * len(names), -1))
    grid = HeadGrid("drift", names, value_LHC, value_LHC / 10, torch.full(value_LHC.shape, 30))
    return HeadTable.from_grid(grid, run="r", model="m", task="t", init="i", stage="training", step=step)


def section_of(*tables: HeadTable) -> Section:
    # The folder holds nothing: the section reads the table alone.
    run = Run(Path("nowhere"), "r", "m", "t", "pretrained")
    declaration = Drift(1, 1).declaration()
    section = Drift.describe(MeasureView(run, declaration, HeadTable.concat(tables)))
    assert section is not None
    return section


def test_the_most_changed_heads_come_first() -> None:
    section = section_of(rows(COSINE, 9))
    assert section.highlights is not None
    heads = [(line.layer, line.head) for line in section.highlights.heads]
    # The head without a number is left out.
    assert heads == [(0, 1), (1, 0), (1, 1), (0, 0), (1, 2)]
    first = section.highlights.heads[0]
    assert (first.quantity, first.value, first.stderr) == ("cosine", 0.1, 0.01)
    most_changed, by_layer = section.tables
    assert most_changed.rows[:2] == [["layer 0 · head 1", "0.100 ± 0.010"], ["layer 1 · head 0", "0.200 ± 0.020"]]
    assert by_layer.rows == [["0", "0.500", "0.100", "0.900"], ["1", "0.550", "0.200", "0.950"]]
    assert section.findings == [
        "Attention changed most in layer 0 (mean cosine 0.500 with the maps before fine-tuning) and least in layer 1 "
        "(0.550).",
        "The head that changed most is layer 0 · head 1: cosine 0.100 ± 0.010.",
    ]


def test_at_most_ten_heads_are_listed() -> None:
    section = section_of(rows(np.linspace(0.2, 0.9, 24).reshape(4, 6), 9))
    assert section.highlights is not None
    assert [(line.layer, line.head) for line in section.highlights.heads] == [divmod(n, 6) for n in range(10)]
    assert len(section.tables[0].rows) == 10


def test_every_column_is_drawn_on_its_own_scale_and_the_last_step_counts() -> None:
    names = tuple(column.name for column in Drift.columns)
    section = section_of(rows(COSINE, 4, names), rows(COSINE / 2, 9, names))
    figures = {block.name: block.figure for block in section.figures}
    assert list(figures) == [*(f"drift_{name}" for name in names), "drift_trajectory"]
    limits = {name: figures[f"drift_{name}"].axes[0].collections[0].get_clim() for name in names}
    assert limits["cosine"] == limits["cls_cosine"] == (0.0, 1.0)
    assert limits["jensen_shannon"] == limits["cls_jensen_shannon"] == (0.0, math.log(2))
    shown_LH = figures["drift_cosine"].axes[0].collections[0].get_array().reshape(2, 3)
    np.testing.assert_array_equal(shown_LH.filled(math.nan), COSINE / 2)
    assert "step 9" in section.figures[0].caption
    # One step makes no line.
    assert "drift_trajectory" not in [block.name for block in section_of(rows(COSINE, 4)).figures]


def test_without_cosine_there_is_no_section() -> None:
    run = Run(Path("nowhere"), "r", "m", "t", "pretrained")
    table = rows(COSINE, 4, ("jensen_shannon",))
    assert Drift.describe(MeasureView(run, Drift(1, 1).declaration(), table)) is None
    assert Drift.describe(MeasureView(run, Drift(1, 1).declaration(), HeadTable.empty())) is None
