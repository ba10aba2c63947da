"""A run's folder: it identifies its run, has one writer at a time, and is marked when the run is finished.

A run's key is a digest of its settings, of the code that affects results, and of the analysed checkpoint.
``begun.json`` is written first and ``finished.json`` last, so that a sweep knows which of its jobs are done.
"""

import contextlib
import errno
import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import sysconfig
import time
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from omegaconf import DictConfig

import bertsecrets
from bertsecrets.doors import KINDS, offers
from bertsecrets.errors import BusyError, UserError
from bertsecrets.keys import top_level
from bertsecrets.models.spec import INITIAL, find_checkpoint
from bertsecrets.results.files import (
    DamagedFileError,
    describe_os_error,
    read_parquet,
    remove_leftovers,
    resume_command,
    write_text,
)
from bertsecrets.results.rows import FINDINGS
from bertsecrets.results.run import CONFIG_COPY, FINISHED, SWEEP_FILE, is_first_process, plain, write_config
from bertsecrets.sweeps.hydra_arguments import register_resolver, without_hydra
from bertsecrets.sweeps.signals import Interrupted
from bertsecrets.sweeps.trust import code_in

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


_WITHOUT_NUMBERS = {"cli", "pages", "papers", "present", "reporting", "results", "sweeps"}
"""Packages whose changes do not invalidate finished runs."""

_PATTERNS = ("*.py", "*.safetensors", "*.jsonl.gz", "*.conll")

_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()


@functools.cache
def code_version() -> str:
    """The package's version and a digest of its code, weights and rows: ``0.1.0+3f2a9c04``.

    A digest of files also covers uncommitted changes, and needs neither git nor a checkout.
    """
    root = Path(bertsecrets.__file__).parent
    files = sorted(path.relative_to(root) for pattern in _PATTERNS for path in root.rglob(pattern))
    counted = (path for path in files if path.parts[0] not in _WITHOUT_NUMBERS)
    return f"{bertsecrets.__version__}+{_digest(root / path for path in counted)}"


def outside_code(config: Mapping[str, Any]) -> str:
    """A digest of the code of other packages and files that a configuration uses; empty without any.

    It covers files, and the whole package of each module, that the configuration names (``_target_``,
    ``module:function``) or that provide a source, a score, an override mode or a kind of task head that it names.
    Packages that provide model families always count, because a model's family is unknown until it is loaded. Nothing
    is imported.

    Args:
        config: Plain values, without settings that have no influence on numbers.
    """
    named = {target for _, target in code_in(config) if isinstance(target, str)}
    texts = set(_texts(config))
    for kind in ("sources", "scores", "override_modes", "task_heads", "families"):
        named |= {point.value for name, point in offers(kind).items() if kind == "families" or name in texts}
    offering = {re.split("[.:]", point.value)[0] for kind in KINDS for point in offers(kind).values()}
    files = sorted({path for name in named for path in _files(name, offering)})
    return f" {_digest(files)}" if files else ""


def _digest(files: Iterable[Path]) -> str:
    """Eight hexadecimal digits of the files' names and contents, independent of where their folder is."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, (Mapping, list, tuple)):
        for value in content.values() if isinstance(content, Mapping) else content:
            yield from _texts(value)


def _files(name: str, offering: Collection[str]) -> list[Path]:
    """The file that defines a name, or the modules of its package."""
    file = name.rpartition(":")[0]
    if file.endswith(".py"):
        path = Path(file).expanduser().resolve()
        return [path] if path.is_file() else []
    top = re.split("[.:]", name)[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if top == bertsecrets.__name__ or spec is None or spec.origin is None or not spec.has_location:
        return []
    path = Path(spec.origin).resolve()
    is_library = bool({"site-packages", "dist-packages"} & set(path.parts)) or path.is_relative_to(_STDLIB)
    if is_library and top not in offering:
        return []
    return list(path.parent.rglob("*.py")) if spec.submodule_search_locations else [path]


_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}

_works = False


def keep_results() -> None:
    """Keep the run's results from now on, even if it fails."""
    global _works
    _works = True


