"""A run's folder: it identifies its run, has one writer at a time, and is marked when the run is finished.

A run's key is a digest of its settings, of the code that affects results, and of the analysed checkpoint.
``begun.json`` is written first and ``finished.json`` last, so that a sweep knows which of its jobs are done.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from bertsecrets.errors import BusyError, UserError
from bertsecrets.keys import top_level
from bertsecrets.models.spec import INITIAL, find_checkpoint
from bertsecrets.results.config_copy import CONFIG_COPY, plain, write_config
from bertsecrets.results.files import (
    DamagedFileError,
    describe_os_error,
    read_parquet,
    resume_command,
    write_text,
)
from bertsecrets.results.rows import FINDINGS
from bertsecrets.results.run import FINISHED, is_first_process
from bertsecrets.sweeps.code_version import code_version, outside_code
from bertsecrets.sweeps.hydra_arguments import register_resolver, without_hydra

NO_INFLUENCE = top_level(lambda meaning: not meaning.numbers) | {"hydra"}
"""Top-level keys that affect only logging and reporting, or that repeat facts of a checkpoint."""

FAILURE = "BERTSECRETS_FAILURE"
"""Environment variable: the file to which a sweep's job writes its reason for failing."""

BEGUN, LOCK = "begun.json", ".lock"
"""Files of a run's folder: the marker of a run that has begun, and the lock."""

_PATIENCE_S = 5.0
"""Time for a process that was just killed to release its folder."""

_TABLES = ("heads.parquet", "ablation.parquet", f"{FINDINGS}/*.parquet")
_RESULTS = (CONFIG_COPY, "scores.json", *_TABLES, "predictions/*.parquet")
_BLOCK = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Begun:
    """Content of the marker of a run that has begun.

    Args:
        key: Of :func:`run_key`.
        code: Version of the code that runs it.
    """

    key: str
    code: str


@dataclass(frozen=True)
class Finished:
    """Content of the marker of a finished run.

    Args:
        key: Of :func:`run_key`.
        config: Digest of the configuration alone.
        code: Version of the code that ran it.
        seconds: How long it took.
        files: SHA-256 of every table, score and page, by path relative to the folder.
    """

    key: str
    config: str
    code: str
    seconds: float
    files: dict[str, str]


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 (64 hexadecimal digits) of a resolved configuration without :data:`NO_INFLUENCE`.

    >>> config_digest({"seed": 1, "resume": None}) == config_digest({"resume": "folder", "seed": 1})
    True
    """
    settings = {key: value for key, value in config.items() if key not in NO_INFLUENCE}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def run_key(config: Mapping[str, Any]) -> str:
    """The key of a run: SHA-256 of its resolved configuration, its code, and the contents of the checkpoint, runs and
    data it reads.

    The code includes other packages and files that the configuration uses.

    Raises:
        UserError: If the checkpoint is missing, or it or the data cannot be read.
    """
    used = {key: value for key, value in config.items() if key not in NO_INFLUENCE}
    digest = hashlib.sha256(f"{config_digest(config)} {code_version()}{outside_code(used)}".encode())
    checkpoint = config.get("checkpoint")
    read = [
        file for path in data_paths(config) for file in (sorted(path.rglob("*")) if os.path.isdir(path) else [path])
    ]
    if isinstance(checkpoint, str) and checkpoint != INITIAL:
        path = find_checkpoint(checkpoint, (config.get("model") or {}).get("revision"))
        read += sorted(path.iterdir()) if path.is_dir() else [path]
    try:
        for file in read:
            if file.is_file():
                digest.update(_file_digest(file).encode())
    except OSError as error:
        raise UserError(
            f"'{error.filename}' cannot be read ({describe_os_error(error)}); change its permissions or its path."
        ) from error
    runs = config.get("runs") or ()
    for name in [runs] if isinstance(runs, str) else map(str, runs):
        # A run's marker lists the digests of its results.
        for pattern in (FINISHED, "ablation.parquet"):
            for file in (Path(name) / pattern, *sorted(Path(name).glob(f"*/{pattern}"))):
                if file.is_file():
                    digest.update(_file_digest(file).encode())
    return digest.hexdigest()


def data_paths(config: Mapping[str, Any]) -> list[Path]:
    """The files of a user's own data (a CSV or a GLUE task) and the folder of a data set."""
    data, task = config.get("data") or {}, config.get("task") or {}
    files = [Path(os.path.expanduser(data[key])) for key in ("path", "eval_path") if data.get(key) is not None]
    if data.get("root") is not None and task.get("tsv"):
        folder = Path(os.path.expanduser(data["root"])) / task["tsv"]["folder"]
        files += [folder / name for _, name in sorted(task["tsv"]["files"].items())]
    return files


@contextmanager
def exclusive_run(config: DictConfig, folder: Path) -> Iterator[None]:
    """Hold a run's folder during the block, record its settings, and mark it as finished when the block succeeds.

    Only the first process of a distributed run does so.

    Raises:
        BusyError: If another process is writing to the folder.
    """
    if not is_first_process():
        yield
        return
    with hold(folder):
        started = time.monotonic()
        resolved = plain(config)
        key = run_key(resolved)
        (folder / FINISHED).unlink(missing_ok=True)
        _write_json(folder / BEGUN, asdict(Begun(key, code_version())))
        # From here on, resume=<folder> can always continue the run.
        if not isinstance(config.get("resume"), str):
            write_config(config, folder)
        yield
        mark_finished(folder, key, config_digest(resolved), time.monotonic() - started)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes during the block; the same process may lock it more than once.

    The operating system releases the lock when the process ends, however it ends.

    Raises:
        BusyError: If another process holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=_PATIENCE_S, is_singleton=True)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"Folder '{folder}' is being written by another process; wait until it ends, or choose another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


