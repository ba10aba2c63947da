"""The section on groups of heads, against rows put together by hand."""

from itertools import combinations
from pathlib import Path

import pytest
import torch
from measures.toy import view_of

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.clusters.rows import ClusterRow, Distance, Group, Moved, Place, Space, Tuned
from bertsecrets.present.clusters import PRESENTER
from bertsecrets.results.views import MeasureView

HEADS = [(layer, head) for layer in range(2) for head in range(3)]


def model(before: bool, replicates: int = 20) -> list[ClusterRow]:
    """Two groups of heads, of which one is stable; the first two heads are the nearest to each other."""
    return [
        Space(before, 900, replicates, 0.1, 0.2, 0.3, 0.004),
        Group(before, 0, 0.12, 0.9),
        Group(before, 1, 0.15, 0.5),
        *(Place(before, *head, float(n), 0.5, int(n > 3)) for n, head in enumerate(HEADS)),
        *(Distance(before, *one, *other, 0.1 + 0.1 * n) for n, (one, other) in enumerate(combinations(HEADS, 2))),
    ]


def view(folder: Path, found: list[ClusterRow]) -> MeasureView:
    measure = Clusters(2, 3)
    value = torch.full((2, 3, 2), 0.2, dtype=torch.float64)
    grid = HeadGrid("clusters", measure.columns, value, value / 10, torch.full(value.shape, 50))
    return view_of(folder, measure, grid, found=found)


def test_the_section_tells_of_layers_groups_and_moves(tmp_path: Path) -> None:
    moved = [Moved(*head, float(n), 1.0, float(n), 0.0, 0.05 * n) for n, head in enumerate(HEADS)]
    found = [*model(False), *model(True), Tuned(0.2, 0.91, 5), *moved]
    section = PRESENTER.section(view(tmp_path, found))
    assert section is not None
    assert section.findings == [
        "Heads of one layer are closer to each other than to heads of other layers: 0.200 nats within layers, 0.300 "
        "between them (permutation test, p = 0.004).",
        "Of 2 groups of heads, 1 is stable over samples of the texts.",
        "The distances between heads before and after fine-tuning have a rank correlation of 0.91; for 5 of 6 heads "
        "the nearest head of the model before fine-tuning is the same head. Layer 1 · head 2 moved farthest (0.250 "
        "nats).",
    ]
    groups, nearest = section.tables
    assert groups.rows == [
        ["0", "4", "0.120", "0.90", "0, 1", "layer 0 · heads 0, 1, 2; layer 1 · head 0"],
        ["1", "2", "0.150", "0.50", "1", "layer 1 · heads 1, 2"],
    ]
    assert nearest.rows[0] == ["layer 0 · head 0", "layer 0 · head 1", "0.1000"]
    assert len(nearest.rows) == 5
    assert [block.name for block in section.figures] == ["clusters", "clusters_moved"]
    assert all(block.figure.axes for block in section.figures)
    assert section.head == (1, 2)


@pytest.mark.parametrize("found", [[], model(False, replicates=0)])
def test_a_model_that_is_the_one_before_fine_tuning_moves_nothing(tmp_path: Path, found: list[ClusterRow]) -> None:
    section = PRESENTER.section(view(tmp_path, found))
    assert (section is None) == (not found)
    if section is not None:
        assert section.findings[1] == "The heads form 2 groups."
        assert ([block.name for block in section.figures], section.head) == (["clusters"], None)
