"""``python -m bertsecrets``: its usage, its processes, and the wheel in an empty folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cli.runs import ROOT, environment, small


def bertsecrets(folder: Path, *arguments: str, package: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run ``python -m bertsecrets`` in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "bertsecrets", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(package)},
        check=False,
    )


def test_an_unknown_command_prints_the_usage_and_the_nearest_name(tmp_path: Path) -> None:
    result = bertsecrets(tmp_path, "trian", "task=mrpc")
    assert result.returncode == 1
    assert result.stderr.startswith("usage: python -m bertsecrets <command>")
    assert result.stderr.endswith(
        "error: Unknown command 'trian'; did you mean 'train'? Valid names: analyze, compare, export, gallery, merge, "
        "plan, report, resume, train, view, workspace.\n"
    )
    for arguments in ([], ["--help"]):
        result = bertsecrets(tmp_path, *arguments)
        assert result.returncode == 0
        assert "analyze    analyse a checkpoint" in result.stdout


@pytest.mark.slow
def test_jobs_and_ranks_start_as_the_sweep_did(tiny_bert: Path, tmp_path: Path) -> None:
    quick = {"data__limit_train": 16, "data__limit_eval": 9, "trainer__max_epochs": 1, "callbacks": "none"}
    settings = [
        setting
        for setting in small(tiny_bert, tmp_path, trainer="ddp_cpu", trainer__devices=2, **quick)
        if not setting.startswith(("hydra", "trainer.accelerator"))
    ]
    result = bertsecrets(tmp_path, "train", "-m", "seed=1,2", *settings, "hydra.sweep.dir=sweep")
    assert result.returncode == 0, result.stderr
    assert "2 finished, 0 skipped, 0 failed" in result.stdout
    for job in tmp_path.glob("sweep/*/finished.json"):
        # The second process of the job has a log of its own next to the first one's.
        assert {path.name for path in job.parent.glob("*.log")} == {"train.log", "train_ddp_process_1.log"}
    result = bertsecrets(tmp_path, "train", "resume=sweep")
    assert "0 finished, 2 skipped, 0 failed" in result.stdout, result.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("bertsecrets", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", str(source), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build], check=True, env={**os.environ, "PIP_NO_INDEX": "1"})
    (wheel,) = folder.glob("*.whl")
    target = folder / "target"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True)
    return target


@pytest.mark.slow
def test_the_wheel_carries_the_configurations_and_not_the_annotated_maps(installed: Path) -> None:
    (wheel,) = installed.parent.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name.removeprefix("bertsecrets/conf/") for name in names if name.startswith("bertsecrets/conf/")}
    assert packaged == {path.relative_to(ROOT / "conf").as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
    assert [name for name in names if "annotated" in name or name.startswith(("conf", "tools"))] == []
    for suffix in (
        ".css",
        ".js",
        ".jinja",
        "py.typed",
        "weights.safetensors",
        "demo_nli.train.jsonl.gz",
        "coreference.conll",
    ):
        assert any(name.endswith(suffix) for name in names), suffix


@pytest.mark.slow
def test_the_wheel_trains_and_analyses_from_an_empty_folder(installed: Path, tiny_bert: Path, tmp_path: Path) -> None:
    quick = {"data__limit_train": 16, "data__limit_eval": 9, "callbacks": "drift"}
    shown = bertsecrets(tmp_path, "train", "task=mrpc", "--cfg", "job", package=installed)
    assert shown.returncode == 0, shown.stderr
    assert "name: mrpc" in shown.stdout
    assert list(tmp_path.iterdir()) == []
    run = small(tiny_bert, Path("run"), trainer__max_epochs=1, **quick)
    result = bertsecrets(tmp_path, "train", *run, package=installed)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "heads.parquet").is_file()
    assert str(installed / "bertsecrets" / "conf") in (tmp_path / "run" / ".hydra" / "hydra.yaml").read_text()
    analysis = [
        setting
        for setting in small(tiny_bert, Path("analysis"), data__limit_eval=9, analysis="drift")
        if not setting.startswith(("trainer.max_epochs", "task.training.b"))
    ]
    result = bertsecrets(tmp_path, "analyze", "checkpoint=run", *analysis, package=installed)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "analysis" / "report.html").is_file()