def report_failure(name: str, reason: str) -> None:
    """Report this process's reason for failing to its sweep; do nothing outside a sweep.

    Args:
        name: Name of the exception.
        reason: One sentence.
    """
    path = os.environ.get(FAILURE)
    # The first process to fail knows the reason; the others fail because of it.
    if path and not Path(path).exists():
        # If the disk is full, the process itself prints the message.
        with contextlib.suppress(UserError):
            _write_json(Path(path), {"error": name, "reason": reason})


def mark_finished(folder: Path, key: str, config: str, seconds: float) -> None:
    """Write the marker of a finished run, with a digest of each of its results."""
    files = {
        path.relative_to(folder).as_posix(): _file_digest(path)
        for pattern in _RESULTS
        for path in sorted(folder.glob(pattern))
    }
    _write_json(folder / FINISHED, asdict(Finished(key, config, code_version(), seconds, files)))


def read_begun(folder: Path) -> Begun | None:
    """Read the marker of a run that has begun; None if it is missing or unreadable."""
    try:
        return Begun(**json.loads((folder / BEGUN).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_finished(folder: Path) -> Finished | None:
    """Read the marker of a finished run and check its results; None if there is no marker.

    Raises:
        ValueError: If the marker is unreadable, or a file that it lists is missing or changed; names the file.
    """
    path = folder / FINISHED
    if not path.is_file():
        return None
    try:
        finished = Finished(**json.loads(path.read_text("utf-8")))
        digests = dict(finished.files)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing")
        if _file_digest(folder / name) != digest:
            raise ValueError(f"{folder / name} has changed since the run finished")
    return finished


def has_finished(folder: Path) -> bool:
    """Whether the run in a folder is finished and unchanged."""
    try:
        return read_finished(folder) is not None
    except ValueError:
        return False


def check_unchanged(folder: Path) -> None:
    """Check that a finished run's configuration, scores, tables and predictions are unchanged.

    Raises:
        UserError: If a file was changed or deleted.
    """
    try:
        read_finished(folder)
    except ValueError as error:
        raise UserError(
            f"{error}, so no page can be made of the run in '{folder}'; restore the file, or recreate it with "
            f"{resume_command(folder)}."
        ) from error


def claim_folder(config: Mapping[str, Any], folder: Path) -> Literal["finished", "resumable", "new"]:
    """Determine the state of a run's folder; move anything unusable for this run to ``.set_aside``.

    Args:
        config: The run's resolved configuration.
        folder: Held by the caller.

    Raises:
        UserError: If the folder contains a finished run with other settings, or its tables cannot be read at present.
    """
    key = run_key(config)
    problem = None
    try:
        finished = read_finished(folder)
    except ValueError as error:
        finished, problem = None, str(error)
    if finished is not None:
        if finished.key == key:
            return "finished"
        if finished.config != config_digest(config):
            raise UserError(
                f"Folder '{folder}' contains a finished run with other settings; include every setting that the sweep "
                "varies in hydra.sweep.subdir, or remove hydra.sweep.subdir."
            )
        origin = (
            f"code {finished.code}"
            if finished.code != code_version()
            else "other code in a package it uses, or a changed checkpoint or changed data"
        )
        problem = f"{folder} was finished with {origin}"
    try:
        problem = problem or find_damage(folder)
    except (OSError, MemoryError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error) or "not enough memory"
        raise UserError(
            f"The tables in '{folder}' cannot be read at present ({reason}), so nothing was changed; free some memory "
            "or run fewer jobs at a time, then run this job again."
        ) from error
    if problem is None and not (folder / CONFIG_COPY).is_file():
        return "new"
    if problem is None:
        begun = read_begun(folder)
        if begun is not None and begun.key == key:
            return "resumable"
        origin = "other settings" if begun is None or begun.code == code_version() else f"code {begun.code}"
        problem = f"{folder} was started with {origin}"
    _log.warning(f"{problem}: moved to {set_aside(folder)}; the job runs again.")
    return "new"


def find_damage(folder: Path) -> str | None:
    """Why an unfinished run cannot be resumed, in words; None if it can.

    Raises:
        OSError, MemoryError: If the file cannot be read for lack of memory or file handles; it may be intact.
    """
    for path in (path for name in _TABLES for path in sorted(folder.glob(name))):
        try:
            read_parquet(path)
        except DamagedFileError as error:
            return f"{path} cannot be read ({error})"
    for path in sorted((folder / "checkpoints").glob("*.ckpt")):
        if not zipfile.is_zipfile(path):
            return f"{path} cannot be read as a checkpoint"
    return None


def set_aside(folder: Path) -> Path:
    """Move a folder to ``.set_aside`` in its parent folder; return its new path."""
    parent = folder.parent / ".set_aside"
    parent.mkdir(exist_ok=True)
    number = len(list(parent.glob(f"{folder.name}.*")))
    target = parent / f"{folder.name}.{number}"
    os.replace(folder, target)
    return target


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=1))


def _file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _settings_digest(*, _root_: DictConfig) -> str:
    """Eight hexadecimal digits of a job's settings, for the name of its folder."""
    return config_digest(plain(without_hydra(_root_)))[:8]


def _agent_run() -> str:
    """A suffix that keeps the folders of W&B agents' runs apart if they start in the same second; else empty."""
    run = os.environ.get("WANDB_RUN_ID")
    return f"_{run}" if run and "WANDB_SWEEP_ID" in os.environ else ""


register_resolver("agent_run", _agent_run, replace=True)
register_resolver("settings_digest", _settings_digest, replace=True)
