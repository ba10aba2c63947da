"""Signals: raised at once or at the end of a step, handed on to other processes, and never twice for one request."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertsecrets.sweeps import signals
from bertsecrets.sweeps.job_processes import ask_to_end, run_process
from bertsecrets.sweeps.signals import Interrupted, defer, hand_on, handled, requested

ROOT = Path(__file__).resolve().parents[2]


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


CHILD = """
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


def started(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_of_a_job_gets_the_signal_and_time_to_save(tmp_path: Path, number: int) -> None:
    files = [str(tmp_path / name) for name in ("saved", "started")]
    threading.Thread(target=lambda: (started(tmp_path / "started"), send(number)), daemon=True).start()
    with handled(), pytest.raises(Interrupted):
        run_process([sys.executable, "-c", CHILD, *files], tmp_path, {})
    assert (tmp_path / "saved").read_text() == signal.Signals(number).name


def test_processes_of_other_launchers_are_waited_for(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("saved", "started")]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *files])
    started(tmp_path / "started")
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
    started(tmp_path / "importing")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == "Interrupted before anything was saved; run the same command again.\n"
