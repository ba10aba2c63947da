"""The table at the end of a sweep; jobs that Slurm rejects or that leave no result, on stand-ins of its programs."""

import io
import json
import os
import signal
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cli.runs import parsed
from rich.console import Console

from bertsecrets.cli.composition import check
from bertsecrets.sweeps.run_folder import Finished
from bertsecrets.sweeps.sweep import (
    FAILED,
    FINISHED,
    NOT_STARTED,
    RUNNING,
    SKIPPED,
    JobRecord,
    Sweep,
    SweepFacts,
    final_records,
    line_of,
    open_sweep,
    print_records,
    read_records,
    rejection,
    wait_for_other_jobs,
)


def test_records_come_back_in_order_and_a_lost_job_counts_as_failed(tmp_path: Path) -> None:
    for number, status in ((10, RUNNING), (2, FINISHED), (1, FAILED)):
        JobRecord(number, ["seed=1"], "folder", status, score=0.5).write(tmp_path)
    (tmp_path / "2.failure").write_text("no record")
    records = final_records(read_records(tmp_path))
    assert [(record.number, record.status) for record in records] == [(1, FAILED), (2, FINISHED), (10, FAILED)]
    assert "without reporting a result" in records[2].reason


def test_the_table_shows_what_jobs_do_not_share(tmp_path: Path) -> None:
    shared = ["model=minilm", "progress=false"]
    records = [
        JobRecord(0, ["seed=1", *shared], "a", FINISHED, seconds=61.4, score=0.73251),
        JobRecord(1, ["seed=2", *shared], "b", SKIPPED, "already finished"),
        JobRecord(2, ["seed=3", *shared], "c", FAILED, "the disk is full."),
    ]
    console = Console(file=io.StringIO(), width=100)
    print_records(console, records, "val/accuracy")
    text = console.file.getvalue()
    assert "model=minilm" not in text
    assert "seed=1" in text
    assert "61 s" in text
    assert "0.733" in text
    assert "job 2 failed: the disk is full." in text
    assert "1 finished, 1 skipped, 1 failed" in text
    print_records(console, records[:1], "val/accuracy")
    assert "model=minilm" in console.file.getvalue()


def ignore(*_: object) -> None:
    pass


def test_the_last_line_says_how_to_run_failed_jobs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = tmp_path / "records"
    records.mkdir()
    sweep = Sweep(tmp_path / "my sweep", records, "val/accuracy", 2, (), compares=False, paper=False)
    JobRecord(0, ["seed=1"], "a", FINISHED, seconds=1.0).write(records)
    sweep.close(ignore, complete=False)
    printed = capsys.readouterr().out
    assert "1 finished, 0 skipped, 0 failed, 1 not started" in printed
    assert printed.splitlines()[-1].startswith("Run the missing jobs (1 of 2): ")
    # A job that was cancelled before it began has no record.
    sweep.close(ignore)
    printed = capsys.readouterr().out
    assert "job 1 failed: its process ended without reporting a result" in printed
    assert "1 finished, 0 skipped, 1 failed" in printed
    JobRecord(1, ["seed=2"], "b", RUNNING).write(records)
    sweep.close(ignore)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Run the missing jobs (1 of 2): python -m bertsecrets resume folder='my sweep'"
    )


def test_after_an_interruption_every_job_is_counted_by_what_became_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(tmp_path, tmp_path, "score", 7, ("seed",), compares=False, paper=False)
    JobRecord(0, ["seed=1"], "a", FINISHED, seconds=1.0).write(tmp_path)
    # This one finished in its time of grace, the next one did not.
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "finished.json").write_text(json.dumps(asdict(Finished("key", "config", "code", 1.0, {}))))
    JobRecord(1, ["seed=2"], str(tmp_path / "b"), RUNNING, "interrupted.", 2.0, 0.5).write(tmp_path)
    JobRecord(2, ["seed=3"], str(tmp_path / "c"), RUNNING, "interrupted.", 3.0).write(tmp_path)
    JobRecord(3, ["seed=4"], "d", NOT_STARTED).write(tmp_path)
    sweep.interrupt(signal.SIGINT)
    records = sweep.close(ignore, complete=False)
    assert [record.status for record in records] == [FINISHED, FINISHED, FAILED, NOT_STARTED]
    printed = capsys.readouterr().out
    assert "job 2 failed: interrupted." in printed
    assert "job 1" not in printed
    # The command that continues is printed once, by the command line.
    assert printed.splitlines()[-1] == "2 finished, 0 skipped, 1 failed, 4 not started"


