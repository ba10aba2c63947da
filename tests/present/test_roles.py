"""The sections on roles of heads, against grids and rows put together by hand."""

import math
from pathlib import Path

import pytest
import torch
from measures.toy import view_of

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Measure
from bertsecrets.measures.role_rows import Distance, Limits, Threshold
from bertsecrets.measures.roles import Roles
from bertsecrets.measures.voita_roles import VoitaRoles
from bertsecrets.patterns.measure import Patterns
from bertsecrets.present.roles import SIEVE, VOITA
from bertsecrets.results.views import MeasureView


def view(folder: Path, measure: Measure, value_LHC: torch.Tensor, found: list[object]) -> MeasureView:
    count_LHC = torch.full(value_LHC.shape, 20).masked_fill(value_LHC.isnan(), 0)
    grid = HeadGrid(measure.name, measure.columns, value_LHC, torch.full_like(value_LHC, 0.1), count_LHC)
    return view_of(folder, measure, grid, found=found)


def sieve_view(folder: Path) -> MeasureView:
    """Layer 0 has a local delimiter head and a block head; no text is annotated."""
    measure = Roles(2, 2)
    measure.columns = measure.columns[:5]
    value_LHC = torch.ones(2, 2, 5, dtype=torch.float64)
    value_LHC[0, 0] = torch.tensor([9.0, 1.0, 1.0, 9.0, 9.0])
    value_LHC[0, 1, 2] = 9.0
    value_LHC[..., 1] = math.nan
    found = [Threshold(column.name, 1.5 if column.name == "block" else 3.0) for column in measure.columns]
    return view(folder, measure, value_LHC, found)


def test_a_head_may_have_several_roles(tmp_path: Path) -> None:
    found = sieve_view(tmp_path)
    assert SIEVE.classes(found) == {"roles": [["local, delimiter", "block"], ["–", "–"]]}
    assert SIEVE.scalars(found) == {"heads/local": 1, "heads/syntactic": 0, "heads/block": 1, "heads/delimiter": 1}
    section = SIEVE.section(found)
    assert section is not None
    assert section.findings == [
        "Of 4 heads 2 have a role by the sieve bias test (1 local, 1 block, 1 delimiter); 1 has more than one. The "
        "syntactic role was not tested: it needs annotated words."
    ]
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["local", "block", "delimiter", "first special token"]
    assert table.rows[1] == ["block", "1.5", "1", "1, 0", "layer 0 · head 1", "9.00 ± 0.10", "3.00", "20"]


def test_roles_stand_beside_patterns(tmp_path: Path) -> None:
    found = sieve_view(tmp_path)
    shares = torch.zeros(2, 2, 6, dtype=torch.float64)
    shares[0, 0, 1], shares[0, 1, 3], shares[1, :, 0] = 1.0, 1.0, 1.0
    view(tmp_path, Patterns(2, 2), shares, [])
    section = SIEVE.section(found)
    assert section is not None
    table = section.tables[1]
    assert list(table.header) == ["heads with the role", "block", "diagonal", "vertical", "no main pattern", "all"]
    rows = {row[0]: list(row[1:]) for row in table.rows}
    assert rows["local"] == ["0", "1", "0", "0", "1"]
    assert rows["block"] == ["1", "0", "0", "0", "1"]
    assert rows["no role"] == ["0", "0", "2", "0", "2"]


@pytest.mark.parametrize("pairs", [99, 200])
def test_heads_reach_the_thresholds_of_voita(tmp_path: Path, pairs: int) -> None:
    measure = VoitaRoles(1, 2, relations=["nsubj"])
    value_LHC = torch.tensor([[[0.95, 0.1, 0.6, 0.5, 0.2, 0.3], [0.1, 0.1, 0.9, 0.1, 0.2, 0.4]]]).double()
    rows = [Limits(0.9, 0.1, 0.5, 100), Distance("nsubj", -1, pairs // 2), Distance("nsubj", 2, pairs - pairs // 2)]
    found = view(tmp_path, measure, value_LHC, [*rows])
    section = VOITA.section(found)
    assert section is not None
    few = pairs < 100
    assert section.findings == [
        "Of 2 heads, by the thresholds of Voita et al. (2019): 1 positional, 0 rare words. The syntactic role could "
        "not be judged here."
        if few
        else "Of 2 heads, by the thresholds of Voita et al. (2019): 1 positional, 2 syntactic, 0 rare words."
    ]
    assert VOITA.classes(found)["role (Voita)"][0] == (
        ["positional", "–"] if few else ["positional, syntactic", "syntactic"]
    )
    (table,) = section.tables
    judged = ["–", "–", "–"] if few else ["0.500", "0.600", "2"]
    assert table.rows[2] == ["nsubj, to the head", "layer 0 · head 1", "0.900 ± 0.100", *judged, str(pairs)]
    assert table.rows[0] == ["to the previous token", "layer 0 · head 0", "0.950 ± 0.100", "–", "0.900", "1", "20"]
