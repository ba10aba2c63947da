"""A cluster without accounts: what stands in for sacct, on stand-ins of Slurm's programs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bertsecrets.sweeps.slurm import followed_jobs, rejection, wait_for_other_jobs

STATES = '#!/bin/sh\necho "7_0|RUNNING|n1"\necho "7_1|CANCELLED|n2"\necho "$@" > {asked}\n'


def programs(folder: Path, **scripts: str) -> str:
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"


def test_without_accounts_states_come_from_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    path = programs(tmp_path / "bin", squeue=STATES.format(asked=asked), sacct="#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", path)
    with followed_jobs():
        answer = subprocess.run(
            ["sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", "7", "-j", "9"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert answer.splitlines() == ["JobID|State|NodeList", "7_0|RUNNING|n1", "7_1|CANCELLED|n2"]
    assert asked.read_text().split()[-1] == "--jobs=7,9"
    assert os.environ["PATH"] == path


def test_accounts_are_left_to_sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = programs(tmp_path / "bin", squeue="#!/bin/sh\n", sacct="#!/bin/sh\nexit 0\n")
    monkeypatch.setenv("PATH", path)
    with followed_jobs():
        assert shutil.which("sacct") == str(tmp_path / "bin" / "sacct")


def test_a_machine_without_slurm_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with followed_jobs():
        assert os.environ["PATH"] == str(tmp_path)


def test_the_other_jobs_of_an_array_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class UncompletedJobError(RuntimeError):
        pass

    left = tmp_path / "left"
    left.write_text("xx")
    # Each look at the queue sees one job less.
    queue = f'#!/bin/sh\n[ "$2" = --jobs=31 ] || exit 2\ncat {left}\nread jobs < {left}; echo "${{jobs#x}}" > {left}\n'
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", squeue=queue))
    monkeypatch.setattr("bertsecrets.sweeps.slurm._PAUSE", 0)
    assert wait_for_other_jobs(UncompletedJobError("Job 31_1 (task: 0) has not produced any output"))
    assert not left.read_text().strip()
    assert not wait_for_other_jobs(RuntimeError("Job 31_1 is bad"))


def test_jobs_that_slurm_does_not_accept_are_one_sentence() -> None:
    class FailedJobError(RuntimeError):
        pass

    stderr = "sbatch: error: Memory specification can not be satisfied\nsbatch: error: Batch job submission failed\n"
    assert rejection(FailedJobError(stderr), Path("/sweeps/one two")) == (
        "Slurm does not accept the jobs (Memory specification can not be satisfied; Batch job submission failed); change the launcher's "
        "options, such as partition or mem_gb: python -m bertsecrets resume folder='/sweeps/one two' hydra.launcher.<option>=<value>."
    )
    assert rejection(RuntimeError(stderr), Path("/sweeps")) is None
