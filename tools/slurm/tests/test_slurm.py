"""Sweeps on a real Slurm of two simulated nodes: a job that is cancelled, a node that is drained, a full disk, DDP over both nodes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.slurm.cluster import cluster, missing

pytestmark = [
    pytest.mark.slow,
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


def running(environment: dict[str, str]) -> list[str]:
    """Numbers of the running jobs, once there are two."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        jobs = slurm(environment, "squeue", "--noheader", "--states=running", "--format=%i").split()
        if len(jobs) == 2:
            return sorted(jobs)
        time.sleep(0.5)
    raise TimeoutError("two jobs did not start within two minutes")


def start(environment: dict[str, str], folder: Path, *settings: str, seeds: str = "1,2") -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "train.py",
        "-m",
        *SETTINGS,
        f"seed={seeds}",
        *NODES,
        *settings,
        f"hydra.sweep.dir={folder}",
    ]
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
    assert "sacct" not in output
    last = output.strip().splitlines()[-1]
    assert last == f"Run what failed again (1 of 2 jobs): python -m bertsecrets resume folder={folder}"
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
