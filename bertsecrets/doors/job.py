"""One job of a sweep: run in a process of its own, unless it is finished already."""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from bertsecrets.doors.composition import quoted
from bertsecrets.doors.plain import plain
from bertsecrets.doors.sweep import GPUS, RECORDS, SWEEP_PROCESS
from bertsecrets.doors.unit import CONFIG_COPY, FAILURE, key_of
from bertsecrets.errors import BusyError, UserError
from bertsecrets.sweeps.gpus import VISIBLE, lease
from bertsecrets.sweeps.identity import code_version, config_digest
from bertsecrets.sweeps.process import in_words, run_process, watch_process
from bertsecrets.sweeps.records import FAILED, FINISHED, RUNNING, SKIPPED, JobRecord
from bertsecrets.sweeps.unit import damage, hold, read_begun, read_finished, set_aside

_SCHEDULER = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
_OF_THE_SWEEP = ("hydra.sweep", "hydra.launcher", "hydra/launcher", "hydra.mode", "hydra.job.env_set", "hydra/sweeper")

_log = logging.getLogger(__name__)


def in_sweep() -> bool:
    """Whether Hydra runs this configuration as one job of a sweep."""
    return HydraConfig.get().mode == RunMode.MULTIRUN


def start_job(config: DictConfig, script: str) -> float | None:
    """Runs one job in a process of its own, whichever launcher called; returns its objective, for sweepers that ask.

    A finished job is not run again. An interrupted one goes on where it was. What is damaged, or was made by another
    version of the code or from another checkpoint, is moved to ``.set_aside`` and run again. A job that fails leaves
    its reason in the sweep's records and returns None, so that the others go on.

    Args:
        config: The job's configuration.
        script: The door that this job goes through.
    """
    if "SLURM_JOB_ID" not in os.environ:
        watch_process(int(os.environ[SWEEP_PROCESS]))
    hydra = HydraConfig.get()
    records = Path(os.environ[RECORDS])
    folder = Path(hydra.runtime.output_dir)
    record = JobRecord(int(hydra.job.num), list(hydra.overrides.task), str(folder), RUNNING)
    record.write(records)
    started = time.monotonic()
    try:
        status, reason = _run(config, Path(script), folder, records / f"{record.number}.failure")
    except UserError as error:
        status, reason = (SKIPPED if isinstance(error, BusyError) else FAILED), str(error)
    except KeyboardInterrupt:
        replace(record, status=FAILED, reason="it was interrupted.").write(records)
        raise
    seconds = 0.0 if status == SKIPPED else time.monotonic() - started
    score = _objective(folder, config.objective) if status != FAILED else None
    replace(record, status=status, reason=reason, seconds=seconds, score=score).write(records)
    return score


def _run(config: DictConfig, script: Path, folder: Path, failure: Path) -> tuple[str, str]:
    resolved = plain(config)
    key = key_of(resolved)
    with hold(folder):
        finished, resumable = _state(folder, key, config_digest(resolved))
    if finished:
        return SKIPPED, "it had finished before"
    command = [sys.executable, str(script), *_arguments(config, folder, resumable)]
    environment: dict[str, str | None] = {FAILURE: str(failure), **dict.fromkeys(_outer_ranks())}
    with _own_gpus(config) as devices:
        status = run_process(command, Path(HydraConfig.get().runtime.cwd), {**environment, **devices})
    if status == 0:
        return FINISHED, ""
    if not failure.is_file():
        return FAILED, f"{in_words(status)}."
    told = json.loads(failure.read_text("utf-8"))
    return (SKIPPED if told["error"] == BusyError.__name__ else FAILED), told["reason"]


def _state(folder: Path, key: str, digest: str) -> tuple[bool, bool]:
    """Whether the unit is finished, and else whether it can be gone on with; whatever else is there is moved away."""
    reason = None
    try:
        finished = read_finished(folder)
    except ValueError as error:
        finished, reason = None, str(error)
    if finished is not None:
        if finished.key == key:
            return True, False
        if finished.config != digest:
            raise UserError(
                f"Folder '{folder}' holds a finished run of other settings; make hydra.sweep.subdir name everything "
                "that the sweep varies, or leave it out."
            )
        before = finished.code if finished.code != code_version() else "another content of its checkpoint"
        reason = f"{folder} was made with {before}"
    reason = reason or damage(folder)
    if reason is not None:
        _log.warning(f"{reason}: what was there is kept in {set_aside(folder)}, and the unit runs again.")
        return False, False
    if not (folder / CONFIG_COPY).is_file():
        return False, False
    begun = read_begun(folder)
    if begun is not None and begun.key == key:
        return False, True
    other = "other settings" if begun is None or begun.code == code_version() else f"other code ({begun.code})"
    _log.warning(f"{folder} was begun with {other}: what was there is kept in {set_aside(folder)}.")
    return False, False


def _arguments(config: DictConfig, folder: Path, resumable: bool) -> list[str]:
    if resumable:
        return [f"resume={folder}"]
    hydra = HydraConfig.get()
    mine = [each for each in hydra.overrides.task if each.split("=")[0].lstrip("+~") != "resume"]
    hydras = [each for each in hydra.overrides.hydra if not each.lstrip("+~").startswith(_OF_THE_SWEEP)]
    if config.group is None:
        mine.append(f"group={quoted(Path(hydra.sweep.dir).name)}")
    paths = {source.provider: source.path for source in hydra.runtime.config_sources}
    flags = ["--config-path", paths["main"], "--config-name", str(hydra.job.config_name)]
    if "command-line" in paths:
        flags += ["--config-dir", paths["command-line"]]
    return [
        *flags,
        *mine,
        *hydras,
        "hydra.mode=RUN",
        f"hydra.run.dir={quoted(str(folder))}",
    ]


@contextmanager
def _own_gpus(config: DictConfig) -> Iterator[dict[str, str]]:
    """GPUs that no other job of this machine has, as many as the job asks for; a cluster deals them out itself."""
    gpus = [name for name in os.environ.get(GPUS, "").split(",") if name]
    count = config.trainer.devices
    if count in (-1, "-1", "auto"):
        count = len(gpus)
    wanted = config.trainer.accelerator in ("auto", "gpu", "cuda") and isinstance(count, int)
    if not wanted or not 0 < count <= len(gpus) or "SLURM_JOB_ID" in os.environ:
        # Some launchers hide the GPUs from jobs that did not ask them for any.
        yield {VISIBLE: ",".join(gpus)} if gpus and "SLURM_JOB_ID" not in os.environ else {}
        return
    with lease(count, gpus, Path(tempfile.gettempdir()) / f"bertsecrets-gpus-{os.getuid()}") as own:
        yield {VISIBLE: ",".join(own)}


def _outer_ranks() -> list[str]:
    """Slurm's variables that would make Lightning wait for tasks which this job does not have.

    A job of one task starts a process for each of its devices itself, so that jobs of different sizes fit one sweep.
    """
    return [name for name in _SCHEDULER if name in os.environ] if os.environ.get("SLURM_NTASKS") == "1" else []


def _objective(folder: Path, name: str | None) -> float | None:
    """A score of a finished run: ``<set>/<metric>``, or the first metric of the first set."""
    path = folder / "scores.json"
    if not path.is_file():
        return None
    sets: dict[str, Any] = json.loads(path.read_text("utf-8"))["sets"]
    first = next(iter(sets))
    chosen, _, metric = (name or f"{first}/{next(iter(sets[first]['constant']), '')}").partition("/")
    value = sets.get(chosen, {}).get("model", {}).get(metric)
    return None if value is None else float(value)
