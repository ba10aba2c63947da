"""What tests only read, made once in a test session for all of its workers; and waiting for other processes."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of the session, the same in all workers."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """A folder below :func:`session_folder` that the first who asks for it makes while the others wait."""
    finished = folder.with_name(f"{folder.name}.finished")
    with FileLock(f"{folder}.lock"):
        if not finished.exists():
            # What a worker has left that failed.
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            finished.touch()
    return folder


def wait_for(condition: Callable[[], object], seconds: float = 20) -> bool:
    """Whether a condition comes true within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())
