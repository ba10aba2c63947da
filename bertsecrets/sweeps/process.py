"""Jobs as processes of their own: nothing leaks from one into the next, and none outlives its sweep."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PARENT = "BERTSECRETS_PARENT"
"""Environment variable: the process whose end is to end this one."""

_LOOK_S = 0.5
_GRACE_S = 10.0


def end_with_parent() -> None:
    """Ends this process at once when the process that started it has ended, if that one asked for it.

    The processes that this one will start are asked for the same, so that the ranks of a distributed job go with it.
    """
    parent = int(os.environ.get(PARENT, "0"))
    if parent and not _is_alive(parent):
        os._exit(1)
    watch_parent(parent)
    os.environ[PARENT] = str(os.getpid())


def watch_parent(parent: int) -> None:
    """Ends this process when process ``parent`` has ended; nothing if it was not that one which started this one."""
    if os.getppid() == parent:
        _end_unless(lambda: os.getppid() == parent)


def watch_process(process: int) -> None:
    """Ends this process when another one of this machine has ended, whichever started it; nothing if it is this one."""
    if process != os.getpid():
        _end_unless(lambda: _is_alive(process))


def _end_unless(goes_on: Callable[[], bool]) -> None:
    threading.Thread(target=_watch, args=(goes_on,), daemon=True, name="end-with-parent").start()


def _watch(goes_on: Callable[[], bool]) -> None:
    while goes_on():
        time.sleep(_LOOK_S)
    # Nobody is left to read a message, and threads may be waiting in a collective for ever.
    os._exit(1)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def run_process(command: Sequence[str], folder: Path, environment: Mapping[str, str | None]) -> int:
    """Runs a command to its end and returns its exit status, negative for a signal's number.

    It ends with this process, and with this call if that is interrupted.

    Args:
        command: Program and arguments.
        folder: Working directory.
        environment: Variables to set, or with None to leave out, beside those of this process.
    """
    given = {**os.environ, **environment, PARENT: str(os.getpid())}
    variables = {name: value for name, value in given.items() if value is not None}
    process = subprocess.Popen(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException:
        # The terminal sends an interrupt to both; give the job the time to close its files.
        for signal_ in (None, signal.SIGTERM, signal.SIGKILL):
            if signal_ is not None:
                process.send_signal(signal_)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
                break
        raise


def in_words(status: int) -> str:
    """An exit status for people.

    >>> in_words(-9)
    'it was killed by SIGKILL; a process that needs more memory than there is ends like this'
    """
    if status >= 0:
        return f"it ended with exit status {status}"
    name = signal.Signals(-status).name
    hint = "; a process that needs more memory than there is ends like this" if -status == signal.SIGKILL else ""
    return f"it was killed by {name}{hint}"
