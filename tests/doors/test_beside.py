"""Sections beside other models, against differences put into the table by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from bertsecrets.doors.beside import beside_sections, changes
from bertsecrets.grid import HeadGrid
from bertsecrets.results.table import HeadTable

IDENTITY = {"run": "r", "model": "m", "task": "t", "init": "pretrained"}


def rows(
    stage: str, step: int, columns: Sequence[str], value_LHC: np.ndarray, stderr: float, measure: str = "focus"
) -> HeadTable:
    value = torch.from_numpy(value_LHC)
    count = torch.full(value.shape, 20)
    grid = HeadGrid(measure, tuple(columns), value, torch.full_like(value, stderr), count)
    return HeadTable.from_grid(grid, **IDENTITY, stage=stage, step=step)


def table(columns: int = 2) -> HeadTable:
    """Every head of the first column rises by 0.1 but one, which falls by 0.001; the last column does not move."""
    names = [f"kind_{number}" for number in range(columns - 1)] + ["uniform"]
    before = np.full((2, 3, columns), 0.3)
    delta = np.full((2, 3, columns), 0.1)
    delta[1, 2] = -0.001
    delta[..., -1] = 0
    parts = [("initial", 0, before), ("checkpoint", 9, before + delta), ("checkpoint-initial", 9, delta)]
    return HeadTable.concat([rows(stage, step, names, values, 0.01) for stage, step, values in parts])


def test_changes_are_tested_head_by_head() -> None:
    found = changes(table(), "focus", "initial")["kind_0"]
    p_N = 2 * stats.t.sf(np.array([10.0] * 5 + [0.1]), 19)
    assert np.allclose(found.p_LH.ravel(), stats.false_discovery_control(p_N))
    assert found.differs_LH.ravel().tolist() == [True] * 5 + [False]
    assert changes(table(), "focus", "random") == {}


def test_the_section_says_how_many_heads_changed_and_leaves_out_what_cannot() -> None:
    figures: dict[str, Figure] = {}
    lead: list[str] = []
    (section,) = beside_sections(table(), figures, lead)
    assert "in 5 of 6 heads" in lead[0]
    assert "0.300 there, 0.400 here" in lead[0]
    (rows_,) = [each.rows for each in section.tables]
    assert rows_ == [["kind 0", "0.383", "0.300", "5", "0", "0.100 (layer 0 · head 0)"]]
    assert list(figures) == ["focus_beside_initial"]
    assert beside_sections(table().select(stage="checkpoint"), {}, []) == []


def test_what_cannot_tell_models_apart_is_not_compared() -> None:
    names = ["nouns", "nouns_uniform", "nouns_over_uniform", "uniform", "p_position_holm"]
    delta = np.full((2, 3, len(names)), 0.1)
    parts = [("initial", 0, delta), ("checkpoint", 9, 2 * delta), ("checkpoint-initial", 9, delta)]
    compared = changes(HeadTable.concat([rows(*part[:2], names, part[2], 0.01) for part in parts]), "focus", "initial")
    assert list(compared) == ["nouns"]


@pytest.mark.parametrize(
    ("delta", "stderr", "expected"),
    [
        (0.0, 0.0, "Compared with the model before fine-tuning, no head differs at all in attention patterns."),
        (
            1e-3,
            0.1,
            "Compared with the model before fine-tuning, no head differs by more than chance in attention patterns.",
        ),
        (
            0.1,
            0.01,
            "Compared with the model before fine-tuning, the widest difference in attention patterns is that of block: in 6 "
            "of 6 heads, most in layer 0 · head 0 (0.300 there, 0.400 here).",
        ),
    ],
)
def test_what_differs_is_told_in_a_sentence(delta: float, stderr: float, expected: str) -> None:
    before, lead = np.full((2, 3, 1), 0.3), list[str]()
    parts = [("initial", 0, before), ("checkpoint", 9, before + delta), ("checkpoint-initial", 9, 0 * before + delta)]
    made = HeadTable.concat([rows(*part[:2], ["block"], part[2], stderr, "patterns") for part in parts])
    beside_sections(made, {}, lead)
    assert lead == [expected]


def test_a_figure_has_no_more_panels_than_can_be_read() -> None:
    figures: dict[str, Figure] = {}
    beside_sections(table(columns=20), figures, [])
    texts = [text.get_text() for text in figures["focus_beside_initial"].texts]
    assert any("the 12 of 19 columns" in " ".join(text.split()) for text in texts)
