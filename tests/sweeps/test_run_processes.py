"""A distributed run of which one process is lost: the others end soon, with one sentence."""

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertsecrets.errors import UserError
from bertsecrets.sweeps import job_processes
from bertsecrets.sweeps.job_processes import LostProcessError, watched


def sleeping() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_broken_connection_is_explained_by_the_process_that_was_killed(tmp_path: Path) -> None:
    def work() -> None:
        with watched(tmp_path) as others:
            others += [sleeping(), sleeping()]
            others[1].kill()
            raise RuntimeError("Connection closed by peer")

    with pytest.raises(
        LostProcessError, match=f"Process 2 of this run was killed by SIGKILL.*resume folder={tmp_path}"
    ):
        work()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), UserError("a mistake"), KeyboardInterrupt()])
def test_an_error_of_its_own_passes_and_ends_the_other_processes(error: BaseException, tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        with watched(tmp_path) as others:
            others.append(sleeping())
            started.extend(others)
            raise error

    with pytest.raises(type(error)):
        work()
    assert started[0].wait(10) == -signal.SIGKILL


def test_a_block_that_succeeds_leaves_the_other_processes_alone(tmp_path: Path) -> None:
    with watched(tmp_path) as others:
        others.append(sleeping())
        child = others[0]
    assert child.poll() is None
    child.kill()
    child.wait()


def _hang(folder: Path, output: Path) -> None:
    sys.stderr = output.open("w")
    job_processes._REPORT_S = 0.3
    with watched(folder) as others:
        others.append(sleeping())
        others[0].kill()
        time.sleep(60)


def test_a_process_that_hangs_in_a_collective_ends_with_one_sentence(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_hang, args=(tmp_path, tmp_path / "errors"))
    began = time.monotonic()
    process.start()
    process.join(30)
    assert process.exitcode == 1
    assert time.monotonic() - began < 10
    (line,) = (tmp_path / "errors").read_text().splitlines()
    assert line.startswith("error: Process 1 of this run was killed by SIGKILL")
