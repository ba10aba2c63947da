"""Run train.py and analyze.py as a user does, in processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from faults.client import warm_process
from omegaconf import DictConfig

from bertsecrets.results.run import plain
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import Invocation, parse_arguments, without_hydra

ROOT = Path(__file__).resolve().parents[2]


def door(
    name: str, *arguments: str, timeout: float = 300, before: str = "", variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run train.py or analyze.py in a forked child of a process that has done the imports.

    Args:
        name, arguments: The command line.
        timeout: Seconds after which the command is killed, and this raises.
        before: Python statements that the process executes first, to break something.
        variables: Environment variables of the command.
    """
    with TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        answer = warm_process().run(
            [f"{name}.py", *arguments], ROOT, {**environment(), **(variables or {})}, stdout, stderr, timeout, before
        )
        printed = stdout.read_text("utf-8", errors="replace"), stderr.read_text("utf-8", errors="replace")
    if answer["timed_out"]:
        raise subprocess.TimeoutExpired([name, *arguments], timeout, *printed)
    return subprocess.CompletedProcess([name, *arguments], answer["status"], *printed)


def ran(name: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The same for a command that has to succeed."""
    done = door(name, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start train.py in a process group of its own, without waiting for it."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test runner in the background of a shell ignores interrupts, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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
    """The arguments of a run of seconds: a tiny random model on a few pairs of sentences."""
    given = {
        "task": "demo_paraphrase",
        "model": "folder",
        "model.path": model,
        "data.limit_train": 90,
        "data.limit_eval": 37,
        "data.eval_batch_size": 8,
        "task.training.batch_size": 8,
        "trainer.max_epochs": 2,
        "trainer.accelerator": "cpu",
        "logger": "csv",
        # Drawing takes longer than the rest of a run.
        "report.figures": 0,
        "progress": "false",
        # Heads are disabled at the end of every training.
        "ablation.resamples": 100,
        "ablation.permutations": 100,
        "hydra.run.dir": folder,
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    return [f"{key}={value}" for key, value in given.items()]


def small_analysis(model: Path, folder: Path, **settings: object) -> list[str]:
    """The arguments of an analysis of such a run."""
    given = small(model, folder, **settings)
    return [word for word in given if not word.startswith(("trainer.max_epochs", "task.training.b"))]


def parsed(arguments: Sequence[str], command: str = "train") -> Invocation:
    """A command line that Hydra does not answer itself, parsed."""
    return parse_arguments(arguments, CONF, command)


def configured(arguments: Sequence[str], command: str = "train") -> DictConfig:
    """The configuration of a command line."""
    invocation = parsed(arguments, command)
    with invocation.hydra():
        return without_hydra(invocation.compose(invocation.overrides))


def composed(arguments: Sequence[str], command: str = "train") -> dict[str, Any]:
    """The same as plain values."""
    return plain(configured(arguments, command))
