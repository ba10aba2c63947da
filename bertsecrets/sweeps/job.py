"""One job of a sweep: run in a separate process, unless it is already finished."""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bertsecrets.errors import BusyError, UserError
from bertsecrets.results.config_copy import plain
from bertsecrets.results.disabled import objective
from bertsecrets.results.files import quoted, typed
from bertsecrets.results.run import Run
from bertsecrets.sweeps.code_version import code_version
from bertsecrets.sweeps.hydra_arguments import key_of
from bertsecrets.sweeps.job_processes import VISIBLE_GPUS, describe_exit, end_with_process, lease_gpus, run_process
from bertsecrets.sweeps.run_folder import BEGUN, FAILURE, claim_folder, has_finished, hold
from bertsecrets.sweeps.signals import Interrupted
from bertsecrets.sweeps.sweep import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    NOT_STARTED,
    RUNNING,
    SKIPPED,
    JobRecord,
    SweepFacts,
    line_of,
)
from bertsecrets.sweeps.trust import settings_to_repeat

_SLURM_RANKS = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
_ASSIGNED_BY = ("SLURM_JOB_ID", "RAY_JOB_ID")
"""Environment variables of clusters that assign GPUs to their jobs."""
_SWEEP_SETTINGS = (
    "hydra.sweep",
    "hydra.launcher",
    "hydra/launcher",
    "hydra.mode",
    "hydra.job.env_set",
    "hydra/sweeper",
)


def start_job(config: DictConfig) -> float | None:
    """Run one job in a separate process, under any launcher; return its objective for sweepers that need it.

    A finished job is skipped and an interrupted one resumed. If its results are damaged, or come from other code or
    another checkpoint, they are moved to ``.set_aside`` and the job runs again. A failed job records its reason and
    returns None, so that the other jobs still run.
    """
    facts = SweepFacts.read()
    if facts.host == socket.gethostname() and "SLURM_JOB_ID" not in os.environ:
        end_with_process(facts.process)
    hydra = HydraConfig.get()
    records = Path(facts.records)
    folder = Path(hydra.runtime.output_dir)
    record = JobRecord(int(hydra.job.num), list(hydra.overrides.task), str(folder), RUNNING)
    record.write(records)
    started = time.monotonic()
    try:
        status, reason = _run(config, folder, record.number, facts)
    except UserError as error:
        status, reason = (SKIPPED if isinstance(error, BusyError) else FAILED), str(error)
    except (KeyboardInterrupt, Interrupted):
        score = objective(Run(folder, "", "", "", ""), config.get("objective"))
        replace(record, reason="interrupted.", seconds=time.monotonic() - started, score=score).write(records)
        raise
    seconds = 0.0 if status in (SKIPPED, NOT_STARTED) else time.monotonic() - started
    score = objective(Run(folder, "", "", "", ""), config.get("objective")) if status in (FINISHED, SKIPPED) else None
    ended = replace(record, status=status, reason=reason, seconds=seconds, score=score)
    ended.write(records)
    print(line_of(ended, config.get("objective") or "score", facts), flush=True)  # noqa: T201
    return score


def _run(config: DictConfig, folder: Path, number: int, facts: SweepFacts) -> tuple[str, str]:
    """Run the job; return its status and why it was skipped or failed."""
    records = Path(facts.records)
    if (records / INTERRUPTED).exists():
        return NOT_STARTED, ""
    if facts.code != code_version():
        return FAILED, (
            f"{socket.gethostname()} has code version {code_version()}, but the sweep was started with {facts.code}; "
            "install the same version on both."
        )
    with hold(folder):
        state = claim_folder(plain(config), folder)
    if state == "finished":
        return SKIPPED, "already finished"
    command = [sys.executable, *facts.program, *_arguments(config, folder, state == "resumable")]

    def started(process: int) -> None:
        (records / f"{number}.process").write_text(f"{process} {os.getpid()} {socket.gethostname()}", "utf-8")
        if (records / INTERRUPTED).exists():
            raise Interrupted(signal.SIGTERM)

    # The job's reason for failing is not written to the sweep's disk, which may be full.
    with _leased_gpus(config, facts.gpus) as devices, tempfile.TemporaryDirectory() as scratch:
        failure = Path(scratch) / "failure.json"
        # Each Slurm job has one task, which starts one process per device itself, so that one sweep can have jobs of
        # different sizes; Slurm's variables would make Lightning wait for tasks that do not exist.
        ranks = [name for name in _SLURM_RANKS if name in os.environ and os.environ.get("SLURM_NTASKS") == "1"]
        variables = {FAILURE: str(failure), **dict.fromkeys(ranks), **devices}
        status = run_process(command, Path(HydraConfig.get().runtime.cwd), variables, started)
        content = json.loads(failure.read_text("utf-8")) if failure.is_file() else None
    (records / f"{number}.process").unlink(missing_ok=True)
    if status == 0:
        # Commands that only rebuild pages do not start a run.
        finished = has_finished(folder) or not (folder / BEGUN).exists()
        return (FINISHED, "") if finished else (FAILED, "it stopped before finishing; resume=true continues it.")
    if content is None:
        return FAILED, f"{describe_exit(status)}."
    return (SKIPPED if content["error"] == BusyError.__name__ else FAILED), content["reason"]


def _arguments(config: DictConfig, folder: Path, resumable: bool) -> list[str]:
    """The command line of the job as a single run."""
    name = f"--config-name={HydraConfig.get().job.config_name}"
    if resumable:
        again = settings_to_repeat(plain(config)).items()
        return [name, f"resume={folder}", *(f"++{key}={typed(value)}" for key, value in again)]
    hydra = HydraConfig.get()
    task = [override for override in hydra.overrides.task if key_of(override) != "resume"]
    hydra_overrides = [
        override for override in hydra.overrides.hydra if not override.lstrip("+~").startswith(_SWEEP_SETTINGS)
    ]
    if "group" in config and config.group is None:
        task.append(f"group={quoted(Path(hydra.sweep.dir).name)}")
    paths = {source.provider: source.path for source in hydra.runtime.config_sources}
    flags = ["--config-path", paths["main"], name]
    if "command-line" in paths:
        flags += ["--config-dir", paths["command-line"]]
    return [*flags, *task, *hydra_overrides, "hydra.mode=RUN", f"hydra.run.dir={quoted(str(folder))}"]


@contextmanager
def _leased_gpus(config: DictConfig, gpus: Sequence[str]) -> Iterator[dict[str, str]]:
    """Reserve the GPUs that the job requests on this machine; a cluster assigns GPUs itself."""
    if "trainer" not in config or any(name in os.environ for name in _ASSIGNED_BY):
        yield {}
        return
    count = config.trainer.devices
    if count in (-1, "-1", "auto"):
        count = len(gpus)
    wanted = config.trainer.accelerator in ("auto", "gpu", "cuda") and isinstance(count, int)
    if not wanted or not 0 < count <= len(gpus):
        # Some launchers hide the GPUs from jobs for which no GPUs were requested.
        yield {VISIBLE_GPUS: ",".join(gpus)} if gpus else {}
        return
    with lease_gpus(count, gpus, Path(tempfile.gettempdir()) / f"bertsecrets-gpus-{os.getuid()}") as leased:
        yield {VISIBLE_GPUS: ",".join(leased)}
