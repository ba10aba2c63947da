"""A unit of work in its folder: held by one process at a time, marked when finished, checked before it is trusted."""

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from bertsecrets.errors import BusyError
from bertsecrets.results.files import atomic_write
from bertsecrets.sweeps.identity import code_version, file_digest

FINISHED = "finished.json"
"""Name of the marker that is written last, and only when everything else is on disk."""

BEGUN = "begun.json"
"""Name of the marker that is written first: which unit the folder is for."""

_LOCK = ".lock"
_PATIENCE_S = 5.0
"""How long a process killed a moment ago may take to let go of its folder."""

_MARKED = ("config.yaml", "scores.json", "heads.parquet", "ablation.parquet", "report.html", "predictions/*.parquet")
_TABLES = ("heads.parquet", "ablation.parquet")


@dataclass(frozen=True)
class Finished:
    """What the marker of a finished unit says.

    Args:
        key: Of :func:`bertsecrets.sweeps.identity.unit_key`.
        config: Digest of the configuration alone.
        code: Version of the code that ran it.
        seconds: How long it took.
        files: SHA-256 of every table, score and page, by path below the folder.
    """

    key: str
    config: str
    code: str
    seconds: float
    files: dict[str, str] = field(default_factory=dict)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keeps every other process from writing to a folder while the block runs.

    The lock is the operating system's: it is gone with its process, however that ends.

    Raises:
        BusyError: If another process holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK, timeout=_PATIENCE_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            f"Folder '{folder}' is being written by another process; wait until that has ended, or choose another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Begun:
    """What the marker of a unit that has begun says: its key, and the version of the code that runs it."""

    key: str
    code: str


def mark_begun(folder: Path, key: str) -> None:
    """Records which unit a folder is for; the first thing that happens there."""
    with atomic_write(folder / BEGUN) as temporary:
        temporary.write_text(json.dumps(asdict(Begun(key, code_version()))), "utf-8")


def read_begun(folder: Path) -> Begun | None:
    """The marker of a unit that has begun; None if there is none that can be read."""
    try:
        return Begun(**json.loads((folder / BEGUN).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def mark_finished(folder: Path, key: str, config: str, seconds: float) -> None:
    """Records that the unit in a folder is finished; the last thing that happens there."""
    files = {
        path.relative_to(folder).as_posix(): file_digest(path)
        for pattern in _MARKED
        for path in sorted(folder.glob(pattern))
    }
    with atomic_write(folder / FINISHED) as temporary:
        temporary.write_text(
            json.dumps(asdict(Finished(key, config, code_version(), seconds, files)), indent=1), "utf-8"
        )


def unmark(folder: Path) -> None:
    """Takes the marker away: what is in the folder is about to change."""
    (folder / FINISHED).unlink(missing_ok=True)


def read_finished(folder: Path) -> Finished | None:
    """The marker in a folder; None if there is none.

    Raises:
        ValueError: If the marker, or a file it vouches for, is missing, unreadable or changed; says which.
    """
    path = folder / FINISHED
    if not path.is_file():
        return None
    try:
        finished = Finished(**json.loads(path.read_text("utf-8")))
        expected = dict(finished.files)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as a marker ({error})") from error
    for name, digest in expected.items():
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing")
        if file_digest(folder / name) != digest:
            raise ValueError(f"{folder / name} is not what the finished unit wrote")
    return finished


def damage(folder: Path) -> str | None:
    """What keeps an unfinished unit from going on where it was, in words; None if nothing does."""
    for name in _TABLES:
        path = folder / name
        if path.is_file():
            try:
                with pq.ParquetFile(path) as file:
                    file.read()
            except (pa.ArrowException, OSError) as error:
                return f"{path} cannot be read ({str(error).splitlines()[0]})"
    for path in sorted((folder / "checkpoints").glob("*.ckpt")):
        if not zipfile.is_zipfile(path):
            return f"{path} cannot be read as a checkpoint"
    return None


def set_aside(folder: Path) -> Path:
    """Moves a unit's folder to ``.set_aside`` beside it, where nothing is lost and nothing is in the way."""
    place = folder.parent / ".set_aside"
    place.mkdir(exist_ok=True)
    number = len(list(place.glob(f"{folder.name}.*")))
    target = place / f"{folder.name}.{number}"
    os.replace(folder, target)
    return target
