"""Processes of jobs and of distributed runs: signals, what they inherit, and that none outlives its run."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.runs import ROOT
from shared import wait_for

from bertsecrets.errors import UserError
from bertsecrets.sweeps import job_processes, signals
from bertsecrets.sweeps.job_processes import (
    PARENT,
    LostProcessError,
    ask_to_end,
    describe_exit,
    lease_gpus,
    run_process,
    visible_gpus,
    watched,
)
from bertsecrets.sweeps.signals import Interrupted, defer, hand_on, handled, requested


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore SIGINT, and what is ignored stays so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_at_once_and_the_handlers_are_put_back(number: int) -> None:
    before = signal.getsignal(number)
    with handled():
        with pytest.raises(Interrupted) as caught:
            send(number)
        assert caught.value.number == number
    assert signal.getsignal(number) == before


def test_a_deferred_signal_is_noted_and_a_second_one_insists(monkeypatch: pytest.MonkeyPatch) -> None:
    with handled():
        defer(True)
        assert requested() is None
        send(signal.SIGINT)
        # The terminal and the sweep may both pass one request on.
        send(signal.SIGTERM)
        assert requested() == signal.SIGINT
        monkeypatch.setattr(signals, "_REPEAT_S", 0.0)
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)
    with handled():
        assert requested() is None


def test_an_error_of_an_interrupted_library_is_an_interruption() -> None:
    """OmegaConf interrupted in a ``finally`` raises an error of its own, without a printed context."""

    def restores_its_state() -> None:
        try:
            try:
                send(signal.SIGTERM)
            finally:
                raise AttributeError("half restored")
        except AttributeError:
            raise KeyError("key") from None

    with handled(), pytest.raises(KeyError) as caught:
        restores_its_state()
    assert signals.interruption(caught.value) == signal.SIGTERM
    assert signals.interruption(KeyError("key")) is None
    assert signals.interruption(KeyboardInterrupt()) == signal.SIGINT


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with handled():
            send(signal.SIGINT)
            assert requested() is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_is_handed_on_before_it_is_raised() -> None:
    numbers: list[int] = []
    with handled():
        hand_on(numbers.append)
        with pytest.raises(Interrupted):
            send()
    assert numbers == [signal.SIGTERM]


SAVING = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.3)
    open(sys.argv[1], "w").write(signal.Signals(number).name)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
open(sys.argv[2], "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_of_a_job_gets_the_signal_and_time_to_save(tmp_path: Path, number: int) -> None:
    files = [str(tmp_path / name) for name in ("saved", "started")]
    threading.Thread(target=lambda: wait_for((tmp_path / "started").exists) and send(number), daemon=True).start()
    with handled(), pytest.raises(Interrupted):
        run_process([sys.executable, "-c", SAVING, *files], tmp_path, {})
    assert (tmp_path / "saved").read_text() == signal.Signals(number).name


def test_processes_of_other_launchers_are_waited_for(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("saved", "started")]
    child = subprocess.Popen([sys.executable, "-c", SAVING, *files])
    assert wait_for((tmp_path / "started").exists)
    # Reaped elsewhere, as by the worker of a launcher.
    threading.Thread(target=child.wait, daemon=True).start()
    ask_to_end([child.pid], signal.SIGTERM)
    assert (tmp_path / "saved").read_text() == "SIGTERM"


def test_a_signal_during_the_imports_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, importlib.abc\n"
        "class Slow(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'hydra':\n"
        f"            open({str(tmp_path / 'importing')!r}, 'w').close()\n"
        "            import time; time.sleep(60)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert wait_for((tmp_path / "importing").exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == "Interrupted before anything was saved; run the same command again.\n"


CHILD = """
import os, sys, time
sys.path.insert(0, {root!r})
from bertsecrets.sweeps.job_processes import end_with_parent
end_with_parent()
open({file!r}, "w").write(str(os.getpid()))
{body}
time.sleep(60)
"""
GRANDCHILD = "import subprocess; subprocess.Popen([sys.executable, '-c', {code!r}], stdin=subprocess.DEVNULL)"


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_variables_are_set_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFT_OUT", "1")
    monkeypatch.setenv("KEPT", "2")
    code = (
        "import os; open('seen', 'w').write(repr([os.environ.get(n) for n in ('LEFT_OUT', 'KEPT', 'GIVEN')]))\n"
        "raise SystemExit(7)"
    )
    assert run_process([sys.executable, "-c", code], tmp_path, {"LEFT_OUT": None, "GIVEN": "3"}) == 7
    assert (tmp_path / "seen").read_text() == "[None, '2', '3']"


def test_children_and_their_children_end_with_a_killed_parent(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("child", "grandchild")]
    inner = CHILD.format(root=str(ROOT), file=names[1], body="")
    outer = CHILD.format(root=str(ROOT), file=names[0], body=GRANDCHILD.format(code=inner))
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from bertsecrets.sweeps.job_processes import run_process\n"
        f"run_process([sys.executable, '-c', {outer!r}], Path('.'), {{}})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    assert wait_for(lambda: all(Path(name).is_file() and Path(name).read_text() for name in names))
    processes = [int(Path(name).read_text()) for name in names]
    assert all(alive(process) for process in processes)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert wait_for(lambda: not any(alive(process) for process in processes), 10)


def test_a_process_that_comes_too_late_ends_at_once(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    code = CHILD.format(root=str(ROOT), file=str(tmp_path / "late"), body="")
    late = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, PARENT: str(gone.pid)}, timeout=20, check=False
    )
    assert late.returncode == 1
    assert not (tmp_path / "late").exists()


def test_exit_statuses_in_words() -> None:
    assert describe_exit(3) == "exit status 3"
    assert "SIGSEGV" in describe_exit(-signal.SIGSEGV)


def test_each_gpu_goes_to_one_job_at_a_time(tmp_path: Path) -> None:
    busy: set[str] = set()
    most, clashes, guard = 0, [], threading.Lock()

    def job(count: int) -> None:
        nonlocal most
        with lease_gpus(count, ["0", "1", "2"], tmp_path) as gpus:
            with guard:
                clashes.extend(busy & set(gpus))
                busy.update(gpus)
                most = max(most, len(busy))
            assert len(gpus) == count
            time.sleep(0.2)
            with guard:
                busy.difference_update(gpus)

    jobs = [threading.Thread(target=job, args=(count,)) for count in (1, 2, 1, 3, 1)]
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in jobs)
    assert clashes == []
    assert most == 3


def test_visible_gpus_are_those_of_the_environment_or_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,5"}) == ["2", "5"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({}) == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0\necho 1\n")
    tool.chmod(0o755)
    assert visible_gpus({}) == ["0", "1"]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus({}) == []


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
