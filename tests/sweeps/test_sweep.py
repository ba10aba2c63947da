"""Whole sweeps: separate jobs, finished ones kept, failed ones reported, interrupted ones resumed."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from cli.runs import door, start
from shared import wait_for
from sweeps.sweeps import left_of, sweep, sweep_arguments
from wandb_log import tracked

from bertsecrets.sweeps.run_folder import code_version


def folders_of(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "seeds", "devices"), [("demo_nli", "3", "1"), ("demo_paraphrase,demo_sentiment", "1,2", "2,1")]
)
def test_each_job_has_its_own_process_group_folder_and_wandb_run(
    tasks: str, seeds: str, devices: str, tiny_bert: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    swept = [f"task={tasks}", f"seed={seeds}", "trainer=ddp_cpu", f"trainer.devices={devices}"]
    result = sweep(tiny_bert, folder, *swept, logger="wandb")
    assert result.returncode == 0, result.stderr
    expected = {
        (t, int(s), d) for t in tasks.split(",") for s in seeds.split(",") for d in map(int, devices.split(","))
    }
    jobs = folders_of(folder)
    assert len(jobs) == len(expected)
    identities, names = set(), set()
    for job in jobs:
        own = yaml.safe_load((job / "config.yaml").read_text())
        log = tracked(job)
        names.add(log.path.name)
        identity = log.config["task"]["name"], log.config["seed"], log.config["trainer"]["devices"]
        assert identity == (own["task"]["name"], own["seed"], own["trainer"]["devices"])
        identities.add(identity)
        assert (log.config["group"], log.run.run_group, log.run.job_type) == ("sweep", "sweep", "train")
    assert identities == expected
    assert len(names) == len(expected)
    assert f"{len(expected)} finished, 0 skipped, 0 failed" in result.stdout
    assert left_of(folder) == []


@pytest.fixture(scope="module")
def partly_failed(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A sweep whose second job fails, and what it printed."""
    folder = tmp_path_factory.mktemp("failing") / "sweep"
    result = sweep(tiny_bert, folder, "optimizer.freeze=[0],[7],[1]", "launcher=joblib")
    assert result.returncode == 1, result.stderr
    return folder, result.stdout


def test_a_failing_job_does_not_stop_the_others_and_is_reported(partly_failed: tuple[Path, str]) -> None:
    folder, printed = partly_failed
    assert len(list(folder.glob("*/finished.json"))) == 2
    assert "job 1 failed: optimizer.freeze has '7'; expected 'embeddings' or a layer from 0 to 2." in printed
    assert "2 finished, 0 skipped, 1 failed" in printed


def test_resuming_runs_only_what_is_missing_and_damage_is_run_again(
    partly_failed: tuple[Path, str], tiny_bert: Path
) -> None:
    folder, _ = partly_failed
    whole, damaged = sorted(path.parent for path in folder.glob("*/finished.json"))
    before = (whole / "finished.json").stat().st_mtime_ns
    table = (damaged / "scores.json").read_bytes()
    (damaged / "scores.json").write_bytes(table[:10])
    (damaged / "extra.txt").write_text("mine")
    result = sweep(tiny_bert, folder, "optimizer.freeze=[0],[1]", "launcher=joblib", "resume=true")
    assert result.returncode == 0, result.stderr
    assert "1 finished, 1 skipped, 0 failed" in result.stdout
    assert "already finished" in result.stdout
    assert (whole / "finished.json").stat().st_mtime_ns == before
    assert json.loads((damaged / "scores.json").read_text())["sets"] == json.loads(table)["sets"]
    (kept,) = (folder / ".set_aside").iterdir()
    assert (kept / "extra.txt").read_text() == "mine"
    assert (kept / "scores.json").read_bytes() == table[:10]


def test_a_node_with_other_code_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    arguments = sweep_arguments(tiny_bert, tmp_path / "sweep", "seed=1,2")
    other = (
        "import dataclasses; from bertsecrets.sweeps.sweep import SweepFacts; read = SweepFacts.read; "
        "SweepFacts.read = lambda: dataclasses.replace(read(), code='0.1.0+5eed')"
    )
    result = door("train", *arguments, before=other)
    assert result.returncode == 1
    code = re.escape(code_version())
    sentence = rf"job 1 failed: \S+ has code version {code}, but the sweep was started with 0\.1\.0\+5eed;"
    assert re.search(sentence, result.stdout), result.stdout


