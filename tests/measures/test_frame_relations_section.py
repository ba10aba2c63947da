"""The section on relation-specific heads, against numbers put into a table by hand."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.frame_relations.record import BASELINES, HeadMap, RelationExample, RelationRecord
from bertsecrets.present.report.content import Section
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable, MissingColumnError
from bertsecrets.results.views import MeasureView

TOKENS = ["[CLS]", "he", "nodded", "[SEP]"]
RECORD = RelationRecord(
    source="FrameNet 1.5",
    settings={"pairs": "all", "direction": "element_to_target", "matching": "offsets", "permutations": 999},
    remaining={"all": 12, "short": 4},
    links=5,
    alone=2,
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
    "other_links": np.full((2, 2), 0.3),
    "over_other_links": np.array([[-0.2, 0.4], [-0.1, 0.0]]),
    "p_position_corrected": np.array([[0.5, 0.004], [0.004, 0.5]]),
    "p_received_corrected": np.array([[0.5, 0.004], [0.5, 0.004]]),
    "p_other_links_corrected": np.array([[0.5, 0.004], [0.004, 0.004]]),
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
    assert "Of 4 heads, 1 attends along the relation beyond all three explanations" in section.paragraphs[0]
    assert (
        "Not shown to go beyond: same distance elsewhere 2; same word from elsewhere 2; places of other sentences' links 1."
        in section.paragraphs[0]
    )


@pytest.mark.parametrize("test", BASELINES)
def test_one_baseline_that_is_not_beaten_is_enough_for_no_verdict(tmp_path: Path, test: str) -> None:
    values = {**VALUES, f"p_{test}_corrected": np.full((2, 2), 0.06)}
    section = FrameRelations.describe(view(tmp_path, values, RECORD))
    assert section is not None
    assert {row[-1] for row in section.tables[0].rows} == {"no relation shown"}
    assert f"not shown to go beyond {BASELINES[test]} (" in section.findings[0]


def test_the_words_carry_the_record(tmp_path: Path) -> None:
    section = section_of(tmp_path)
    (finding,) = section.findings
    assert "Over 4 sentences of FrameNet 1.5, layer 0 · head 1 attends most" in finding
    assert (
        "0.700 (0.325 to 1.000), which goes beyond all three explanations without a relation (same distance" in finding
    )
    assert "2 tokens to the right would score 0.600, the share of the 5 links" in section.paragraphs[1]
    assert section.paragraphs[2].startswith("2 of 5 links are left out of the comparison with other sentences' links")
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
    assert section.figures[-1].caption == "He nodded. — linked: he → nodded (attending → attended to)."


def test_a_run_without_one_of_the_tests_is_named_as_another_version(tmp_path: Path) -> None:
    values = {name: value for name, value in VALUES.items() if name != "p_other_links_corrected"}
    with pytest.raises(MissingColumnError, match="p_other_links_corrected"):
        FrameRelations.describe(view(tmp_path, values, RECORD))


def test_without_a_record_or_a_number_there_is_no_section(tmp_path: Path) -> None:
    assert FrameRelations.describe(view(tmp_path / "a", VALUES, None)) is None
    assert FrameRelations.describe(view(tmp_path / "b", {"uniform": VALUES["uniform"]}, RECORD)) is None


@pytest.mark.parametrize("remaining", [{}, {"all": 2}])
def test_a_record_goes_to_disk_and_back(tmp_path: Path, remaining: dict[str, int]) -> None:
    record = RelationRecord(**{**vars(RECORD), "remaining": remaining})
    again = RelationRecord.read(json.loads(json.dumps(asdict(record))))
    assert again == record
    assert RelationRecord.read({}) is None
