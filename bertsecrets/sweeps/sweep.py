"""A sweep: its folder, resuming, a record of each job, and the final table."""

import json
import logging
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertsecrets.errors import BusyError, UserError
from bertsecrets.results.disabled import objective
from bertsecrets.results.files import describe_os_error, in_command, quoted, resume_command, typed, write_text
from bertsecrets.results.formatting import MISSING, message
from bertsecrets.results.run import CONFIG_COPY, SWEEP_FILE, Run, plain
from bertsecrets.sweeps.hydra_arguments import Invocation, key_of, parse_overrides, sweeper_params
from bertsecrets.sweeps.job_processes import (
    VISIBLE_GPUS,
    ask_to_end,
    describe_exit,
    end_with_process,
    lease_gpus,
    run_process,
    visible_gpus,
)
from bertsecrets.sweeps.run_folder import BEGUN, FAILURE, claim_folder, code_version, has_finished, hold
from bertsecrets.sweeps.signals import Interrupted
from bertsecrets.sweeps.trust import check_links, settings_to_repeat

SWEEP = "BERTSECRETS_SWEEP"
"""Environment variable: facts that a sweep passes to its jobs, as JSON (:class:`SweepFacts`)."""

INTERRUPTED = "interrupted"
"""Name of the file that marks a sweep as asked to end: no further job starts."""

RUNNING, FINISHED, FAILED, SKIPPED, NOT_STARTED = "running", "finished", "failed", "skipped", "not started"
"""The states of a job."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepFacts:
    """Facts that a sweep passes to its jobs.

    Args:
        records: Folder of the jobs' records.
        process, host: The process that runs the sweep, and the name of its machine.
        program: The arguments of Python that start a job.
        count: The number of jobs; None if the sweeper decides.
        swept: The settings that the jobs vary.
        gpus: Names of the GPUs that the sweep may assign to its jobs.
        code: Version of the code that the sweep was started with.
    """

    records: str
    process: int
    host: str
    program: Sequence[str]
    count: int | None
    swept: Sequence[str]
    gpus: Sequence[str]
    code: str

    @classmethod
    def read(cls) -> "SweepFacts":
        """The facts from this job's sweep."""
        return cls(**json.loads(os.environ[SWEEP]))


@dataclass(frozen=True)
class JobRecord:
    """The outcome of one job of a sweep.

    Args:
        number: Hydra's number of the job.
        overrides: Its settings.
        folder: Folder of its results.
        status: ``running``, ``finished``, ``failed``, ``skipped`` or ``not started``.
        reason: Why it failed, was skipped or was stopped.
        seconds: How long it took.
        score: Its objective, or None.
    """

    number: int
    overrides: list[str]
    folder: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    score: float | None = None

    def write(self, folder: Path) -> None:
        """Write the record, replacing an earlier one of the same job."""
        write_text(folder / f"{self.number}.json", json.dumps(asdict(self)))


@dataclass(frozen=True)
class Sweep:
    """A sweep that is about to run.

    Args:
        folder: Parent of its jobs' folders.
        records: Folder of this invocation's job records.
        objective: Name of the score shown for each job.
        count: The number of jobs; None if the sweeper decides.
        swept: The settings that the jobs vary.
        compares: Whether the sweep ends by comparing its runs on a page.
        paper: The paper whose page the sweep also writes; true for Kovaleva et al., false for none.
    """

    folder: Path
    records: Path
    objective: str
    count: int | None
    swept: tuple[str, ...]
    compares: bool
    paper: bool | str

    def overrides(self) -> list[str]:
        """Hydra's settings for this sweep, to be added to those of the user."""
        specification = sys.modules["__main__"].__spec__
        facts = SweepFacts(
            str(self.records),
            os.getpid(),
            socket.gethostname(),
            [str(Path(sys.argv[0]).resolve())] if specification is None else ["-m", specification.name],
            self.count,
            self.swept,
            visible_gpus(),
            code_version(),
        )
        return [
            f"hydra.sweep.dir={quoted(str(self.folder))}",
            f"++hydra.job.env_set.{SWEEP}={quoted(json.dumps(asdict(facts)))}",
        ]

    def interrupt(self, number: int) -> None:
        """Forward a signal to the running jobs, and wait until jobs of other processes have saved their work."""
        (self.records / INTERRUPTED).touch()
        started = [path.read_text("utf-8").split() for path in self.records.glob("*.process")]
        here = socket.gethostname()
        # Process ids from other machines may belong to unrelated processes here.
        processes_here = [
            int(process) for process, starter, host in started if host == here and int(starter) != os.getpid()
        ]
        ask_to_end(processes_here, number)

    def close(
        self,
        compare: Callable[[Path, bool | str], object],
        *,
        complete: bool = True,
    ) -> list[JobRecord]:
        """Print the table of jobs, compare their runs, print how to run missing jobs, and return their records.

        After an interruption, the caller prints the command that continues.

        Args:
            compare: Writes the pages of a sweep's folder, with or without the paper's page.
            complete: Whether every job was started; a job without a record then counts as failed.
        """
        records = final_records(read_records(self.records), self.count if complete else None)
        if records:
            print_records(Console(), records, self.objective, self.count)
        if self.compares and any(record.status in (FINISHED, SKIPPED) for record in records):
            try:
                compare(self.folder, self.paper)
            except UserError as error:
                _log.warning(
                    f"The runs were not compared: {error} Then run python -m bertsecrets compare "
                    f"runs={in_command(self.folder)}."
                )
        jobs = max(self.count or 0, len(records))
        missing = jobs - sum(record.status in (FINISHED, SKIPPED) for record in records)
        if missing and not (self.records / INTERRUPTED).exists():
            line = f"Run the missing jobs ({missing} of {jobs}): {resume_command(self.folder)}"
            Console().print(Text(line), soft_wrap=True)
        return records


