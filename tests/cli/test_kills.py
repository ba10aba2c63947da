"""Runs that are killed or interrupted at random moments and resumed end as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runs import ROOT, environment, small
from sweeps.sweeps import left_of, sweep_arguments

from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.files import _LEFTOVER
from bertsecrets.results.table import HeadTable

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Work:
    """A command that is killed again and again.

    Args:
        program: ``train`` or ``analyze``.
        arguments: Its arguments, with ``{folder}`` for its folder.
    """

    program: str
    arguments: list[str]

    def start(self, folder: Path, attempt: int) -> "subprocess.Popen[str]":
        """Start it, or resume what an earlier attempt has begun."""
        begun = (folder / "config.yaml").exists() or (folder / "sweep.json").exists()
        words = [f"resume={folder}"] if begun else [word.replace("{folder}", str(folder)) for word in self.arguments]
        return subprocess.Popen(
            [sys.executable, str(ROOT / f"{self.program}.py"), *words],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A test runner in the background of a shell ignores interrupts, and its children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def finish(self, folder: Path) -> str:
        process = self.start(folder, 0)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return output


def kill_and_resume(work: Work, folder: Path, numbers: list[int], moments: random.Random, seconds: float) -> int:
    """Kill work at random moments, then resume it to its end; return how many attempts were killed before their end."""
    killed = 0
    for attempt, number in enumerate(numbers):
        process = work.start(folder, attempt)
        try:
            process.wait(moments.uniform(0.3, seconds))
        except subprocess.TimeoutExpired:
            killed += 1
            process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert left_of(folder) == []
        assert "Traceback" not in errors, errors
        if process.returncode != 0:
            assert process.returncode in (-number, 128 + number), (number, process.returncode, errors)
            if process.returncode == 128 + number:
                assert errors.splitlines()[-1].startswith("Interrupted"), errors
    work.finish(folder)
    return killed


def files(folder: Path) -> set[str]:
    """Relative paths of a run's files, without the logs of each attempt."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith(("csv/", ".sweep/")) and not name.endswith(".log")}


def assert_same_run(whole: Path, resumed: Path) -> None:
    """Weights, tables and scores are equal to the last bit, and no stray file is left."""
    assert files(whole) == files(resumed)
    assert not [name for name in files(resumed) if _LEFTOVER.fullmatch(Path(name).name)]
    for name in ("last.ckpt", "best.ckpt"):
        if (whole / "checkpoints" / name).is_file():
            one, two = (
                torch.load(folder / "checkpoints" / name, weights_only=True)["state_dict"]
                for folder in (whole, resumed)
            )
            assert all(torch.equal(one[key], two[key]) for key in one), name
    for name, table in (("heads.parquet", HeadTable), ("ablation.parquet", AblationTable)):
        if (whole / name).is_file():
            rows = [sorted(map(repr, table.read(folder / name).table.to_pylist())) for folder in (whole, resumed)]
            assert rows[0] == rows[1], name
    if (whole / "scores.json").is_file():
        scores = [_without_time(json.loads((folder / "scores.json").read_text())) for folder in (whole, resumed)]
        assert scores[0] == scores[1]


