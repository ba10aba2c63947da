"""Deals out a machine's GPUs to jobs that run at the same time, so that not all of them take the first."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

VISIBLE = "CUDA_VISIBLE_DEVICES"

_LOOK_S = 1.0


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the GPUs that this process may use; empty without any."""
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return listed.stdout.split() if listed.returncode == 0 else []


@contextmanager
def lease(count: int, gpus: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """Waits until ``count`` of the GPUs are free and keeps them for the block.

    The locks are the operating system's: they are gone with the process that holds them.

    Args:
        count: At most ``len(gpus)``.
        gpus: Names of the GPUs.
        folder: Where the locks lie; the same for every process of the machine that is to take part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        with ExitStack() as held:
            taken: list[str] = []
            for gpu in gpus:
                lock = FileLock(folder / f"gpu-{gpu}.lock", timeout=0)
                try:
                    lock.acquire()
                except Timeout:
                    continue
                held.callback(lock.release)
                taken.append(gpu)
                if len(taken) == count:
                    yield taken
                    return
        # Holding fewer than are needed could keep another job from ever getting all of its own.
        time.sleep(_LOOK_S)