def open_sweep(invocation: Invocation, config: DictConfig, arguments: list[str]) -> Sweep:
    """Claim a folder for a sweep, or resume the sweep in it.

    Args:
        invocation: The command line.
        config: The first job's configuration, including Hydra's part.
        arguments: The command line as given, kept for ``resume=<folder>``.

    Raises:
        UserError: If the folder contains a sweep of another command, or any sweep without ``resume=true``.
    """
    if config.overwrite:
        raise UserError("overwrite=true is for single runs; choose another hydra.sweep.dir, or resume the sweep in it.")
    folder = Path(config.hydra.sweep.dir).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"hydra.sweep.dir is '{folder}', but that path is a file; choose another folder.") from error
    except OSError as error:
        raise UserError(
            f"hydra.sweep.dir is '{folder}', which cannot be written ({describe_os_error(error)}); choose another "
            "folder."
        ) from error
    check_links(folder)
    if (folder / CONFIG_COPY).exists():
        raise UserError(f"hydra.sweep.dir is '{folder}', which contains a single run; choose another folder.")
    swept = sorted(
        {*sweeper_params(config)}
        | {
            override.get_key_element().lstrip("+")
            for override in parse_overrides(invocation.overrides)
            if override.is_sweep_override()
        }
    )
    content = {
        "command": config.hydra.job.config_name or invocation.config_name,
        "arguments": [argument for argument in arguments if not argument.startswith("resume=")],
        "code": code_version(),
    }
    if not _create(folder, content):
        if config.resume is not True:
            raise UserError(
                f"Folder '{folder}' already contains a sweep; add resume=true to run only the missing jobs, or choose "
                "another hydra.sweep.dir."
            )
        before = _read(folder)
        if before is not None and before["command"] != content["command"]:
            raise UserError(
                f"Folder '{folder}' contains a sweep of '{before['command']}', not of '{content['command']}'; choose "
                "another hydra.sweep.dir."
            )
        # resume=<folder> repeats the last command.
        write_text(folder / SWEEP_FILE, json.dumps(content, indent=1))
    records = folder / ".sweep" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(3)}"
    records.mkdir(parents=True)
    ending = config.get("sweep", {})
    return Sweep(
        folder,
        records,
        config.get("objective") or "score",
        _count(invocation, config),
        tuple(swept),
        compares=bool(ending.get("compare", False)),
        paper=ending.get("paper", False),
    )


def resume_arguments(folder: Path) -> list[str] | None:
    """The command line that resumes the sweep in a folder; None if the folder has no sweep.

    Raises:
        UserError: If the sweep's file cannot be read.
    """
    if not (folder / SWEEP_FILE).is_file():
        return None
    content = _read(folder)
    if content is None:
        raise UserError(f"{folder / SWEEP_FILE} cannot be read; give the sweep's own command with resume=true instead.")
    arguments = [argument for argument in content["arguments"] if not argument.startswith("hydra.sweep.dir=")]
    return [*arguments, f"hydra.sweep.dir={quoted(str(folder.resolve()))}", "resume=true"]


def sweep_command(folder: Path) -> str | None:
    """The command of the sweep in a folder; None without a sweep or if its file cannot be read."""
    content = _read(folder) if (folder / SWEEP_FILE).is_file() else None
    return None if content is None else str(content["command"])


def read_records(folder: Path) -> list[JobRecord]:
    """Read all job records in a folder, ordered by number."""
    records = [JobRecord(**json.loads(path.read_text("utf-8"))) for path in folder.glob("[0-9]*.json")]
    return sorted(records, key=lambda record: record.number)


def final_records(records: Sequence[JobRecord], count: int | None = None) -> list[JobRecord]:
    """The records after the sweep's end. Jobs marked as running, and jobs of ``count`` without a record, count as
    finished if their folder is marked so, else as failed.
    """
    numbers = {record.number for record in records}
    missing = [JobRecord(number, [], "", RUNNING) for number in range(count or 0) if number not in numbers]
    final = []
    for record in sorted((*records, *missing), key=lambda record: record.number):
        if record.status == RUNNING:
            # An interrupted job may finish while it is saving its work.
            if record.folder and has_finished(Path(record.folder)):
                record = replace(record, status=FINISHED, reason="")
            else:
                lost = "its process ended without reporting a result; resume=true runs it again"
                record = replace(record, status=FAILED, reason=record.reason or lost, seconds=0.0, score=None)
        final.append(record)
    return final


