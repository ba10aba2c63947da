"""Heads that attend alike, beside what other experiments found about them."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from reporting.finished_runs import make_run

from bertsecrets.measures.clusters.measure import ClusterRecord, Clusters
from bertsecrets.patterns.measure import Patterns
from bertsecrets.reporting.joins import distances_and_classes
from bertsecrets.reporting.run_report import views_of
from bertsecrets.results.report.content import Section
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
    points = [[float(place), float(side)] for place, side in enumerate(pattern_N)]
    record = ClusterRecord(9, distance_NN.tolist(), points, 0.1, [], 0.0, [0] * 12, [], 0, 0.2, 0.2, 0.5)
    run.write_json(run.extras_path("clusters"), {"model": asdict(record)})
    views = {name: view for name, (_, view) in views_of(run).items()}
    section = distances_and_classes(views, {"clusters": Section("x")}, 1)
    assert section is not None
    [finding] = section.findings
    assert finding.startswith(f"Heads of one pattern are {'' if alike else 'not significantly '}closer")
    [block] = section.figures
    [panel] = [axes for axes in block.figure.axes if axes.get_visible()]
    assert panel.get_title() == "pattern"
    assert sorted(text.get_text() for text in panel.get_legend().get_texts()) == ["diagonal (6)", "vertical (6)"]
    assert distances_and_classes({"clusters": views["clusters"]}, {"clusters": Section("x")}, 1) is None
    assert distances_and_classes(views, {}, 1) is None