def test_a_finished_job_is_one_line_with_its_place() -> None:
    overrides = ["task=rte", "seed=2", "model=minilm"]
    done = JobRecord(1, overrides, "folder", FINISHED, seconds=412.3, score=0.5812)
    facts = SweepFacts("", 0, "", (), 4, ("seed", "task"), (), "")
    assert line_of(done, "val/accuracy", facts) == "[2/4] task=rte seed=2: finished, val/accuracy 0.581, 412 s"
    failed = JobRecord(3, overrides, "folder", FAILED, "the data\nare missing.")
    assert line_of(failed, "score", facts) == "[4/4] task=rte seed=2: failed: the data are missing."
    # A sweeper that searches decides the number itself.
    assert line_of(done, "score", replace(facts, count=None, swept=("seed",))).startswith("[2] seed=2: finished")


@pytest.mark.parametrize(
    ("settings", "count"), [(["seed=1,2", "task=mrpc,rte,sst2"], 6), (["seed=range(1,4)"], 3), (["seed=5"], 1)]
)
def test_the_number_of_jobs_is_known_before_the_first(settings: list[str], count: int, tmp_path: Path) -> None:
    command = ["-m", *settings, f"hydra.sweep.dir={tmp_path}"]
    invocation = parsed(command)
    assert open_sweep(invocation, check(invocation), command).count == count


def test_only_processes_of_this_machine_are_asked_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("bertsecrets.sweeps.sweep.ask_to_end", lambda processes, number: asked.extend(processes))
    here = socket.gethostname()
    # Of a launcher's process here, of another machine, and of the sweep's own process, which ends its children itself.
    for number, content in enumerate([f"71 70 {here}", f"72 70 not-{here}", f"73 {os.getpid()} {here}"]):
        (tmp_path / f"{number}.process").write_text(content)
    Sweep(tmp_path, tmp_path, "score", 3, ("seed",), compares=False, paper=False).interrupt(signal.SIGTERM)
    assert asked == [71]


def programs(folder: Path, **scripts: str) -> str:
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"


def test_the_other_jobs_of_an_array_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class UncompletedJobError(RuntimeError):
        pass

    left = tmp_path / "left"
    left.write_text("xx")
    # Each look at the queue sees one job less.
    queue = f'#!/bin/sh\n[ "$2" = --jobs=31 ] || exit 2\ncat {left}\nread jobs < {left}; echo "${{jobs#x}}" > {left}\n'
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", squeue=queue))
    monkeypatch.setattr("bertsecrets.sweeps.sweep._PAUSE_S", 0)
    assert wait_for_other_jobs(UncompletedJobError("Job 31_1 (task: 0) has not produced any output"))
    assert not left.read_text().strip()
    assert not wait_for_other_jobs(RuntimeError("Job 31_1 is bad"))


def test_jobs_that_slurm_does_not_accept_are_one_sentence() -> None:
    class FailedJobError(RuntimeError):
        pass

    stderr = "sbatch: error: Memory specification can not be satisfied\nsbatch: error: Batch job submission failed\n"
    assert rejection(FailedJobError(stderr), Path("/sweeps/one two")) == (
        "Slurm rejected the jobs (Memory specification can not be satisfied; Batch job submission failed); change "
        "the launcher's options, such as partition or mem_gb: python -m bertsecrets resume folder='/sweeps/one two' "
        "hydra.launcher.<option>=<value>."
    )
    assert rejection(RuntimeError(stderr), Path("/sweeps")) is None
