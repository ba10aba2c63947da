"""Pruning through the doors: the command of the documentation, and heads removed before training."""

from pathlib import Path

import pytest
from cli.runs import ran, small

from bertsecrets.pruning.rows import Pruned
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView

pytestmark = pytest.mark.slow

LITTLE = (
    "prune.step=0.3",
    "prune.seeds=1",
    "prune.examples=33",
    "prune.latency_rounds=0",
    "logger=csv",
    "progress=false",
)


def pruned(folder: Path, trained: Path, *extra: str) -> Pruned:
    ran("analyze", f"checkpoint={trained}", f"hydra.run.dir={folder}", *LITTLE, *extra)
    run = Run.open(folder)
    (declaration,) = [one for one in run.declarations() if one.name == "pruning"]
    return Pruned.of(MeasureView(run, declaration))


def test_settings_of_pruning_choose_the_analysis(trained: Path, tmp_path: Path) -> None:
    found = pruned(tmp_path / "run", trained, "prune.max_loss=1.0", "prune.confidence=0.95")
    # The importance of Michel et al. and the effects of single heads, and the two controls that are always added.
    scores = {point.score for point in found.points}
    assert scores == {"head_gradient/example_normalised", "exact", "random", "reversed"}
    assert found.search.margin == 0.01
    assert "Pruned heads" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_heads_removed_before_training_on_one_page(tiny_bert: Path, tmp_path: Path) -> None:
    arguments = [
        argument
        for argument in small(tiny_bert, tmp_path, callbacks="prune", callbacks__prune__score="random")
        if not argument.startswith("hydra.run.dir")
    ]
    sweep = ["-m", f"hydra.sweep.dir={tmp_path}", "callbacks.prune.keep=12,4", "seed=1,2"]
    ran("train", *arguments, *sweep)
    page = (tmp_path / "comparison" / "comparison.html").read_text("utf-8")
    # A tiny model of random weights learns nothing, so that the heads that it kept have no comparison.
    assert "They differ in callbacks.prune.keep." in page
    assert "Heads not interpreted, because the model does not significantly beat the majority baseline" in page