def _without_time(scores: dict[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in scores.items() if key != "seconds"}


def training(model: Path) -> Work:
    settings = {"checkpoint__every_n_steps": 3, "data__limit_train": 160, "trainer__max_epochs": 3}
    return Work("train", small(model, Path("{folder}"), **settings))


def _analysis(checkpoint: Path, *more: str) -> list[str]:
    quick = ["ablation.resamples=100", "ablation.permutations=100", "progress=false", "logger=csv"]
    cpu = ["trainer.accelerator=cpu", "data.eval_batch_size=4"]
    return [f"checkpoint={checkpoint}", *quick, *cpu, *more]


@pytest.fixture(scope="module")
def trained(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted training."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    training(tiny_bert).finish(folder)
    return folder


@pytest.fixture(autouse=True)
def _report_moments(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    began = time.monotonic()
    yield
    with capsys.disabled():
        print(f" ({time.monotonic() - began:.0f} s)", end="")  # noqa: T201


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_training_ends_with_the_weights_of_an_uninterrupted_one(
    trained: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    moments = random.Random(15)
    folder = tmp_path / "run"
    killed = kill_and_resume(training(tiny_bert), folder, [*SIGNALS, *SIGNALS, signal.SIGKILL], moments, 25)
    assert killed >= 5
    assert_same_run(trained, folder)
    before = files(folder)
    assert f"The run in '{folder}' is already finished" in training(tiny_bert).finish(folder)
    assert files(folder) == before


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_analysis_and_a_killed_merge_give_the_tables_of_uninterrupted_ones(
    trained: Path, tmp_path: Path
) -> None:
    moments = random.Random(16)
    heads = Work("analyze", _analysis(trained, "analysis=disable_heads", "hydra.run.dir={folder}"))
    heads.finish(tmp_path / "whole")
    killed = kill_and_resume(heads, tmp_path / "killed", [*SIGNALS, *SIGNALS], moments, 20)
    assert killed >= 4
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    parts = []
    for layer in (0, 1, 2):
        part = _analysis(trained, "analysis=disable_heads", f"ablation.layer={layer}", "hydra.run.dir={folder}")
        Work("analyze", part).finish(tmp_path / f"part{layer}")
        parts.append(str(tmp_path / f"part{layer}"))
    merge = Work("analyze", [f"merge=[{','.join(parts)}]", "hydra.run.dir={folder}"])
    merge.finish(tmp_path / "merged")
    killed = kill_and_resume(merge, tmp_path / "merged again", list(SIGNALS), moments, 9)
    assert killed >= 2
    assert_same_run(tmp_path / "merged", tmp_path / "merged again")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_sweep_runs_no_job_twice(tiny_bert: Path, tmp_path: Path) -> None:
    moments = random.Random(17)
    settings = {"callbacks": "none", "checkpoint__every_n_steps": 2, "data__limit_train": 40}
    sweep = Work("train", sweep_arguments(tiny_bert, Path("{folder}"), "seed=1,2,3", **settings))
    sweep.finish(tmp_path / "whole")
    killed, markers = 0, {}
    folder = tmp_path / "killed"
    for number in (*SIGNALS, signal.SIGTERM):
        killed += kill_once(sweep, folder, number, moments)
        for marker in folder.glob("*/finished.json"):
            assert markers.setdefault(marker, marker.stat().st_mtime_ns) == marker.stat().st_mtime_ns
    sweep.finish(folder)
    assert killed >= 3
    for marker, written in markers.items():
        assert marker.stat().st_mtime_ns == written
    jobs = sorted(path.parent.name for path in folder.glob("*/finished.json"))
    assert jobs == sorted(path.parent.name for path in (tmp_path / "whole").glob("*/finished.json"))
    assert len(jobs) == 3
    assert not (folder / ".set_aside").exists()
    for name in jobs:
        assert_same_run(tmp_path / "whole" / name, folder / name)


def kill_once(work: Work, folder: Path, number: int, moments: random.Random) -> int:
    process = work.start(folder, 0)
    try:
        process.wait(moments.uniform(8, 35))
        killed = 0
    except subprocess.TimeoutExpired:
        killed = 1
        process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert left_of(folder) == []
    assert "Traceback" not in errors, errors
    if killed and process.returncode != 0:
        assert process.returncode in (-number, 128 + number), (number, process.returncode, errors)
    return killed


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_other_within_ten_seconds(tiny_bert: Path, tmp_path: Path) -> None:
    for victim in ("first", "second"):
        folder = tmp_path / victim
        arguments = small(tiny_bert, folder, trainer="ddp_cpu", trainer__devices=2, trainer__max_epochs=500)
        arguments.remove("trainer.accelerator=cpu")
        process = Work("train", arguments).start(folder, 0)
        deadline = time.monotonic() + 120
        while not (folder / "heads.parquet").is_file() and time.monotonic() < deadline:
            time.sleep(0.2)
        (second,) = _children(process.pid)
        began = time.monotonic()
        os.kill(process.pid if victim == "first" else second, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert left_of(folder, 10) == []
        assert time.monotonic() - began < 10
        assert "Traceback" not in errors, errors
        sentence = (
            "The process that started this one|The first process"
            if victim == "first"
            else "Process 1 of this run was killed by SIGKILL"
        )
        assert [line for line in errors.splitlines() if line.startswith("error: ")], errors
        assert any(part in errors for part in sentence.split("|")), errors


def _children(parent: int) -> list[int]:
    """The Python processes that a process has started with its own command."""
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat[1]) == parent and b"train.py" in command:
                children.append(int(entry.name))
    return children
