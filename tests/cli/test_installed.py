"""``python -m bertsecrets``: its usage, its processes, and the release: sdist, wheel, citation."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from cli.runs import ROOT, environment, small

import bertsecrets as package

SHIPPED = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def bertsecrets(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m bertsecrets`` in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "bertsecrets", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        check=False,
    )


def test_an_unknown_command_prints_the_usage_and_the_nearest_name(tmp_path: Path) -> None:
    result = bertsecrets(tmp_path, "trian", "task=mrpc")
    assert result.returncode == 1
    assert result.stderr.startswith("usage: python -m bertsecrets <command>")
    assert result.stderr.endswith(
        "error: Unknown command 'trian'; did you mean 'train'? Valid names: analyze, compare, export, "
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
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("release")
    source = folder / "source"
    for name in ("bertsecrets", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", *SHIPPED):
        shutil.copy(ROOT / name, source / name)
    sdist = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", sdist], cwd=source, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    wheel = ["wheel", str(archive), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*PIP, *wheel], check=True, env={**os.environ, "PIP_NO_INDEX": "1"})
    return folder


@pytest.fixture(scope="module")
def installed(release: Path) -> Path:
    """A new environment with the wheel alone, which borrows the libraries of this one; its folder of commands."""
    environment = release / "environment"
    venv.create(environment)
    commands = environment / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = release.glob("*.whl")
    install = ["--python", str(commands / "python"), "install", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    # Elsewhere than in the checkout, whose editable installation would count as this package.
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*PIP, *install], check=True, cwd=release, env=alone)
    shown = [str(commands / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.check_output(shown, text=True).strip())
    # A path in a .pth file comes after the environment's own packages, and the .pth files in it are not read: not that
    # of this package's editable installation either.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return commands


def run_installed(folder: Path, *words: str | Path) -> str:
    """What a command prints that knows nothing of the checkout."""
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=500,
        cwd=folder,
        env={name: value for name, value in environment().items() if name != "PYTHONPATH"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sdist_and_wheel_hold_the_files_of_the_checkout(release: Path) -> None:
    listed = ["git", "-C", str(ROOT), "ls-files", "bertsecrets", "conf"]
    tracked = {name for name in subprocess.check_output(listed, text=True).splitlines() if "annotated" not in name}
    (archive,) = release.glob("bertsecrets-0.1.0.tar.gz")
    with tarfile.open(archive) as sdist:
        packed = {member.name.partition("/")[2] for member in sdist if member.isfile()}
    assert tracked | {*SHIPPED} <= packed
    (wheel,) = release.glob("bertsecrets-0.1.0-py3-none-any.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.removeprefix("bertsecrets/") if "/conf/" in name else name for name in names} == tracked
    metadata = zipfile.ZipFile(wheel).read("bertsecrets-0.1.0.dist-info/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    # Links need an address, which a release is given.
    assert "Project-URL" not in metadata
    assert "](docs/" not in metadata


def test_the_wheel_works_in_a_new_environment_and_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    assert run_installed(tmp_path, installed / "bertsecrets", "--help").startswith("usage: python -m bertsecrets")
    program = (
        "import bertsecrets, bertsecrets.settings as s; print(bertsecrets.__version__, bertsecrets.__file__, s.CONF)"
    )
    version, package, configurations = run_installed(tmp_path, installed / "python", "-c", program).split()
    assert version == "0.1.0"
    assert Path(package).is_relative_to(installed.parent)
    assert Path(configurations) == Path(package).parent / "conf"
    assert "name: mrpc" in run_installed(tmp_path, installed / "bertsecrets", "train", "task=mrpc", "--cfg", "job")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_wheel_trains_and_analyses_from_an_empty_folder(installed: Path, tiny_bert: Path, tmp_path: Path) -> None:
    quick = {"data__limit_train": 16, "data__limit_eval": 9, "callbacks": "drift"}
    run = small(tiny_bert, Path("run"), trainer__max_epochs=1, **quick)
    run_installed(tmp_path, installed / "bertsecrets", "train", *run)
    assert (tmp_path / "run" / "heads.parquet").is_file()
    assert str(installed.parent) in (tmp_path / "run" / ".hydra" / "hydra.yaml").read_text()
    analysis = [
        setting
        for setting in small(tiny_bert, Path("analysis"), data__limit_eval=9, analysis="drift")
        if not setting.startswith(("trainer.max_epochs", "task.training.b"))
    ]
    run_installed(tmp_path, installed / "bertsecrets", "analyze", "checkpoint=run", *analysis)
    assert (tmp_path / "analysis" / "report.html").is_file()


def test_the_citation_names_this_version_and_real_papers() -> None:
    """The fields that version 1.2.0 of the Citation File Format demands, and a DOI or an address for each paper."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == package.__version__
    assert str(citation["date-released"]) in (ROOT / "CHANGELOG.md").read_text("utf-8")
    for work in (citation, *citation["references"]):
        assert work["title"]
        assert all(person.get("name") or person["family-names"] for person in work["authors"])
    for work in citation["references"]:
        assert work["type"] == "conference-paper"
        assert work["conference"]["name"]
        assert work.get("doi", "").startswith("10.") or work["url"].startswith("https://")
