"""Runs that are killed or interrupted at random moments and resumed end as if nothing had happened."""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from cli.runs import small, start
from faults.cases import Outcome, analyze, train
from faults.runner import Warm
from safetensors.torch import load_file
from shared import wait_for
from sweeps.sweeps import left_of, sweep_arguments

from bertsecrets.sweeps.run_folder import NO_INFLUENCE

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
RUN = "{folder}/run"
QUICK = train(hydra__run__dir=RUN, callbacks="watch", trainer__max_epochs=2, checkpoint__every_n_steps=2)
GATES = train(hydra__run__dir=RUN, callbacks="gates", trainer__max_epochs=3, checkpoint__every_n_steps=2)
TRAINING = train(
    hydra__run__dir=RUN,
    # Every callback that writes during or after a training, but for gates, beside which no head can be disabled.
    callbacks="[default,sinks,specialized_heads]",
    callbacks__disable__every_n_validations=1,
    callbacks__gates_last__steps=4,
    callbacks__gates_last__fits=1,
    logger="csv",
    ablation__resamples=100,
    ablation__permutations=100,
    trainer__max_epochs=4,
    checkpoint__every_n_steps=2,
    task__training__batch_size=4,
)


def killed_at(
    warm: Warm, words: tuple[str, ...], folder: Path, moment: float, number: int, after: Path | None = None
) -> Outcome:
    """Run a command and send its process a signal after some seconds, unless it has ended.

    Args:
        warm: Runs the command.
        words: The command.
        folder: Its working directory.
        moment: Seconds.
        number: The signal.
        after: A file from whose next writing the seconds count; None for the start of the command.
    """
    done = threading.Event()
    process = warm._process.pid
    before = _written(after)

    def kill() -> None:
        while after is not None and _written(after) == before and not done.wait(0.01):
            pass
        if not done.wait(moment):
            for child in children(process):
                os.kill(child, number)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = warm.run(words, folder, seconds=120.0)
    done.set()
    killer.join()
    return outcome


def _written(path: Path | None) -> int | None:
    return None if path is None or not path.exists() else path.stat().st_mtime_ns


