"""The long table of all numbers, against runs put together by hand."""

from pathlib import Path

import numpy as np
import pytest
from papers.paper_runs import TREEBANK, relation
from reporting.finished_runs import make_run

import bertsecrets as bs
from bertsecrets.errors import UserError
from bertsecrets.reporting.numbers import LONG
from bertsecrets.results.run import Run


def test_every_number_of_many_runs_has_a_line(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / "sweep" / str(seed)
        make_run(folder, seed=seed, cosine_LH=[[0.5, 0.9]], delta_LH=[[-0.1, 0.0]], significant_LH=[[True, False]])
        Run.open(folder).write_rows("dependency", "checkpoint", 9, [TREEBANK, relation("det", 0.9, 0.3)])
    table = bs.numbers(tmp_path / "sweep")
    assert list(table.columns) == LONG.names
    assert set(table.seed) == {1, 2}
    assert set(table.folder) == {str(tmp_path / "sweep" / name) for name in "12"}
    assert str(table.layer.dtype) == "Int32"
    first = table[table.seed == 1]
    drift = first[(first.experiment == "drift") & (first.step == 9)]
    np.testing.assert_array_equal(drift.value, [0.5, 0.9])
    assert set(drift.n) == {408}
    deltas = first[(first.experiment == "ablation") & (first.quantity == "delta")]
    np.testing.assert_array_equal(deltas.value, [-0.1, 0.0])
    assert deltas.key.iloc[0] == "evaluation=val metric=accuracy mode=uniform kind=head variant=l00h00 heads=0-0"
    assert list(zip(deltas.layer, deltas["head"], strict=True)) == [(0, 0), (0, 1)]
    (gain,) = first[first.quantity == "relation/gain"].to_dict("records")
    assert (gain["value"], gain["low"], gain["high"], gain["n"]) == (0.3, pytest.approx(0.28), pytest.approx(0.32), 200)
    assert gain["key"] == "relation=det from_head=False"
    assert (gain["layer"], gain["head"]) == (7, 10)
    (words,) = first[first.quantity == "relation/words"].to_dict("records")
    assert words["value"] == 200
    (p_gain,) = first[first.quantity == "relation/p_gain"].to_dict("records")
    assert p_gain["value"] == 0.01
    assert np.isnan(p_gain["low"])


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no run; give run folders or a sweep's folder"):
        bs.numbers(tmp_path)
