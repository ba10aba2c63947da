"""The section on dependency heads, against rows put together by hand."""

from pathlib import Path

import torch
from measures.toy import view_of
from papers.paper_runs import relation

from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.dependency.measure import Dependency
from bertsecrets.measures.dependency.rows import Treebank
from bertsecrets.present.dependency import PRESENTER
from bertsecrets.results.views import Comparison, MeasureView, Replicates

TREEBANK = Treebank("ud", 60, 2, 0, 50, 0, 1, "mean", True, True, False, 10)
RELATIONS = [relation("all", 0.4, 0.1), relation("det", 0.9, 0.3, from_head=True), relation("cc", 0.5, 0.01)]


def view(folder: Path, found: list[object]) -> MeasureView:
    measure = Dependency(8, 11)
    measure.columns = (Column("det", "det"), Column("det_from_head", "det, from the head"))
    value = torch.full((8, 11, 2), 0.5, dtype=torch.float64)
    value[7, 10, 1] = 0.9
    grid = HeadGrid("dependency", measure.columns, value, torch.full_like(value, 0.01), torch.full(value.shape, 200))
    return view_of(folder, measure, grid, found=found)


def test_the_section_has_the_papers_table(tmp_path: Path) -> None:
    section = PRESENTER.section(view(tmp_path, [TREEBANK, *RELATIONS]))
    assert section is not None
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["all", "det", "cc"]
    assert table.rows[1] == [
        "det",
        "200",
        "layer 7 · head 10, from the head (100%)",
        "90.0 (88.0 to 92.0)",
        "60.0 (+1)",
        "+30.0 (+28.0 to +32.0)",
        "0.010",
        "90.0",
    ]
    assert [block.name for block in section.figures] == ["dependency", "dependency_heads"]
    assert all(block.figure.axes for block in section.figures)
    assert section.findings[0].startswith("For 1 of 2 relations, one head finds the syntactic head")
    assert "(50 splits together, corrected over relations; one split alone would say 0 to 1)" in section.findings[0]
    assert section.findings[1] == (
        "The clearest is det: layer 7 · head 10 finds 90.0 (88.0 to 92.0) %, the word at offset +1 60.0 %."
    )
    assert section.paragraphs[0].endswith(
        "for possessors before an 's, the attention of the 's is scored, as in the paper. 2 sentences too long and "
        "left out.".replace("for", "For", 1)
    )
    assert section.head == (7, 10)


def test_without_relations_the_section_says_why(tmp_path: Path) -> None:
    section = PRESENTER.section(view(tmp_path, [TREEBANK]))
    assert section is not None
    assert section.findings == [
        "Heads are chosen on some sentences and scored on others; 60 sentences leave none to do so."
    ]


def test_each_head_is_classed_by_the_relation_that_it_follows(tmp_path: Path) -> None:
    (relations,) = PRESENTER.classes(view(tmp_path, [TREEBANK, *RELATIONS])).values()
    # Chance and the offset are at 60 %: one head is above.
    assert [(i, j) for i, row in enumerate(relations) for j, name in enumerate(row) if name == "det"] == [(7, 10)]


def test_conditions_are_compared_by_their_best_heads(tmp_path: Path) -> None:
    found = view(tmp_path, [TREEBANK, *RELATIONS])
    section = PRESENTER.comparison(Comparison({"a": Replicates([found]), "b": Replicates([found, found])}))
    assert section is not None
    assert section.paragraphs[0].endswith("; mean over 1 to 2 seeds.")
    (table,) = section.tables
    assert list(table.header) == ["relation", "a", "b"]
    assert list(table.rows[0]) == ["all", *["40.0 layer 7 · head 10 (30.0)"] * 2]
    assert {row["condition"] for row in section.rows} == {"a", "b"}