@contextmanager
def claimed(folder: Path, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Iterator[bool]:
    """Hold an output folder for a run during the block; yield False if that run is already finished.

    A run that is refused during the block, before :func:`keep_results`, leaves nothing behind.

    Args:
        folder: The folder, absolute.
        config: The run's resolved configuration.
        resume: Whether the run in the folder is resumed.
        overwrite: Whether another run in the folder is moved aside.

    Raises:
        BusyError: If another process is writing to the folder.
        UserError: If the folder holds another run and neither ``resume`` nor ``overwrite`` is set, or is not writable.
    """

    global _works
    _works = False

    def needs_nothing() -> bool:
        if resume:
            # Resuming rewrites a file that was changed.
            return has_finished(folder)
        if overwrite or (folder / SWEEP_FILE).exists():
            return False
        try:
            finished = read_finished(folder)
            return finished is not None and finished.key == run_key(config)
        except (ValueError, UserError):
            # A file was changed or lost, or the analysed checkpoint is gone.
            return False

    if needs_nothing():
        yield False
        return
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise UserError(
            f"The output folder is '{folder}', but '{nearest}' is a file; choose another folder with "
            "hydra.run.dir=<folder>."
        )
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        raise _cannot_use(folder, PermissionError(errno.EACCES, "Permission denied"))
    content = _content(folder)
    if content == _SWEEP or (content is not None and not (resume or overwrite or (folder / LOCK).exists())):
        raise _used(folder, content, config)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    before = set() if created else {path.name for path in folder.iterdir()}
    with ExitStack() as held:
        try:
            held.enter_context(hold(folder))
        except OSError as error:
            raise _cannot_use(folder, error) from error
        if needs_nothing():
            # Finished by the process that held the folder until now.
            yield False
            return
        moved = None
        if resume:
            remove_leftovers(folder)
        elif (content := _content(folder)) is not None:
            if not overwrite:
                raise _used(folder, content, config)
            moved, before = _free_name(folder), set()
            os.rename(folder, moved)
            # A process waiting for the old lock must not mistake it for the new folder's lock.
            (moved / LOCK).unlink(missing_ok=True)
            held.close()
            held.enter_context(hold(folder))
        try:
            yield True
        except (Exception, Interrupted) as error:
            began = _works or (isinstance(error, Interrupted) and (folder / CONFIG_COPY).exists())
            if not resume and not began:
                _remove_new(folder, before, created)
                if moved is not None and not any(folder.iterdir()):
                    folder.rmdir()
                    moved.rename(folder)
            raise


_SWEEP, _UNFINISHED, _FINISHED_RUN = "a sweep", "an unfinished run", "a finished run"


def _content(folder: Path) -> str | None:
    """A folder's content in words; None if it has no run."""
    if (folder / SWEEP_FILE).exists():
        return _SWEEP
    if (folder / FINISHED).exists():
        return _FINISHED_RUN
    return _UNFINISHED if (folder / CONFIG_COPY).exists() else None


def _used(folder: Path, content: str, config: Mapping[str, Any]) -> UserError:
    if content == _SWEEP:
        return UserError(
            f"Folder '{folder}' contains {content}, not a single run; resume it with {resume_command(folder)}, or "
            "choose another folder with hydra.run.dir=<folder>."
        )
    ways = (
        f" {_difference(folder, config)};"
        if content == _FINISHED_RUN
        else f"; resume it with {resume_command(folder)},"
    )
    return UserError(
        f"Folder '{folder}' already contains {content}{ways} choose another folder with hydra.run.dir=<folder>, or "
        f"add overwrite=true, which moves it to '{_free_name(folder).name}'."
    )


def _difference(folder: Path, config: Mapping[str, Any]) -> str:
    """How the finished run in a folder differs from the requested one."""
    try:
        finished = read_finished(folder)
    except ValueError:
        finished = None
    paths = data_paths(config)
    if finished is None or not paths or (finished.config, finished.code) != (config_digest(config), code_version()):
        return "with other settings, code or inputs"
    named = " or ".join(f"'{path}'" for path in paths)
    if isinstance(config.get("checkpoint"), str):
        return f"with another checkpoint or other rows (the checkpoint or {named} has changed since)"
    return f"with other rows ({named} has changed since)"


def _cannot_use(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"The output folder '{folder}' cannot be written ({describe_os_error(error)}); choose another folder with "
        "hydra.run.dir=<folder>."
    )


def cannot_write(error: OSError, folder: Path) -> str | None:
    """The message for a system error about a run's output folder; None for any other error."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    inside = any(Path(name).absolute().is_relative_to(folder) for name in names)
    if not inside and error.errno not in _DISK_ERRORS:
        return None
    again = (
        f"continue with {resume_command(folder)}"
        if os.path.exists(folder / CONFIG_COPY)
        else "run the same command again"
    )
    return (
        f"'{names[0] if names else folder}' cannot be written ({describe_os_error(error)}); no incomplete file was "
        f"kept: free some space or allow writing there, and {again}."
    )


def _free_name(folder: Path) -> Path:
    number = 1
    while os.path.lexists(target := folder.with_name(f"{folder.name}.{number}")):
        number += 1
    return target


def _remove_new(folder: Path, before: set[str], created: list[Path]) -> None:
    """Remove what a refused run has written."""
    for path in folder.iterdir():
        if path.name in before:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in created:
        try:
            path.rmdir()
        except OSError:
            # Another run has started next to this one.
            return
