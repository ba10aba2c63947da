"""What a grid's section shows of what its measure asks for, against numbers put into tables by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from measures.toy import view_of

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.entropy import Entropy
from bertsecrets.measures.surface import Surface
from bertsecrets.present.grid import grid_section
from bertsecrets.present.report.content import Section
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
    section = grid_section(MeasureView(run, declaration, HeadTable.concat(tables)))
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
    most_changed, _ = section.tables
    assert most_changed.rows[:2] == [["layer 0 · head 1", "0.100 ± 0.010"], ["layer 1 · head 0", "0.200 ± 0.020"]]
    assert section.findings == [
        "By layer, the mean cosine similarity with the maps before fine-tuning is lowest in layer 0 (0.500) and "
        "highest in layer 1 (0.550).",
        "The head that changed most is layer 0 · head 1: cosine 0.100 (0.073 to 0.127) over 30 examples. The lowest "
        "head is significantly lower than every other (standard errors, Holm-corrected).",
    ]


def test_the_title_of_entropy_compares_the_broadest_head_with_uniform_attention() -> None:
    bits_LHC = torch.tensor([[[1.0, 4.0], [3.0, 5.0]]], dtype=torch.float64)
    grid = HeadGrid("entropy", ("bits", "uniform"), bits_LHC, bits_LHC / 10, torch.full(bits_LHC.shape, 30))
    table = HeadTable.from_grid(grid, run="r", model="m", task="t", init="i", stage="checkpoint", step=1)
    run = Run(Path("nowhere"), "r", "m", "t", "pretrained")
    section = grid_section(MeasureView(run, Entropy(1, 2).declaration(), table))
    assert section is not None
    # 4.5: the mean of 4 and 5.
    broadest = "layer 0 · head 1 attends most broadly, 3.000 of the 4.500 bits of uniform attention"
    assert section.headline == f"Entropy of attention: {broadest}."


def test_at_most_ten_heads_are_listed() -> None:
    section = section_of(rows(np.linspace(0.2, 0.9, 24).reshape(4, 6), 9))
    assert section.highlights is not None
    assert [(line.layer, line.head) for line in section.highlights.heads] == [divmod(n, 6) for n in range(10)]
    assert len(section.tables[0].rows) == 10


def test_every_column_is_drawn_on_its_own_scale_and_the_last_step_counts() -> None:
    names = tuple(column.name for column in Drift.columns if column.role == "value")
    section = section_of(rows(COSINE, 4, names), rows(COSINE / 2, 9, names))
    figures = {block.name: block.figure for block in section.figures}
    # Columns of one unit share a scale; the first, whose heads are outlined, is drawn apart.
    assert list(figures) == ["drift", "drift_jensen_shannon", "drift_cls_cosine", "drift_cosine_steps"]
    limits = [figures[name].axes[0].collections[0].get_clim() for name in list(figures)[:3]]
    assert limits == [(0.0, 1.0), (0.0, math.log(2)), (0.0, 1.0)]
    shown_LH = figures["drift"].axes[0].collections[0].get_array().reshape(2, 3)
    np.testing.assert_array_equal(shown_LH.filled(math.nan), COSINE / 2)
    # One step makes a line from step 0, where nothing has changed yet.
    alone = {block.name: block.figure for block in section_of(rows(COSINE, 4)).figures}["drift_cosine_steps"]
    np.testing.assert_array_equal(alone.axes[0].lines[0].get_xdata(), [0, 4])
    assert alone.axes[0].lines[0].get_ydata()[0] == 1.0


def test_heatmap_trajectory_and_list_name_the_same_heads() -> None:
    # Between the first and the last validation other heads moved most than since the start.
    last_LH = np.linspace(0.1, 0.9, 12).reshape(3, 4)
    first_LH = np.where(last_LH < 0.5, last_LH + 0.01, 0.99)
    section = section_of(rows(first_LH, 4), rows(last_LH, 9))
    assert section.highlights is not None
    listed = [(line.layer, line.head) for line in section.highlights.heads[:5]]
    figures = {block.name: block.figure for block in section.figures}
    named = [text.get_text() for text in figures["drift_cosine_steps"].axes[1].get_legend().get_texts()]
    assert sorted(named) == sorted(f"layer {layer} · head {head}" for layer, head in listed)
    outlined = {
        (round(patch.get_y() - 0.04), round(patch.get_x() - 0.04))
        for patch in figures["drift"].axes[0].patches
        if patch.get_width() == pytest.approx(0.92)
    }
    assert outlined == set(listed)


def table_with_p(value_LH: np.ndarray, p_LH: np.ndarray, count: int = 30) -> HeadTable:
    value_LHC = torch.from_numpy(np.stack([value_LH, p_LH], -1))
    grid = HeadGrid(
        "drift", ("cosine", "p_cosine_first"), value_LHC, value_LHC / 10, torch.full(value_LHC.shape, count)
    )
    return HeadTable.from_grid(grid, run="r", model="m", task="t", init="i", stage="training", step=9)


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (
            [1, 0.5, 0.01, 0.2],
            "Not significantly different from the top: layer 0 · head 1, layer 1 · head 1 (paired t tests",
        ),
        (
            [1, 0.5, 0.06, 0.2],
            "layer 0 · head 0: cosine 0.100 (0.073 to 0.127) over 30 examples. No other head differs significantly "
            "from it (paired",
        ),
        ([1, 0.01, 0.01, 0.01], "It changed most, significantly ahead of every other head"),
        ([math.nan] * 4, "With 30 examples the order of the heads cannot be tested."),
    ],
)
def test_heads_that_cannot_be_told_from_the_first_are_named(p: list[float], words: str) -> None:
    section = section_of(table_with_p(np.array([[0.1, 0.2], [0.3, 0.4]]), np.array(p, float).reshape(2, 2)))
    assert words in section.findings[1]


@pytest.mark.parametrize(
    ("value_LH", "finding"),
    [
        (
            np.full((2, 2), math.nan),
            "Drift of attention: cosine similarity with the maps before fine-tuning is undefined for all 4 heads.",
        ),
        (
            np.ones((2, 2)),
            "None of 4 heads differs from its reference beyond rounding on 30 examples: cosine similarity",
        ),
        (
            np.full((2, 2), 1 - 3e-8),
            "None of 4 heads differs from its reference beyond rounding on 30 examples: cosine similarity",
        ),
        (np.ones((1, 1)), "The only head equals its reference beyond rounding on 30 examples: cosine similarity"),
        (np.full((1, 1), 0.4), "The only head, layer 0 · head 0, has a cosine 0.400 (0.318 to 0.482) over 30 examples"),
        (
            np.full((2, 2), 0.4),
            "All 2 layers have the same mean cosine similarity with the maps before fine-tuning, 0.400.",
        ),
        (np.array([[0.4, 0.6]]), "The head that changed most is layer 0 · head 0"),
    ],
)
def test_edge_cases_have_a_sentence_that_is_true(value_LH: np.ndarray, finding: str) -> None:
    section = section_of(rows(value_LH, 9))
    assert section.findings[0].startswith(finding)
    assert (section.highlights is None) == ("beyond rounding" in finding or "undefined" in finding)


def test_each_column_has_its_sentences_and_columns_share_panels(tmp_path: Path) -> None:
    measure = Surface(2, 2)
    value_LHC = torch.zeros(2, 2, 10, dtype=torch.float64)
    value_LHC[1, :, 1] = torch.tensor([0.9, 0.5])
    value_LHC[0, 0, 0] = 0.25
    value_LHC[..., 6:] = 0.1
    error_LHC, count_LHC = torch.full_like(value_LHC, 0.01), torch.full(value_LHC.shape, 7)
    grid = HeadGrid("surface", measure.columns, value_LHC, error_LHC, count_LHC)
    section = grid_section(view_of(tmp_path, measure, grid))
    assert section is not None
    assert section.head == (1, 0)
    separators, first, punctuation = section.findings
    assert separators.startswith("Layer 1 · head 0 has the highest value of “[SEP]”, 0.900 (")
    assert separators.endswith(
        "significantly higher than every other (standard errors, Holm-corrected). By layer, the mean is lowest in "
        "layer 0 (0.000) and highest in layer 1 (0.700). Above 0.5: 1 head of layer 1; the mean of layer 1 too."
    )
    assert first.endswith("By layer, the mean is lowest in layer 1 (0.000) and highest in layer 0 (0.125).")
    assert punctuation == "Punctuation is 0.000 in all 4 heads."
    (table,) = section.tables
    # What uniform attention gives is the same for every head: no heatmap, and no head that is the highest.
    assert [row[2] for row in table.rows[-4:]] == ["all heads"] * 4
    heatmaps, layers = section.figures
    assert len([axes for axes in heatmaps.figure.axes if axes.get_title().endswith("(n = 7)")]) == 6
    assert [axes.get_title() for axes in layers.figure.axes] == ["attention to", "attention to [SEP] from"]
    assert layers.figure.axes[0].lines[2].get_ydata().tolist() == pytest.approx([0.0, 0.0, 0.9, 0.5])
