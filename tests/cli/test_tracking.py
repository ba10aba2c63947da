"""What reaches W&B, what does not, and what happens when it cannot be reached."""

import json
import os
import re
from pathlib import Path

import pytest
from cli.runs import door, ran, small, small_analysis
from wandb_log import tracked

from bertsecrets.cli.workspace import build_report, build_workspace, specification

KEY = "0a1b2c3d4e" * 4


@pytest.fixture(scope="module")
def trained(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that was to be tracked online, on a machine from which no server can be reached; and what it said."""
    folder = tmp_path_factory.mktemp("tracked") / "run"
    arguments = small(tiny_bert, folder, logger="wandb", callbacks="drift", trainer__max_epochs=1)
    online = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY}
    result = ran("train", *arguments, "logger.wandb.init_timeout=3", variables=online)
    return folder, result.stdout + result.stderr


def test_an_unreachable_server_does_not_stop_the_run(trained: tuple[Path, str]) -> None:
    folder, said = trained
    assert "W&B cannot be reached" in said
    assert f"`wandb sync {folder}/wandb/offline-run-*`" in said
    logged = tracked(folder).logged
    assert {"drift/cosine/l00", "train/learning_rate", "val/accuracy"} <= logged.keys()
    # Numbers of single heads are a table and a heatmap.
    assert not [name for name in logged if re.search(r"/l\d+h\d+$", name)]
    assert json.loads((folder / "wandb.json").read_text())["mode"] == "offline"


def test_a_summary_is_short_and_the_configuration_has_what_the_run_uses(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    found = tracked(folder)
    updates = [update for record in found.records for update in record.summary.update]
    names = {update.key or update.nested_key[0] for update in updates}
    own = {name for name in names if not name.startswith("_")}
    assert {
        "answer",
        "objective",
        "learned",
        "final/val/accuracy",
        "constant/val/accuracy",
        "train/loss",
        "heads",
    } <= own
    assert not [name for name in own if name.startswith("drift/")]
    assert len(own) <= 40
    settings = {update.key for update in found.run.config.update}
    assert {"task", "optimizer", "measure", "callbacks"} <= settings
    assert not settings & {"framenet", "annotation", "prune", "shrink", "ablation"}


def test_a_heatmap_is_logged_once_a_step(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    history = tracked(folder).history
    steps = [line["trainer/global_step"] for line in history if "drift/cosine/heatmap/_type" in line]
    # Two validations, of which the second is that of the report's weights.
    assert len(steps) == len(set(steps)) == 2


def test_the_api_key_is_written_nowhere(trained: tuple[Path, str]) -> None:
    folder, said = trained
    assert KEY not in said
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_the_artifact_holds_table_report_and_checkpoint(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    records = tracked(folder).records
    artifacts = [record.request.log_artifact.artifact for record in records if record.request.HasField("log_artifact")]
    artifacts += [record.artifact for record in records if record.HasField("artifact")]
    (own,) = [each for each in artifacts if each.type == "bertsecrets-run"]
    assert own.name == f"run-{json.loads((folder / 'wandb.json').read_text())['id']}"
    held = {Path(entry.path).name for entry in own.manifest.contents}
    assert {"heads.parquet", "report.html", "scores.json", "config.yaml", "final.ckpt"} <= held


def test_an_analysis_names_the_run_it_comes_from(trained: tuple[Path, str], tiny_bert: Path, tmp_path: Path) -> None:
    folder, _ = trained
    settings = {"logger": "wandb", "checkpoint": folder, "analysis": "scores"}
    ran("analyze", *small_analysis(tiny_bert, tmp_path / "a", **settings))
    found = tracked(tmp_path / "a")
    source = json.loads((folder / "wandb.json").read_text())["id"]
    assert (found.config["source_run"], found.config["source_artifact"]) == (source, f"run-{source}:latest")
    assert (found.run.job_type, found.run.notes) == ("analysis", f"Analysis of the run {source}")


def test_workspace_and_report_show_what_is_logged_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb_workspaces.reports.v2.interface as interface

    def refuse(*_: object) -> None:
        raise AssertionError("a server was asked")

    monkeypatch.setattr(interface, "_get_api", refuse)
    monkeypatch.setattr(interface, "execute_graphql", refuse)
    for made in (build_workspace("me", "mine", "sweep-1"), build_report("me", "mine", "sweep-1")):
        text = json.dumps(specification(made))
        shown = (
            "val/accuracy",
            "drift/cosine/heatmap",
            "ablation/can_be_spared",
            "^pruning/change_of_",
            "figures/drift_against_ablation",
        )
        for name in (
            *shown,
            "train/learning_rate",
            "gradient_flow/gradient_norm",
            "task.value.name",
            "model.value.name",
        ):
            assert name in text, name
        assert "sweep-1" in text
        assert '"groupAgg": "mean"' in text
        assert "minmax" in text


def test_a_workspace_needs_an_account(tmp_path: Path) -> None:
    kept = os.environ.pop("WANDB_API_KEY", None)
    try:
        result = door("workspace", "project=me/mine", f"hydra.run.dir={tmp_path}")
    finally:
        if kept is not None:
            os.environ["WANDB_API_KEY"] = kept
    assert result.returncode == 1
    assert "log in with `wandb login`" in result.stderr
    for name in ("workspace", "report"):
        assert "val/accuracy" in (tmp_path / f"wandb_{name}.json").read_text("utf-8")
