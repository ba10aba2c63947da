"""The section on relation-specific heads, against numbers put into a table by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.frame_relations.rows import (
    BASELINES,
    Filter,
    LinkedPair,
    Links,
    Offset,
    RelationRow,
    Token,
    Weight,
)
from bertsecrets.present.frame_relations import PRESENTER
from bertsecrets.present.report.content import Section
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable, MissingColumnError
from bertsecrets.results.views import MeasureView

FOUND: list[RelationRow] = [
    Links("FrameNet 1.5", 5, 2, "all", "element_to_target", "offsets", 999, "He nodded."),
    Filter("all", 12),
    Filter("short", 4),
    Offset(-1, 1),
    Offset(2, 3),
    *(Token(position, token) for position, token in enumerate(["[CLS]", "he", "nodded", "[SEP]"])),
    LinkedPair(1, 2),
    *(Weight(0, 1, query, key, float(query == key)) for query in range(4) for key in range(4)),
]
VALUES = {
    "weight": np.array([[0.1, 0.7], [0.2, 0.3]]),
    "position": np.full((2, 2), 0.1),
    "received": np.full((2, 2), 0.2),
    "over_position": np.array([[0.0, 0.6], [0.1, 0.2]]),
    "over_received": np.array([[-0.1, 0.5], [0.0, 0.1]]),
    "uniform": np.full((2, 2), 0.25),
    "other_links": np.full((2, 2), 0.3),
    "over_other_links": np.array([[-0.2, 0.4], [-0.1, 0.0]]),
    "p_position_corrected": np.array([[0.5, 0.004], [0.004, 0.5]]),
    "p_received_corrected": np.array([[0.5, 0.004], [0.5, 0.004]]),
    "p_other_links_corrected": np.array([[0.5, 0.004], [0.004, 0.004]]),
}


def view(folder: Path, values: dict[str, np.ndarray], found: list[RelationRow]) -> MeasureView:
    run = Run(folder, "r", "m", "t", "pretrained")
    run.write_rows("frame_relations", "checkpoint", 0, found)
    value_LHC = torch.from_numpy(np.stack(list(values.values()), -1))
    grid = HeadGrid("frame_relations", tuple(values), value_LHC, value_LHC / 10, torch.full(value_LHC.shape, 4))
    table = HeadTable.from_grid(grid, run="r", model="m", task="t", init="i", stage="checkpoint", step=0)
    return MeasureView(run, FrameRelations(1, 1).declaration(), table)


def section_of(folder: Path, **changed: np.ndarray) -> Section:
    section = PRESENTER.section(view(folder, {**VALUES, **changed}, FOUND))
    assert section is not None
    return section


def test_a_relation_head_beats_all_three_baselines(tmp_path: Path) -> None:
    section = section_of(tmp_path)
    heads = section.tables[0].rows
    assert [(row[0], row[-1]) for row in heads] == [
        ("layer 0 · head 1", "relation"),
        ("layer 1 · head 1", "no relation shown"),
        ("layer 1 · head 0", "no relation shown"),
        ("layer 0 · head 0", "no relation shown"),
    ]
    numbers = ["0.100", "0.004", "0.200", "0.004", "0.300", "0.004"]
    assert heads[0] == ["layer 0 · head 1", "0.700 ± 0.070", *numbers, "relation"]
    assert section.paragraphs[0].startswith("1 of 4 heads attend along the relation beyond all three explanations")
    assert (
        "not shown to go beyond: same distance elsewhere 2; same word from elsewhere 2; places of other sentences' "
        "links 1." in section.paragraphs[0]
    )


@pytest.mark.parametrize("test", BASELINES)
def test_one_baseline_that_is_not_beaten_is_enough_for_no_verdict(tmp_path: Path, test: str) -> None:
    section = section_of(tmp_path, **{f"p_{test}_corrected": np.full((2, 2), 0.06)})
    assert {row[-1] for row in section.tables[0].rows} == {"no relation shown"}
    assert f"not shown to go beyond {BASELINES[test]} (" in section.findings[0]


def test_the_words_carry_what_was_found(tmp_path: Path) -> None:
    section = section_of(tmp_path)
    (finding,) = section.findings
    assert "Over 4 sentences of FrameNet 1.5, layer 0 · head 1 attends most" in finding
    assert (
        "0.700 (0.325 to 1.000), which goes beyond all three explanations without a relation (same distance" in finding
    )
    assert "2 tokens to the right would score 0.600, the share of 5 links" in section.paragraphs[1]
    assert section.paragraphs[2].startswith("2 of 5 links cannot be compared")
    assert "so that 50 drawings decide at the level 0.05" in section.paragraphs[3]
    _, offsets, filters = section.tables
    assert offsets.rows == [["+2", "3", "0.600"], ["-1", "1", "0.200"]]
    assert filters.rows == [["all", "12"], ["short", "4"]]
    assert [block.name for block in section.figures] == [
        "frame_relations",
        "frame_relations_over_position",
        "frame_relations_baselines",
        "frame_relations_maps",
    ]
    assert all(block.figure.axes for block in section.figures)
    assert section.figures[-1].caption == "He nodded. — linked: he → nodded (attending → attended to)."


def test_a_run_without_one_of_the_tests_is_named_as_another_version(tmp_path: Path) -> None:
    values = {name: value for name, value in VALUES.items() if name != "p_other_links_corrected"}
    with pytest.raises(MissingColumnError, match="p_other_links_corrected"):
        PRESENTER.section(view(tmp_path, values, FOUND))


def test_without_links_or_a_number_there_is_no_section(tmp_path: Path) -> None:
    assert PRESENTER.section(view(tmp_path / "a", VALUES, [])) is None
    assert PRESENTER.section(view(tmp_path / "b", {"uniform": VALUES["uniform"]}, FOUND)) is None
