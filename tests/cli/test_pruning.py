"""Pruning and gates through the doors: the command of the documentation, two processes, heads removed before training."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.runs import door, small

from bertsecrets.results.table import HeadTable

pytestmark = pytest.mark.slow

LITTLE = (
    "prune.step=0.3",
    "prune.seeds=1",
    "prune.examples=33",
    "prune.latency_rounds=0",
    "logger=csv",
    "progress=false",
)
GATES = ("analysis.gates.path=[0.1]", "analysis.gates.steps=6", "analysis.gates.fits=1", "analysis.gates.examples=33")


def pruned(folder: Path, trained: Path, *extra: str) -> dict[str, Any]:
    result = door("analyze", f"checkpoint={trained}", f"hydra.run.dir={folder}", *LITTLE, *extra)
    assert result.returncode == 0, result.stderr
    content: dict[str, Any] = json.loads((folder / "pruning.json").read_text())["model"]
    return content


def test_settings_of_pruning_choose_the_analysis(trained: Path, tmp_path: Path) -> None:
    content = pruned(tmp_path / "run", trained, "prune.max_loss=1.0", "prune.confidence=0.95")
    # The importance of Michel et al. and the effects of single heads, and the two controls that are always added.
    assert {row["score"] for row in content["curves"]} == {
        "head_gradient/example_normalised",
        "exact",
        "random",
        "reversed",
    }
    assert content["margin"] == 0.01
    assert "Pruned heads" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_columns_of_another_analysis_are_scores(trained: Path, tmp_path: Path) -> None:
    drift = ["analysis=drift", "logger=csv", "progress=false", f"hydra.run.dir={tmp_path / 'drift'}"]
    assert door("analyze", f"checkpoint={trained}", *drift).returncode == 0
    tables = [f"prune.tables=[{tmp_path / 'drift'}]", "prune.scores=[-drift/cosine]", "prune.keep=5"]
    content = pruned(tmp_path / "run", trained, *tables)
    removed = {name for name, kept in grid_of(tmp_path / "run", "pruning", "kept").items() if not kept}
    cosine = grid_of(tmp_path / "drift", "drift", "cosine")
    assert removed == set(sorted(cosine, key=lambda place: -cosine[place])[: content["total"] - 5])


def grid_of(folder: Path, measure: str, column: str) -> dict[tuple[int, int], float]:
    table = HeadTable.read(folder / "heads.parquet")
    grid_LH = table.grid(measure, column, "checkpoint", table.steps(measure, column, "checkpoint")[-1])[0]
    return {(layer, head): float(value) for layer, row in enumerate(grid_LH) for head, value in enumerate(row)}


MEASURED = "[exact,head_gradient/batch_normalised,first_order/mean,relevance,direct_effect,shapley]"


@pytest.mark.parametrize(("recovery", "scores"), [(0, MEASURED), (1, "[exact]")])
def test_two_processes_give_the_numbers_of_one(trained: Path, tmp_path: Path, recovery: int, scores: str) -> None:
    extra = [f"prune.recovery_epochs={recovery}", "prune.iterative=true", f"prune.scores={scores}"]
    one = pruned(tmp_path / "one", trained, *extra)
    two = pruned(tmp_path / "two", trained, *extra, "trainer=ddp_cpu", "trainer.devices=2")
    assert one["choosing"] == two["choosing"] == 33
    assert len(one["curves"]) == len(two["curves"])
    for first, second in zip(one["curves"], two["curves"], strict=True):
        numbers = [{key: value for key, value in row.items() if key != "latency"} for row in (first, second)]
        assert numbers[1] == pytest.approx(numbers[0], abs=1e-5)
    assert one["from_tables"] == []
    assert not (tmp_path / "two" / "pruning").exists()


def test_gates_of_two_processes_are_those_of_one(trained: Path, tmp_path: Path) -> None:
    contents = []
    for name, extra in (("one", []), ("two", ["trainer=ddp_cpu", "trainer.devices=2"])):
        arguments = ["analysis=gates", *GATES, "logger=csv", "progress=false", f"hydra.run.dir={tmp_path / name}"]
        result = door("analyze", f"checkpoint={trained}", *arguments, *extra)
        assert result.returncode == 0, result.stderr
        contents.append(json.loads((tmp_path / name / "causal_gates.json").read_text())["model"])
    one, two = (content["curves"][0] for content in contents)
    assert {key: two[key] for key in ("kept", "change")} == {key: one[key] for key in ("kept", "change")}
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)


def test_heads_removed_before_training_on_one_page(tiny_bert: Path, tmp_path: Path) -> None:
    arguments = [
        argument
        for argument in small(tiny_bert, tmp_path, callbacks="prune", callbacks__prune__score="random")
        if not argument.startswith("hydra.run.dir")
    ]
    sweep = ["-m", f"hydra.sweep.dir={tmp_path}", "callbacks.prune.keep=12,4", "seed=1,2"]
    result = door("train", *arguments, *sweep)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "comparison" / "comparison.html").read_text("utf-8")
    assert "Heads removed before fine-tuning" in page