@pytest.mark.slow
def test_an_interrupted_job_still_saves_its_model_if_the_command_says_so_again(tiny_bert: Path, tmp_path: Path) -> None:
    folder, save = tmp_path / "sweep", f"save='{tmp_path}/${{name}}'"
    arguments = ("seed=1", "name=one", save)
    assert sweep(tiny_bert, folder, *arguments).returncode == 0
    (job,) = folders_of(folder)

    def interrupt() -> None:
        (job / "finished.json").unlink()
        shutil.rmtree(tmp_path / "one")

    interrupt()
    assert sweep(tiny_bert, folder, *arguments, "resume=true").returncode == 0
    assert (tmp_path / "one" / "model.safetensors").is_file()
    interrupt()
    refused = door("train", f"resume={folder}")
    assert refused.returncode == 1
    assert "asks to write or send something outside the folder" in refused.stderr
    assert not (tmp_path / "one").exists()
    assert door("train", f"resume={folder}", save).returncode == 0
    assert (tmp_path / "one" / "model.safetensors").is_file()
    assert [path.name for path in sorted((job / "csv").iterdir())] == ["attempt_0", "attempt_1", "attempt_2"]


@pytest.mark.slow
def test_two_sweeps_over_one_folder_at_once_do_each_job_once(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    first = start(*sweep_arguments(tiny_bert, folder, "seed=1,2"))
    wait_for((folder / "sweep.json").is_file, 60)
    second = sweep(tiny_bert, folder, "seed=1,2", "resume=true")
    _, errors = first.communicate(timeout=200)
    assert first.returncode == 0, errors
    assert second.returncode == 0, second.stderr
    jobs = folders_of(folder)
    assert len(jobs) == 2
    for job in jobs:
        # A second attempt would have written more metrics.
        assert [path.name for path in (job / "csv").iterdir()] == ["attempt_0"]
        assert (job / "finished.json").is_file()


@pytest.mark.slow
def test_jobs_run_at_the_same_time(tiny_bert: Path, tmp_path: Path) -> None:
    result = sweep(tiny_bert, tmp_path / "sweep", "seed=1,2", "launcher=local_cluster")
    assert result.returncode == 0, result.stderr
    assert re.search(r"seed=1 +finished", result.stdout)
    assert "2 finished, 0 skipped, 0 failed" in result.stdout


SBATCH = """#!/usr/bin/env bash
# In place of Slurm: run every task of the array here, with the variables that Slurm sets.
cp "$1" "$SLURM_TRIAL/script.sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
for task in $(seq 0 "$last"); do
  SLURM_JOB_ID=$((100 + task)) SLURM_ARRAY_JOB_ID=77 SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_TASK_COUNT=$((last + 1)) \\
  SLURM_NTASKS=1 SLURM_NTASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 \\
  SLURM_JOB_NODELIST=node SLURM_JOB_NAME=train bash "$1" > "$SLURM_TRIAL/$task.txt" 2>&1 &
done
echo "Submitted batch job 77"
"""
SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do
  if [[ "$1" == --output || "$1" == --error ]]; then shift; fi
  shift
done
exec "$@"
"""


@pytest.mark.slow
def test_slurm_gets_an_array_whose_tasks_run_the_jobs(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": "#!/usr/bin/env bash\n", "scancel": SRUN}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TRIAL", str(tmp_path))
    asked = ["hydra.launcher.partition=long", "hydra.launcher.array_parallelism=1"]
    folder = tmp_path / "sweep"
    result = sweep(
        tiny_bert, folder, "seed=1,2", "launcher=slurm", *asked, trainer="ddp_cpu", trainer__devices=2, logger="none"
    )
    output = "".join(path.read_text() for path in tmp_path.glob("[01].txt"))
    assert result.returncode == 0, result.stderr + output
    script = (tmp_path / "script.sh").read_text()
    for line in (
        "--array=0-1%1",
        "--partition=long",
        "--gpus-per-node=1",
        "--cpus-per-task=8",
        "--mem=32GB",
        "--time=240",
        "--ntasks-per-node=1",
    ):
        assert f"#SBATCH {line}\n" in script, script
    # Each task starts its two processes itself, though Slurm says that it is one task.
    assert "2 finished, 0 skipped, 0 failed" in result.stdout
    assert len(list(folder.glob("*/finished.json"))) == 2


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("basic", signal.SIGINT),
        pytest.param("basic", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("joblib", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("local_cluster", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_interrupting_a_sweep_saves_its_jobs_and_prints_how_to_continue(
    launcher: str, number: int, tiny_bert: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    arguments = sweep_arguments(tiny_bert, folder, "seed=1,2", f"launcher={launcher}", trainer__max_epochs=9999)
    process = start(*arguments)
    wait_for(lambda: [*folder.glob("*/checkpoints/last.ckpt")], 180)
    if number == signal.SIGINT:
        # As a terminal does: to every process of the group.
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    printed, errors = process.communicate(timeout=90)
    assert process.returncode == 128 + number, errors
    assert f"Interrupted; continue with python -m bertsecrets resume folder={folder}" in errors
    assert "job 0 failed: interrupted." in printed
    assert "0 finished, 0 skipped" in printed
    assert "Run the missing jobs" not in printed
    assert left_of(folder) == []
    assert not list(folder.glob("*/finished.json"))
    (job, *_) = folder.glob("*/checkpoints/last.ckpt")
    assert job.stat().st_size > 0
