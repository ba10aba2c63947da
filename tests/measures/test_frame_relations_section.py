"""The section on relation-specific heads, against numbers put into a table by hand."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.frame_relations.record import HeadMap, RelationExample, RelationRecord
from bertsecrets.results.report.content import Section
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

TOKENS = ["[CLS]", "he", "nodded", "[SEP]"]
RECORD = RelationRecord(
    source="FrameNet 1.5",
    settings={"pairs": "all", "direction": "element_to_target", "matching": "offsets", "permutations": 999},
    remaining={"all": 12, "short": 4},
    links=5,
    offsets={-1: 1, 2: 3},
    example=RelationExample("He nodded.", TOKENS, [(1, 2)], [HeadMap(0, 1, np.eye(4).tolist())]),
)
VALUES = {
    "weight": np.array([[0.1, 0.7], [0.2, 0.3]]),
    "position": np.full((2, 2), 0.1),
    "received": np.full((2, 2), 0.2),
    "over_position": np.array([[0.0, 0.6], [0.1, 0.2]]),
    "over_received": np.array([[-0.1, 0.5], [0.0, 0.1]]),
    "uniform": np.full((2, 2), 0.25),
    "p_position": np.full((2, 2), 0.001),
    "p_position_holm": np.array([[0.5, 0.004], [0.004, 0.5]]),
    "p_received": np.full((2, 2), 0.001),
    "p_received_holm": np.array([[0.5, 0.004], [0.5, 0.004]]),
}


def view(folder: Path, values: dict[str, np.ndarray], record: RelationRecord | None) -> MeasureView:
    run = Run(folder, "r", "m", "t", "pretrained")
    if record is not None:
        run.write_json(run.extras_path("frame_relations"), {"model": asdict(record)})
    value_LHC = torch.from_numpy(np.stack(list(values.values()), -1))
    grid = HeadGrid("frame_relations", tuple(values), value_LHC, value_LHC / 10, torch.full(value_LHC.shape, 4))
    table = HeadTable.from_grid(grid, run="r", model="m", task="t", init="i", stage="checkpoint", step=0)
    return MeasureView(run, FrameRelations(1, 1).declaration(), table)


def section_of(folder: Path) -> Section:
    section = FrameRelations.describe(view(folder, VALUES, RECORD))
    assert section is not None
    return section


def test_heads_have_the_verdict_of_both_tests(tmp_path: Path) -> None:
    section = section_of(tmp_path)
    heads = section.tables[0].rows
    assert [(row[0], row[-1]) for row in heads] == [
        ("layer 0 · head 1", "relation"),
        ("layer 1 · head 1", "position"),
        ("layer 1 · head 0", "word"),
        ("layer 0 · head 0", "neither"),
    ]
    assert heads[0] == ["layer 0 · head 1", "0.700 ± 0.070", "0.100", "0.004", "0.200", "0.004", "relation"]
    assert "relation 1 (" in section.paragraphs[0]
    assert "word 1 (" in section.paragraphs[0]
    assert "neither 1." in section.paragraphs[0]


def test_the_words_carry_the_record(tmp_path: Path) -> None:
    section = section_of(tmp_path)
    (finding,) = section.findings
    assert "Over 4 sentences of FrameNet 1.5, layer 0 · head 1 attends most" in finding
    assert "0.700 ± 0.070, which neither distance nor the attended word alone explains" in finding
    assert "2 tokens to the right would score 0.600, the share of the 5 links" in section.paragraphs[1]
    assert "the smallest p it can give is 0.001" in section.paragraphs[2]
    _, offsets, filters = section.tables
    assert offsets.rows == [["+2", "3", "0.600"], ["-1", "1", "0.200"]]
    assert filters.rows == [["all", "12"], ["short", "4"]]
    assert [block.name for block in section.figures] == [
        "frame_relations",
        "frame_relations_over_position",
        "frame_relations_baselines",
        "frame_relations_maps",
    ]
    assert section.figures[-1].caption == "He nodded. — linked: he → nodded (attending → attended to)."


def test_without_a_record_or_a_number_there_is_no_section(tmp_path: Path) -> None:
    assert FrameRelations.describe(view(tmp_path / "a", VALUES, None)) is None
    assert FrameRelations.describe(view(tmp_path / "b", {"uniform": VALUES["uniform"]}, RECORD)) is None


@pytest.mark.parametrize("remaining", [{}, {"all": 2}])
def test_a_record_goes_to_disk_and_back(tmp_path: Path, remaining: dict[str, int]) -> None:
    record = RelationRecord(**{**vars(RECORD), "remaining": remaining})
    again = RelationRecord.read(json.loads(json.dumps(asdict(record))))
    assert again == record
    assert RelationRecord.read({}) is None
