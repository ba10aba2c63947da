"""Runs small sweeps as a user does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from doors.runs import ROOT, door, environment, small


def sweep_arguments(model: Path, folder: Path, *arguments: str, **settings: object) -> list[str]:
    """The arguments of a sweep whose jobs take seconds: sixteen examples, two steps, no callbacks."""
    quick = {"data__limit_train": 16, "data__limit_eval": 9, "trainer__max_epochs": 1, "callbacks": "none", **settings}
    given = [each for each in small(model, folder, **quick) if not each.startswith("hydra.run")]
    swept = {each.split("=")[0] for each in arguments}
    kept = [each for each in given if each.split("=")[0] not in swept]
    if "trainer" in swept | set(settings):
        kept.remove("trainer.accelerator=cpu")
    return ["-m", *arguments, *kept, f"hydra.sweep.dir={folder}"]


def sweep(model: Path, folder: Path, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Runs such a sweep to its end."""
    return door("train", *sweep_arguments(model, folder, *arguments, **settings), timeout=500)


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    """Starts train.py without waiting for it."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder).encode() in command and state != "Z":
                found.append(int(entry.name))
    return found


def left_of(folder: Path, wait_s: float = 60) -> list[int]:
    """Processes of a folder that are still there after a while.

    One that was still importing when its sweep ended looks for it only when it is done with that.
    """
    deadline = time.monotonic() + wait_s
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return processes_of(folder)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process as a power cut would."""
    process.send_signal(signal.SIGKILL)
    process.wait()
