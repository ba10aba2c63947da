"""Writing files so that a reader finds the old one or the new one, never half of one."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertsecrets.errors import UserError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, renamed over it when the block succeeds and removed when it fails.

    The temporary path keeps the suffix of ``path``, so that writers which choose a format by suffix choose the right
    one. Missing folders are made.

    Raises:
        UserError: If the disk or the quota is full.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise UserError(
                f"No space left to write {path}: nothing half-written was left behind; "
                "free some space, or choose another output folder, and run again"
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    # Without this a crash of the machine may leave the new name on an empty file.
    with path.open("r+b") as file:
        os.fsync(file.fileno())
