"""Jobs that Slurm does not accept, or that leave no result, on stand-ins of its programs."""

import os
from pathlib import Path

import pytest

from bertsecrets.sweeps.sweep import rejection, wait_for_other_jobs


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
