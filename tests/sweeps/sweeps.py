"""Run small sweeps as a user does."""

import os
import subprocess
from pathlib import Path

from cli.runs import door, small
from shared import wait_for


def sweep_arguments(model: Path, folder: Path, *arguments: str, **settings: object) -> list[str]:
    """The arguments of a sweep whose jobs take seconds: sixteen examples, two steps, no callbacks."""
    quick = {
        "data__limit_train": 16,
        "data__limit_eval": 9,
        "trainer__max_epochs": 1,
        "callbacks": "none",
        "sweep__compare": "false",
        **settings,
    }
    swept = {argument.split("=")[0] for argument in arguments}
    defaults = [setting for setting in small(model, folder, **quick) if not setting.startswith("hydra.run")]
    kept = [setting for setting in defaults if setting.split("=")[0] not in swept]
    if "trainer" in swept | set(settings):
        kept.remove("trainer.accelerator=cpu")
    return ["-m", *arguments, *kept, f"hydra.sweep.dir={folder}"]


def sweep(model: Path, folder: Path, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run such a sweep to its end."""
    return door("train", *sweep_arguments(model, folder, *arguments, **settings), timeout=500)


def processes_of(folder: Path) -> list[int]:
    """Ids of the processes with a folder in their command line."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder).encode() in command and state != "Z":
                processes.append(int(entry.name))
    return processes


def left_of(folder: Path, wait_s: float = 60) -> list[int]:
    """Ids of the processes of a folder that are still alive after a while.

    A process checks whether its sweep is alive only after its imports.
    """
    wait_for(lambda: not processes_of(folder), wait_s)
    return processes_of(folder)
