"""The processes of jobs: they end with their parent, and each uses its own GPUs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from bertsecrets.errors import UserError
from bertsecrets.results.files import resume_command
from bertsecrets.sweeps.run_folder import report_failure
from bertsecrets.sweeps.signals import Interrupted

PARENT = "BERTSECRETS_PARENT"
"""Environment variable: id of the process whose end also ends this process."""

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"

_POLL_PROCESS_S = 0.5
_POLL_GPUS_S = 1.0
_GRACE_S = 30.0
"""Time for a process that was asked to end to save its work."""


def run_process(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str | None],
    started: Callable[[int], object] = lambda process: None,
) -> int:
    """Run a command to its end; return its exit status, negative for a signal's number.

    The command ends with this process. On an interruption, it receives the same signal and time to save its work.

    Args:
        command: Program and arguments.
        folder: Working directory.
        environment: Variables to set, or with None to remove, on top of those of this process.
        started: Called with the id of the new process.
    """
    merged = {**os.environ, **environment, PARENT: str(os.getpid())}
    variables = {name: value for name, value in merged.items() if value is not None}
    process = subprocess.Popen(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL)
    try:
        started(process.pid)
        return process.wait()
    except BaseException as error:
        request = error.number if isinstance(error, Interrupted) else signal.SIGTERM
        for signal_ in (request, signal.SIGKILL):
            process.send_signal(signal_)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
                break
        raise


def ask_to_end(processes: Sequence[int], number: int) -> None:
    """Send a signal to other processes on this machine, not our children, and wait until they have saved their work."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
    deadline = time.monotonic() + _GRACE_S
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)


def describe_exit(status: int) -> str:
    """An exit status in words.

    >>> describe_exit(-9)
    'killed by SIGKILL, as happens to a process that runs out of memory'
    """
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name
    hint = ", as happens to a process that runs out of memory" if -status == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def end_with_parent() -> int | None:
    """End this process as soon as its parent ends, if a sweep or a distributed run started it; return the parent's id.

    Processes started from here do the same, so that all ranks of a distributed job end with their sweep. Returns None
    if neither started this process.
    """
    parent = int(os.environ.get(PARENT, "0"))
    if parent and not _is_alive(parent):
        os._exit(1)
    is_child = os.getppid() == parent
    if is_child:
        _end_unless(lambda: os.getppid() == parent)
    os.environ[PARENT] = str(os.getpid())
    return parent if is_child else None


def end_with_process(process: int) -> None:
    """End this process as soon as another process of this machine ends; do nothing if that is this process."""
    if process != os.getpid():
        _end_unless(lambda: _is_alive(process))


def _end_unless(is_wanted: Callable[[], bool]) -> None:
    def watch() -> None:
        while is_wanted():
            time.sleep(_POLL_PROCESS_S)
        end_at_once("The parent process has ended, so this one ends too.")

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


def end_at_once(sentence: str) -> NoReturn:
    """Print a sentence and end this process, though other threads may wait in a collective forever."""
    with contextlib.suppress(OSError):
        print(f"error: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(1)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the GPUs that this process may use; empty if there are none."""
    if VISIBLE_GPUS in environment:
        return [name for name in environment[VISIBLE_GPUS].split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.split() if result.returncode == 0 else []


@contextmanager
def lease_gpus(count: int, gpus: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """Wait until ``count`` of the GPUs are free and reserve them for the block.

    The operating system releases the locks when the process ends, however it ends.

    Args:
        count: From 1 to ``len(gpus)``.
        gpus: Names of the GPUs.
        folder: Folder of the lock files; the same for all processes of the machine that share the GPUs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        with ExitStack() as held:
            leased: list[str] = []
            for gpu in gpus:
                lock = FileLock(folder / f"gpu-{gpu}.lock", timeout=0)
                try:
                    lock.acquire()
                except Timeout:
                    continue
                held.callback(lock.release)
                leased.append(gpu)
                if len(leased) == count:
                    yield leased
                    return
        # Keeping fewer GPUs than needed while waiting could deadlock two jobs.
        time.sleep(_POLL_GPUS_S)


_POLL_PROCESS_S = 0.5
_REPORT_S = 3.0
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
        while not done.wait(_POLL_PROCESS_S):
            for rank, process in enumerate(list(other_processes), start=1):
                status = process.poll()
                if status:
                    if done.wait(_REPORT_S):
                        return
                    _kill(other_processes)
                    report_failure("LostProcessError", _lost_sentence(rank, status, folder))
                    end_at_once(_lost_sentence(rank, status, folder))

    threading.Thread(target=watch, daemon=True, name="watch-processes").start()
    parent = os.getppid()
    try:
        yield other_processes
    except Exception as error:
        done.set()
        sentence = None if isinstance(error, UserError) else _lost_process(other_processes, folder, parent)
        if sentence is not None:
            raise LostProcessError(sentence) from error
        raise
    finally:
        done.set()
        if sys.exc_info()[0] is not None:
            _kill(other_processes)


def _lost_process(other_processes: Sequence[subprocess.Popen[bytes]], folder: Path, parent: int) -> str | None:
    """A sentence about another process of this run that was killed; None if all are alive or ended by themselves."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    # A connection breaks a moment before the process counts as ended.
    deadline = time.monotonic() + (1.0 if other_processes or not is_first else 0.0)
    while True:
        for rank, process in enumerate(other_processes, start=1):
            status = process.poll()
            if status is not None and status < 0:
                return _lost_sentence(rank, status, folder)
        if not is_first and os.getppid() != parent:
            return "The first process of this run has ended, so this one ends too."
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)


def _lost_sentence(rank: int, status: int, folder: Path) -> str:
    reason = f"was {describe_exit(status)}" if status < 0 else f"ended with {describe_exit(status)}"
    return f"Process {rank} of this run {reason}; continue with {resume_command(folder)}"


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_PROCESS_S)