def print_records(console: Console, records: Sequence[JobRecord], objective: str, count: int | None = None) -> None:
    """Print a table of jobs, then why jobs failed or were skipped, then the number of all ``count`` jobs by status."""
    # A job that was ended before it started has no recorded settings.
    settings_of_jobs = [set(record.overrides) for record in records if record.overrides or record.status != FAILED]
    shared = set.intersection(*settings_of_jobs) if len(settings_of_jobs) > 1 else set()
    table = Table("job", "settings", "status", box=None, pad_edge=False)
    table.add_column("time", justify="right")
    table.add_column(objective, justify="right")
    for record in records:
        settings = " ".join(override for override in record.overrides if override not in shared)
        settings = settings or ("(defaults)" if record.folder else MISSING)
        duration = f"{record.seconds:.0f} s" if record.seconds else "\N{EN DASH}"
        score = "\N{EN DASH}" if record.score is None else f"{record.score:.3f}"
        table.add_row(str(record.number), Text(settings), record.status, duration, score)
    console.print()
    console.print(table)
    for record in records:
        if record.reason:
            console.print(Text(f"job {record.number} {record.status}: {message(record.reason)}"), soft_wrap=True)
    counts = {status: sum(record.status == status for record in records) for status in (FINISHED, SKIPPED, FAILED)}
    if not_started := max(count or 0, len(records)) - sum(counts.values()):
        counts[NOT_STARTED] = not_started
    console.print(Text(", ".join(f"{number} {status}" for status, number in counts.items())))


def _count(invocation: Invocation, config: DictConfig) -> int | None:
    """The number of jobs; None if the sweeper decides."""
    if not str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        return None
    with invocation.hydra():
        overrides = parse_overrides(invocation.overrides)
        keys = {override.get_key_element() for override in overrides}
        default = [f"{key}={value}" for key, value in sweeper_params(config).items() if key not in keys]
        lists = [override for override in (*overrides, *parse_overrides(default)) if override.is_sweep_override()]
        return math.prod(sum(1 for _ in override.sweep_string_iterator()) for override in lists)


def line_of(record: JobRecord, score: str, facts: SweepFacts) -> str:
    """One line about a finished job, with its place among all jobs of the sweep.

    Args:
        record: The job.
        score: Name of its score.
        facts: Facts that the sweep passes to its jobs.
    """
    of_all = f"/{facts.count}" if facts.count else ""
    varied = [line for line in record.overrides if line.partition("=")[0].lstrip("+") in facts.swept]
    settings = " ".join(varied or record.overrides) or "(defaults)"
    outcome = [record.status if not record.reason else f"{record.status}: {message(record.reason)}"]
    outcome += [f"{score} {record.score:.3f}"] if record.score is not None else []
    outcome += [f"{record.seconds:.0f} s"] if record.seconds else []
    return f"[{record.number + 1}{of_all}] {settings}: {', '.join(outcome)}"


def _create(folder: Path, content: Mapping[str, Any]) -> bool:
    """Write the sweep's file unless it exists; of two processes that try at once, one succeeds."""
    temporary = folder / f".{secrets.token_hex(4)}.json"
    temporary.write_text(json.dumps(content, indent=1), "utf-8")
    try:
        # Unlike a rename, a link fails where the file exists.
        os.link(temporary, folder / SWEEP_FILE)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((folder / SWEEP_FILE).read_text("utf-8"))
    except ValueError:
        return None
    if not isinstance(content, dict) or not {"command", "arguments"} <= content.keys():
        return None
    arguments = content["arguments"]
    are_texts = isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments)
    return content if are_texts else None


_PAUSE_S = 5
"""Seconds between queue checks."""


def rejection(error: BaseException, folder: Path) -> str | None:
    """The message for jobs that Slurm rejects, for example an unknown partition; None for any other error.

    Args:
        error: What a launcher raised.
        folder: Folder of the sweep.
    """
    if type(error).__name__ != "FailedJobError":
        return None
    # One line per reason; the last only says that submission failed.
    reasons = [line.removeprefix("sbatch: error:").strip() for line in str(error).splitlines() if line.strip()]
    return (
        f"Slurm rejected the jobs ({'; '.join(reasons)}); change the launcher's options, such as partition or mem_gb: "
        f"{resume_command(folder)} hydra.launcher.<option>=<value>."
    )


def wait_for_other_jobs(error: BaseException) -> bool:
    """Wait for the rest of an array if submitit gave up on a job that left no result; return whether it did.

    Args:
        error: What a launcher raised.
    """
    if type(error).__name__ != "UncompletedJobError":
        return False
    waiting_job = re.search(r"Job (\d+)", str(error))
    while waiting_job is not None:
        command = ["squeue", "--noheader", f"--jobs={waiting_job[1]}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        # Slurm forgets jobs a few minutes after they end.
        if answer.returncode or not answer.stdout.strip():
            break
        time.sleep(_PAUSE_S)
    return True


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
        # Jobs of one sweep can use different numbers of devices because each Slurm job has one task, which starts a
        # process per device. Lightning would wait for the tasks that Slurm's variables announce.
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
