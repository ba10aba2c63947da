"""Atomic writing of files: a reader sees the old file or the new one, never half of one."""

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
    """Yield a temporary path next to ``path``; rename it to ``path`` if the block succeeds, remove it if it fails.

    The temporary path keeps the suffix of ``path``, from which some writers choose the format. Missing folders are
    created.

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
                f"No space left to write {path}; no incomplete file was kept: "
                "free some space, or choose another output folder, and run again"
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    # Without this, a crash of the machine may leave an empty file under the new name.
    with path.open("r+b") as file:
        os.fsync(file.fileno())
