"""A process that has imported everything once and runs each command in a forked child.

Reads one JSON request a line from stdin and answers each with one JSON line on stdout.
"""

import atexit
import ctypes
import gc
import importlib
import json
import logging
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]

MODULES = (
    "matplotlib.pyplot",
    "pandas",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "bertsecrets.cli.analyze",
    "bertsecrets.cli.command_line",
    "bertsecrets.cli.pages",
    "bertsecrets.cli.train",
    "bertsecrets.patterns.measure",
)
"""What the commands import, some of it late."""

_CAPABILITIES_VERSION_3 = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def respect_permissions() -> None:
    """Give up root's right to read and write files whatever their permissions, so that these count as for any user."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_CAPABILITIES_VERSION_3, 0), (_Sets * 2)()
    if libc.capget(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    rights = (1 << _DAC_OVERRIDE) | (1 << _DAC_READ_SEARCH)
    for name in ("effective", "permitted", "inheritable"):
        setattr(sets[0], name, getattr(sets[0], name) & ~rights)
    if libc.capset(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def import_everything() -> None:
    """Import and read what the commands import and read late; starts no threads that a fork would lose."""
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("bertsecrets.sweeps.run_folder").code_version()
    for split in ("train", "validation"):
        importlib.import_module("bertsecrets.data.sources.demo").demo_examples("demo_paraphrase", split)
    importlib.import_module("torch").set_num_threads(1)


def serve() -> dict[str, Any] | None:
    """Answer requests until stdin ends, then return None; return the request in each forked child."""
    # Requests are read without a buffer, which a child would inherit.
    while line := _read_line(0):
        request: dict[str, Any] = json.loads(line)
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            return request
        answer = _wait(child, request["seconds"]) | {"seconds": time.monotonic() - started}
        os.write(1, (json.dumps(answer) + "\n").encode())
    return None


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return line


def _wait(child: int, seconds: float) -> dict[str, Any]:
    handle = os.pidfd_open(child)
    ended, _, _ = select.select([handle], [], [], seconds)
    os.close(handle)
    if not ended:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "peak_bytes": usage.ru_maxrss * 1024,
        "timed_out": not ended,
    }


def become(request: dict[str, Any]) -> None:
    """Make this forked child look like a process that a shell has just started."""
    os.setpgid(0, 0)
    # What the parent has made, such as the folder of W&B's media, is the parent's to remove.
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    atexit._clear()
    atexit.register(weakref.finalize._exitfunc)
    atexit.register(logging.shutdown)
    respect_permissions()
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    # Python read the variable when this process started.
    sys.path[:0] = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
    # What the parent's packages offer was asked for by its imports.
    doors = importlib.import_module("bertsecrets.doors")
    for function in (doors.offers, doors.free_names):
        function.cache_clear()
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        file = os.open(path, flags)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = [str(ROOT / request["words"][0]), *request["words"][1:]]


def run(command: Callable[[], None]) -> NoReturn:
    """Run a command and end this process as the interpreter would, without the seconds of freeing every module."""
    status = 0
    try:
        command()
    except SystemExit as request:
        status = request.code if isinstance(request.code, int) else int(request.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve; in a child, run the command to its end."""
    import_everything()
    # Collections would touch, and so copy, the pages that the children share.
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    request = serve()
    if request is None:
        return
    become(request)
    exec(request["before"], {})
    from bertsecrets.cli.command_line import run_command

    run(partial(run_command, request["words"][0].removesuffix(".py")))


if __name__ == "__main__":
    main()
