"""From judged rows to the grids of the head table."""

from typing import Any

import numpy as np
import pytest

from bertsecrets.ablation.judging import judged_grids
from bertsecrets.ablation.plan import Plan, all_but_one, every_head
from bertsecrets.grid import Column


def row(kind: str, metric: str, layer: int, head: int, delta: float) -> dict[str, Any]:
    return {"kind": kind, "metric": metric, "layer": layer, "head": head, "delta": delta, "stderr": 0.1, "count": 30}


def test_single_heads_and_all_but_one_are_grids_with_a_column_for_each_metric() -> None:
    plan = Plan("zero", 2, 3, (*every_head(2, 3, [1]), *all_but_one(2, 3, [1])))
    rows = [
        row(kind, metric, 1, head, number + head)
        for number, (kind, metric) in enumerate(
            [("head", "accuracy"), ("head", "f1"), ("all_but_one", "accuracy"), ("all_but_one", "f1")]
        )
        for head in range(3)
    ]
    alone, but_one = judged_grids(plan, [*rows, {**rows[0], "kind": "layer"}])
    assert alone.measure == but_one.measure == "ablation"
    assert alone.described == (
        Column("accuracy_zero", "accuracy with the head disabled (zero)", "change of accuracy"),
        Column("f1_zero", "f1 with the head disabled (zero)", "change of f1"),
    )
    assert but_one.columns == ("accuracy_zero_all_but_one", "f1_zero_all_but_one")
    for grid, first in ((alone, 0), (but_one, 2)):
        for place in range(2):
            np.testing.assert_array_equal(grid.value_LHC[1, :, place], first + place + np.arange(3.0))
        # Layer 0 was not disabled.
        assert grid.value_LHC[0].isnan().all()
        assert (grid.count_LHC[0] == 0).all()
        assert (grid.count_LHC[1] == 30).all()
        assert (grid.stderr_LHC[1] == 0.1).all()


@pytest.mark.parametrize("kind", ["layer", "group", "cumulative"])
def test_other_kinds_have_no_grid(kind: str) -> None:
    plan = Plan("uniform", 2, 3, tuple(every_head(2, 3)))
    assert judged_grids(plan, [row(kind, "accuracy", 0, 0, 0.1)]) == []
