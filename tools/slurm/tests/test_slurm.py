"""Sweeps on a real Slurm of two simulated nodes.

Jobs are cancelled, refused, out of time, on a drained node or on a full disk, share one disabling sweep, or span both
nodes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.slurm.cluster import cluster, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}"),
]
ROOT = Path(__file__).resolve().parents[3]
SETTINGS = (
    "data.limit_train=64",
    "data.limit_eval=40",
    "trainer.max_epochs=1",
    "callbacks=none",
    "measure=[]",
    "logger=none",
    "progress=false",
)
NODES = ("launcher=slurm_cpu", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=3")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(tmp_path_factory.mktemp("cluster") / "slurm", 2) as config:
        yield {**os.environ, "SLURM_CONF": str(config), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Scores of a sweep without a cluster."""
    return local_scores(tmp_path_factory.mktemp("local") / "sweep")


def local_scores(folder: Path, *settings: str, seeds: str = "1,2") -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py", "-m", *SETTINGS, f"seed={seeds}", *settings, f"hydra.sweep.dir={folder}"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return scores(folder)


def scores(folder: Path) -> dict[str, Any]:
    """By job, all but how long it took."""
    read = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/scores.json")}
    return {job: {key: value for key, value in content.items() if key != "seconds"} for job, content in read.items()}


def slurm(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, f"no {what} within five minutes"
        time.sleep(0.5)


def running(environment: dict[str, str], count: int = 2) -> list[str]:
    """Numbers of the running jobs, once there are so many."""

    def jobs() -> list[str]:
        return slurm(environment, "squeue", "--noheader", "--states=running", "--format=%i").split()

    wait_for(f"{count} running jobs", lambda: len(jobs()) == count)
    return sorted(jobs())


def start(environment: dict[str, str], folder: Path, *settings: str, seeds: str = "1,2") -> "subprocess.Popen[str]":
    return begin(environment, "train.py", *SETTINGS, f"seed={seeds}", *settings, f"hydra.sweep.dir={folder}")


def begin(environment: dict[str, str], program: str, *settings: str) -> "subprocess.Popen[str]":
    """Begin a sweep on the cluster; settings come after those of its nodes."""
    command = [sys.executable, program, "-m", *NODES, *settings]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_cancelled_job_is_finished_by_the_command_that_the_last_line_names(
    environment: dict[str, str], local: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    sweep = start(environment, folder)
    slurm(environment, "scancel", running(environment)[-1])
    output, _ = sweep.communicate(timeout=600)
    assert sweep.returncode == 1
    last = output.strip().splitlines()[-1]
    assert last == f"Run what is missing (1 of 2 jobs): python -m bertsecrets resume folder={folder}"
    assert len(scores(folder)) == 1
    command = [sys.executable, *last.partition(": python ")[2].split()]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    assert scores(folder) == local


def test_jobs_of_a_drained_node_run_on_another(
    environment: dict[str, str], local: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    sweep = start(environment, folder)
    first, *_ = running(environment)
    node = slurm(environment, "squeue", "--noheader", f"--jobs={first}", "--format=%N").strip()
    slurm(environment, "scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        # A drained node finishes what it runs; a job that is queued again must go elsewhere.
        slurm(environment, "scontrol", "requeue", first)
        output, _ = sweep.communicate(timeout=600)
    finally:
        slurm(environment, "scontrol", "update", f"nodename={node}", "state=resume")
    assert sweep.returncode == 0, output
    assert scores(folder) == local
    records = [json.loads(path.read_text()) for path in folder.glob("*/finished.json")]
    assert len(records) == 2


def test_a_job_that_runs_out_of_time_is_queued_again_and_resumes(environment: dict[str, str], tmp_path: Path) -> None:
    folder, longer = tmp_path / "sweep", "trainer.max_epochs=40"
    # Up to ten minutes, submitit takes any warning for one of the time limit.
    limits = ("hydra.launcher.timeout_min=10", "hydra.launcher.signal_delay_s=30")
    sweep = start(environment, folder, longer, *limits, seeds="1")
    (job,) = running(environment, 1)
    wait_for("checkpoint", lambda: any(folder.glob("*/checkpoints/last.ckpt")))

    def limit(minutes: int) -> None:
        slurm(environment, "scontrol", "update", f"jobid={job}", f"timelimit={minutes}")

    # The speed of the machine does not matter: now the time is over, and for the next attempt there is enough.
    limit(1)
    state = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    wait_for("job that is queued again", lambda: slurm(environment, *state).strip() == "PENDING")
    limit(60)
    output, _ = sweep.communicate(timeout=1200)
    assert sweep.returncode == 0, output
    (log,) = folder.glob("*/train.log")
    assert log.read_text().count("this job is timed-out") == 1
    assert "Resuming the run" in log.read_text()
    assert scores(folder) == local_scores(tmp_path / "local", longer, seeds="1")


def test_jobs_that_are_not_accepted_end_the_sweep_in_one_sentence(environment: dict[str, str], tmp_path: Path) -> None:
    for option, value, reason in (("partition", "nowhere", "invalid partition"), ("mem_gb", "900", "Memory")):
        sweep = start(environment, tmp_path / option, f"hydra.launcher.{option}={value}")
        output, _ = sweep.communicate(timeout=300)
        assert sweep.returncode == 1
        assert f"error: Slurm does not accept the jobs ({reason}" in output
        assert "Traceback" not in output


def test_jobs_on_a_full_disk_say_so_and_finish_once_there_is_room(
    environment: dict[str, str], local: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150M", "none", str(folder)], check=True)
    try:
        sweep = start(environment, folder / "sweep")
        output, _ = sweep.communicate(timeout=600)
        assert sweep.returncode == 1
        assert output.count("cannot be written (no space left on device)") == 2, output
        assert "Traceback" not in output, output
        subprocess.run(["mount", "-o", "remount,size=3G", str(folder)], check=True)
        again = [sys.executable, "-m", "bertsecrets", "resume", f"folder={folder / 'sweep'}"]
        subprocess.run(again, cwd=ROOT, env=environment, check=True, timeout=600)
        assert scores(folder / "sweep") == local
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_run_over_two_nodes_gives_the_numbers_of_two_processes_on_one(
    environment: dict[str, str], tmp_path: Path
) -> None:
    run = [sys.executable, "train.py", *SETTINGS, "seed=1", "trainer=ddp_cpu"]
    two = [*run, "trainer.devices=1", "trainer.num_nodes=2", f"hydra.run.dir={tmp_path / 'two'}"]
    # Names of simulated nodes have no address.
    nodes = {**environment, "MASTER_ADDR": "127.0.0.1"}
    subprocess.run(["srun", "--nodes=2", "--ntasks-per-node=1", *two], cwd=ROOT, env=nodes, check=True, timeout=600)
    one = [*run, "trainer.devices=2", f"hydra.run.dir={tmp_path / 'one'}"]
    subprocess.run(one, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=600)
    assert scores(tmp_path)["two"] == scores(tmp_path)["one"]
