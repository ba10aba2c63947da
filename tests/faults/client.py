"""Send commands to a warm process."""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class WarmProcess:
    """A process that has imported everything once and runs each command in a forked child."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "faults" / "warm.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=_environment(),
            bufsize=0,
        )
        assert self._answer() == "ready"

    @property
    def pid(self) -> int:
        """Id of the process, of which every command is a child."""
        return self._process.pid

    def close(self) -> None:
        """End the process; its running command ends first."""
        self._process.stdin.close()
        self._process.wait(60)

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        seconds: float,
        before: str = "",
    ) -> dict[str, Any]:
        """Run ``train.py`` or ``analyze.py`` with its arguments in a folder, after the Python statements ``before``.

        Returns:
            ``status`` (negative: the number of the signal that ended it), ``seconds``, ``peak_bytes``, ``timed_out``.
        """
        request = {
            "words": list(words),
            "folder": str(folder),
            "environment": dict(environment),
            "stdout": str(stdout),
            "stderr": str(stderr),
            "seconds": seconds,
            "before": before,
        }
        self._process.stdin.write((json.dumps(request) + "\n").encode())
        return json.loads(self._answer())

    def _answer(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            byte = self._process.stdout.read(1)
            assert byte, "the warm process ended"
            line += byte
        return line.decode().strip()


@cache
def warm_process() -> WarmProcess:
    """The warm process of this worker."""
    process = WarmProcess()
    atexit.register(process.close)
    return process


def _environment() -> dict[str, str]:
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
    return {
        **os.environ,
        **threads,
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        # Some configurations name a class of the tests.
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "PYTHONWARNINGS": "ignore",
    }
