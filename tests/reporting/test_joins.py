"""Heads that attend alike, beside what other experiments found about them."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from reporting.finished_runs import make_run

from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.clusters.rows import Distance, Place, Space
from bertsecrets.patterns.measure import Patterns
from bertsecrets.present.report.content import Section
from bertsecrets.pruning.experiment import Shrinking
from bertsecrets.reporting.joins import distances_and_classes, roles_of_kept_heads
from bertsecrets.reporting.run_report import views_of
from bertsecrets.results.run import Run


@pytest.mark.parametrize("alike", [True, False])
def test_heads_of_one_pattern_are_close_or_not(tmp_path: Path, alike: bool) -> None:
    pattern_N = np.arange(12) % 2
    near_N = pattern_N if alike else np.arange(12) // 6
    distance_NN = (0.1 + 0.4 * (near_N[:, None] != near_N)) * ~np.eye(12, dtype=bool)
    names = [column.name for column in Patterns.columns]
    shares = {name: np.zeros((2, 6)) for name in names}
    shares["vertical"], shares["diagonal"] = (np.where(pattern_N == side, 0.9, 0.0).reshape(2, 6) for side in (0, 1))
    columns = {"within_layer": np.full((2, 6), 0.2), "between_layers": np.full((2, 6), 0.2)}
    folder = make_run(
        tmp_path / "run", measured=[("checkpoint", "patterns", shares), ("checkpoint", "clusters", columns)]
    )
    run = Run.open(folder)
    run.declare(Clusters(2, 6).declaration())
    places = [Place(False, *divmod(number, 6), float(number), float(side), 0) for number, side in enumerate(pattern_N)]
    distances = [
        Distance(False, *divmod(one, 6), *divmod(other, 6), distance_NN[one, other])
        for one, other in combinations(range(12), 2)
    ]
    run.write_rows("clusters", "checkpoint", 0, [Space(False, 9, 0, 0.1, 0.2, 0.2, 0.5), *places, *distances])
    views = {name: view for name, (_, view) in views_of(run).items()}
    section = distances_and_classes(views, {"clusters": Section("x")}, 1)
    assert section is not None
    [finding] = section.findings
    assert finding.startswith(f"Heads of the same pattern are {'' if alike else 'not significantly '}closer")
    [block] = section.figures
    [panel] = [axes for axes in block.figure.axes if axes.get_visible()]
    assert panel.get_title() == "pattern"
    assert sorted(text.get_text() for text in panel.get_legend().get_texts()) == ["diagonal (6)", "vertical (6)"]
    assert distances_and_classes({"clusters": views["clusters"]}, {"clusters": Section("x")}, 1) is None
    assert distances_and_classes(views, {}, 1) is None


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
    assert section is not None
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
