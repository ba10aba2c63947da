"""Benchmarks make each run once, and lose nothing of what another process stores meanwhile."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import jobs

ADD = """
import sys, time
from pathlib import Path
from benchmarks.jobs import store

def add(rows):
    time.sleep(0.02)
    return [*(rows or []), sys.argv[2]]

for _ in range(10):
    store(Path(sys.argv[1]), add)
"""
SCRIPT = """
import sys
from pathlib import Path

settings = dict(argument.split("=") for argument in sys.argv[1:])
folder = Path(settings.get("resume") or settings["hydra.run.dir"])
folder.mkdir(exist_ok=True)
print(sorted(settings))
begun = (folder / "begun.json").exists()
(folder / "begun.json").touch()
if not begun:
    sys.exit("interrupted")
(folder / "finished.json").touch()
"""


def test_two_processes_lose_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    command = [sys.executable, "-c", ADD, str(path)]
    processes = [subprocess.Popen([*command, name], cwd=jobs.ROOT) for name in ("one", "other")]
    assert [process.wait() for process in processes] == [0, 0]
    rows = json.loads(path.read_text("utf-8"))
    assert sorted(rows) == ["one"] * 10 + ["other"] * 10


def test_a_run_is_begun_resumed_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    monkeypatch.setattr(jobs, "ROOT", tmp_path)
    log = tmp_path / "first.log"
    for _ in range(3):
        jobs.run("first", ["train.py", "seed=1"], tmp_path)
    assert log.read_text("utf-8").splitlines() == [
        "['hydra.run.dir', 'overwrite', 'progress', 'seed']",
        "interrupted",
        "['resume']",
    ]
    assert capsys.readouterr().out == (
        f"first: failed, see {log}\nfirst: resumed with the settings of {tmp_path / 'first'}\nfirst: 0.0 minutes\n"
    )