def kill_and_resume(
    warm: Warm, words: tuple[str, ...], folder: Path, numbers: Sequence[int], seed: int, after: str | None = None
) -> tuple[Path, Path, int]:
    """Run work undisturbed, and again with kills at random moments, each resumed, to its end.

    With ``after``, the moments follow the writing of this file. Returns both folders, and how many attempts a signal
    has ended.
    """
    (folder / "whole").mkdir()
    (folder / "killed").mkdir()
    whole = warm.run(words, folder / "whole", seconds=120.0)
    assert whole.status == 0, whole.stderr
    generator, killed, run = random.Random(seed), 0, folder / "killed" / "run"
    for number in numbers:
        again = (words[0], f"resume={run}") if (run / "config.yaml").exists() else words
        # Early enough that, on a machine that has become less busy meanwhile, a signal still meets unfinished work.
        moment = generator.uniform(0, 0.3 * whole.seconds if after is None else 0.2)
        outcome = killed_at(warm, again, folder / "killed", moment, number, None if after is None else run / after)
        assert "Traceback" not in outcome.stderr, outcome.stderr
        assert outcome.status in (0, -number, 128 + number), (number, outcome)
        if outcome.status == 128 + number:
            assert outcome.stderr.splitlines()[-1].startswith("Interrupted"), outcome.stderr
        killed += outcome.status != 0
        assert children(warm._process.pid) == []
    again = (words[0], f"resume={run}") if (run / "config.yaml").exists() else words
    last = warm.run(again, folder / "killed", seconds=120.0)
    assert last.status == 0, last.stderr
    assert_same_run(folder / "whole" / "run", run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    outcome = warm.run(words, folder / "killed")
    assert outcome.status == 0
    assert "is already finished" in outcome.stdout
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
    return folder / "whole" / "run", run, killed


def children(parent: int) -> list[int]:
    """Ids of the processes that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, owner = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(owner) == parent and state != "Z":
                found.append(int(entry.name))
    return found


def files(folder: Path) -> set[str]:
    """Relative paths of a run's files, without the logs, of which each attempt adds its own."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith(("csv/", ".hydra/")) and not name.endswith(".log")}


def assert_same_run(whole: Path, resumed: Path) -> None:
    """Every file is the same but for times and the folder's own name, and there is no stray one."""
    assert files(whole) == files(resumed)
    for name in sorted(files(whole)):
        contents = [_content(folder / name, folder) for folder in (whole, resumed)]
        assert contents[0] == contents[1], name


_TIMES = {"seconds", "time", "started", "ended", "files"}
"""Keys of values that depend on the clock: times, and the digests of files that hold them."""

_TIME = re.compile(r"\b[\d,.]+ ?(?:s|ms|seconds?|minutes?|min|hours?|h)\b|\b\d{4}-\d\d-\d\d[ _T][\d:-]+")


def _content(path: Path, run: Path) -> Any:
    """What a file of a run holds, apart from times and the run's own path, in a form that can be compared."""
    if path.suffix == ".parquet":
        return sorted(repr(_comparable(row, run)) for row in pq.read_table(path).to_pylist())
    if path.suffix == ".ckpt":
        return _comparable(torch.load(path, weights_only=True), run)
    if path.suffix == ".safetensors":
        return _comparable(load_file(path), run)
    if path.suffix == ".yaml":
        # A resumed run says so and takes progress and debug anew, and the jobs of a sweep are grouped by its folder's
        # name.
        settings = yaml.safe_load(path.read_text("utf-8"))
        return _comparable({key: settings[key] for key in settings if key not in NO_INFLUENCE}, run)
    if path.suffix == ".json":
        return _comparable(json.loads(path.read_text("utf-8")), run)
    return path.read_bytes() if path.suffix == ".png" else _comparable(path.read_text("utf-8"), run)


def _comparable(value: Any, run: Path) -> Any:
    if isinstance(value, torch.Tensor):
        # Lists compare to the last bit, and so do their texts where values are not numbers.
        return str(value.dtype), repr(value.tolist())
    if isinstance(value, str):
        return _TIME.sub("<time>", value.replace(str(run), "<run>"))
    if isinstance(value, dict):
        # A number of a page is told by its quantity.
        value = {} if str(value.get("quantity")).rpartition("/")[2] in _TIMES else value
        return {_comparable(key, run): _comparable(part, run) for key, part in value.items() if key not in _TIMES}
    return [_comparable(part, run) for part in value] if isinstance(value, list | tuple) else value


@pytest.mark.faults
@pytest.mark.parametrize(
    ("words", "numbers", "seed", "after"),
    [
        pytest.param(QUICK, (signal.SIGTERM, signal.SIGKILL), 2, "checkpoints/last.ckpt"),
        pytest.param(TRAINING, (*SIGNALS, *SIGNALS), 15, None, marks=pytest.mark.slow),
        pytest.param(GATES, (signal.SIGTERM, signal.SIGKILL), 3, "checkpoints/last.ckpt", marks=pytest.mark.slow),
    ],
    ids=["some", "six", "gates"],
)
def test_a_killed_training(
    words: tuple[str, ...], numbers: tuple[int, ...], seed: int, after: str | None, warm: Warm, tmp_path: Path
) -> None:
    *_, killed = kill_and_resume(warm, words, tmp_path, numbers, seed, after)
    assert killed >= max(1, len(numbers) // 3)


@pytest.mark.faults
@pytest.mark.slow
def test_a_killed_analysis(warm: Warm, tmp_path: Path) -> None:
    analysis = {"analysis": "disable_heads", "data__eval_batch_size": 1, "hydra__run__dir": RUN}
    (tmp_path / "analysis").mkdir()
    *_, killed = kill_and_resume(warm, analyze(**analysis), tmp_path / "analysis", (*SIGNALS, *SIGNALS), 16)
    assert killed >= 2


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_killed_sweep_runs_no_job_twice(tiny_bert: Path, tmp_path: Path) -> None:
    def arguments(folder: Path) -> list[str]:
        settings = {"callbacks": "none", "checkpoint__every_n_steps": 2, "data__limit_train": 40}
        return sweep_arguments(tiny_bert, folder, "seed=1,2", **settings)

    began = time.monotonic()
    whole = start(*arguments(tmp_path / "whole"))
    _, errors = whole.communicate(timeout=600)
    assert whole.returncode == 0, errors
    seconds = time.monotonic() - began
    generator, killed, folder = random.Random(18), 0, tmp_path / "killed"
    markers: dict[Path, int] = {}
    for number in (*SIGNALS, signal.SIGTERM, None):
        process = start(*([f"resume={folder}"] if (folder / "sweep.json").exists() else arguments(folder)))
        if number is not None:
            try:
                process.wait(generator.uniform(0.2 * seconds, 0.7 * seconds))
            except subprocess.TimeoutExpired:
                killed += 1
                process.send_signal(number)
        _, errors = process.communicate(timeout=600)
        assert left_of(folder) == []
        assert "Traceback" not in errors, errors
        assert process.returncode in (0, *(() if number is None else (-number, 128 + number))), errors
        if process.returncode > 0:
            assert f"Interrupted; continue with python -m bertsecrets resume folder={folder}" in errors
        for marker in folder.glob("*/finished.json"):
            # A finished job is never run again: its marker stays as it was.
            assert markers.setdefault(marker, marker.stat().st_mtime_ns) == marker.stat().st_mtime_ns
    assert killed >= 2
    assert not (folder / ".set_aside").exists()
    jobs = sorted(path.parent.name for path in markers)
    assert jobs == sorted(path.parent.name for path in (tmp_path / "whole").glob("*/finished.json"))
    assert len(jobs) == 2
    for name in jobs:
        assert_same_run(tmp_path / "whole" / name, folder / name)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["first", "second"])
def test_a_rank_that_is_killed_ends_the_other_within_ten_seconds(victim: str, tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = small(tiny_bert, folder, trainer="ddp_cpu", trainer__devices=2, trainer__max_epochs=500)
    arguments.remove("trainer.accelerator=cpu")
    process = start(*arguments)
    wait_for((folder / "heads.parquet").is_file, 240)
    (second,) = [
        child for child in children(process.pid) if b"train.py" in (Path("/proc") / str(child) / "cmdline").read_bytes()
    ]
    began = time.monotonic()
    os.kill(process.pid if victim == "first" else second, signal.SIGKILL)
    process.wait(60)
    assert left_of(folder, 10) == []
    assert time.monotonic() - began < 10
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    reason = {"first": "The parent process has ended|The first process of this run", "second": "Process 1 of this run"}
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert re.search(reason[victim], line), line
