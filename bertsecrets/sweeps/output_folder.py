"""The output folder of a single run, claimed before anything is loaded or written."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bertsecrets.errors import UserError
from bertsecrets.results.config_copy import CONFIG_COPY
from bertsecrets.results.files import describe_os_error, remove_leftovers, resume_command
from bertsecrets.results.run import FINISHED, SWEEP_FILE
from bertsecrets.sweeps.code_version import code_version
from bertsecrets.sweeps.run_folder import LOCK, config_digest, data_paths, has_finished, hold, read_finished, run_key
from bertsecrets.sweeps.signals import Interrupted

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
