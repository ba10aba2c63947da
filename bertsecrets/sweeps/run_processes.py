"""The processes of one distributed run: if one is lost, the others end with a message instead of waiting."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertsecrets.errors import UserError
from bertsecrets.results.files import resume_command
from bertsecrets.sweeps.job_processes import describe_exit, end_at_once
from bertsecrets.sweeps.run_folder import report_failure

_POLL_S = 0.5
_GRACE_S = 3.0
"""Time for the first process to report its own error."""


class LostProcessError(UserError):
    """Another process of this run was killed."""


@contextmanager
def watched(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list for the processes that this one has started for its run, and watch them during the block.

    If one of them fails, this process ends. When the block fails, the other processes end.

    Args:
        folder: Of the run.

    Raises:
        LostProcessError: If the block failed because another process was killed.
    """
    other_processes: list[subprocess.Popen[bytes]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            for rank, process in enumerate(list(other_processes), start=1):
                status = process.poll()
                if status:
                    if done.wait(_GRACE_S):
                        return
                    _end(other_processes)
                    report_failure("LostProcessError", _sentence(rank, status, folder))
                    end_at_once(_sentence(rank, status, folder))

    threading.Thread(target=watch, daemon=True, name="watch-processes").start()
    parent = os.getppid()
    try:
        yield other_processes
    except Exception as error:
        done.set()
        sentence = None if isinstance(error, UserError) else _lost(other_processes, folder, parent)
        if sentence is not None:
            raise LostProcessError(sentence) from error
        raise
    finally:
        done.set()
        if sys.exc_info()[0] is not None:
            _end(other_processes)


def _lost(other_processes: Sequence[subprocess.Popen[bytes]], folder: Path, parent: int) -> str | None:
    """A sentence about another process of this run that was killed; None if all are alive or ended by themselves."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    # A connection breaks a moment before the process counts as ended.
    deadline = time.monotonic() + (1.0 if other_processes or not is_first else 0.0)
    while True:
        for rank, process in enumerate(other_processes, start=1):
            status = process.poll()
            if status is not None and status < 0:
                return _sentence(rank, status, folder)
        if not is_first and os.getppid() != parent:
            return "The first process of this run has ended, so this one ends too."
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)


def _sentence(rank: int, status: int, folder: Path) -> str:
    reason = f"was {describe_exit(status)}" if status < 0 else f"ended with {describe_exit(status)}"
    return f"Process {rank} of this run {reason}; continue with {resume_command(folder)}"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
