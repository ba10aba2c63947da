"""Processes of jobs: what they inherit, that they end with their parent, and that no two share a GPU."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from bertsecrets.sweeps.job_processes import PARENT, describe_exit, lease_gpus, run_process, visible_gpus

ROOT = Path(__file__).resolve().parents[2]
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


def wait_for(condition, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def test_variables_are_set_and_left_out(tmp_path: Path, monkeypatch) -> None:
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


def test_visible_gpus_are_those_of_the_environment_or_the_driver(tmp_path: Path, monkeypatch) -> None:
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
