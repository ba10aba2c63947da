"""Heads that attend alike, beside what other experiments found about them."""

from pathlib import Path

import numpy as np
import pytest
from reporting.finished_runs import make_run

from bertsecrets.patterns.measure import Patterns
from bertsecrets.pruning.rows import Shrinking
from bertsecrets.reporting.joins import roles_of_kept_heads
from bertsecrets.reporting.run_report import views_of
from bertsecrets.results.run import Run


@pytest.mark.parametrize("decides", [True, False])
def test_heads_that_stay_by_what_they_do(tmp_path: Path, decides: bool) -> None:
    vertical_LH = np.arange(16).reshape(2, 8) % 2 == 0
    kept_LH = vertical_LH if decides else np.arange(8) < np.array([[4], [4]])
    shares = {column.name: np.zeros((2, 8)) for column in Patterns.columns}
    shares["vertical"], shares["diagonal"] = np.where(vertical_LH, 0.9, 0.0), np.where(vertical_LH, 0.0, 0.9)
    measured = [("checkpoint", "patterns", shares), ("checkpoint", "shrinking", {"kept": kept_LH})]
    run = Run.open(make_run(tmp_path / "run", measured=measured))
    run.declare(Shrinking().declaration())
    views = {name: view for name, (_, view) in views_of(run).items()}
    section = roles_of_kept_heads(views, {}, 1)
    [table] = section.tables
    # All four of each layer of one class and none of the other: 1 in 70 draws of four heads in eight, and 1 in 70 the
    # reverse.
    stays, p = ("8", "< 0.001") if decides else ("4", "1.000")
    assert [row[1:] for row in table.rows] == [
        ["diagonal", "8", "0" if decides else "4", "4.0", p],
        ["vertical", "8", stays, "4.0", p],
    ]
    [finding] = section.findings
    assert ("8 of 8 “vertical” (4.0 expected)" in finding) == decides
    assert ("no class of heads is significantly over- or under-represented" in finding) != decides
    assert roles_of_kept_heads({"shrinking": views["shrinking"]}, {}, 1) is None
    assert roles_of_kept_heads({"patterns": views["patterns"]}, {}, 1) is None
