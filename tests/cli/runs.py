"""Runs the doors as a user does, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def door(name: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs train.py or analyze.py; two threads would only get into each other's way here."""
    return subprocess.run(
        [sys.executable, str(ROOT / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env=environment(),
        check=False,
    )


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }


def small(model: Path, folder: Path, **settings: object) -> list[str]:
    """The arguments of a run of seconds: a tiny random model on a little of the demo task."""
    given = {
        "model": "folder",
        "model.path": model,
        "data.limit_train": 90,
        "data.limit_eval": 37,
        "data.eval_batch_size": 8,
        "task.training.batch_size": 8,
        "trainer.max_epochs": 2,
        "trainer.accelerator": "cpu",
        "logger": "csv",
        "progress": "false",
        "hydra.run.dir": folder,
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    return [f"{key}={value}" for key, value in given.items()]
