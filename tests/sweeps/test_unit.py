"""Units of work: what makes their key, what their marker vouches for, who may write."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsecrets.errors import BusyError
from bertsecrets.sweeps.identity import code_version, config_digest, unit_key
from bertsecrets.sweeps.unit import damage, hold, mark_finished, read_finished, set_aside, unmark

CONFIG = {"task": {"name": "mrpc"}, "seed": 1, "logger": {}, "resume": None}


def test_the_key_follows_what_decides_the_numbers_and_nothing_else(tmp_path: Path) -> None:
    model = tmp_path / "model.ckpt"
    model.write_bytes(b"weights")
    key = unit_key(CONFIG, [model])
    same = [
        {**CONFIG, "resume": str(tmp_path)},
        {**CONFIG, "logger": {"wandb": {"mode": "online"}}},
        {**CONFIG, "group": "sweep", "tags": ["a"], "progress": False},
        dict(reversed(CONFIG.items())),
    ]
    assert {unit_key(each, [model]) for each in same} == {key}
    other = [{**CONFIG, "seed": 2}, {**CONFIG, "task": {"name": "rte"}}]
    assert key not in {unit_key(each, [model]) for each in other}
    model.write_bytes(b"Weights")
    assert unit_key(CONFIG, [model]) != key


def test_the_key_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    key = unit_key(CONFIG)
    monkeypatch.setattr("bertsecrets.sweeps.identity.code_version", lambda: "other")
    assert unit_key(CONFIG) != key
    assert code_version().startswith("0.")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 1")
    (folder / "scores.json").write_text("{}")
    (folder / "predictions").mkdir()
    for name in ("heads.parquet", "predictions/val.parquet"):
        pq.write_table(pa.table({"a": [1, 2, 3]}), folder / name)
    mark_finished(folder, "key", config_digest(CONFIG), 1.5)
    return folder


def test_a_marker_vouches_for_every_table(finished: Path) -> None:
    marker = read_finished(finished)
    assert marker is not None
    assert (marker.key, marker.seconds, marker.code) == ("key", 1.5, code_version())
    assert set(marker.files) == {"config.yaml", "scores.json", "heads.parquet", "predictions/val.parquet"}
    for name in marker.files:
        content = (finished / name).read_bytes()
        (finished / name).write_bytes(content[:-1] + b"?")
        with pytest.raises(ValueError, match=f"{name} is not what"):
            read_finished(finished)
        (finished / name).unlink()
        with pytest.raises(ValueError, match=f"{name} is missing"):
            read_finished(finished)
        (finished / name).write_bytes(content)
    unmark(finished)
    assert read_finished(finished) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 1}', '{"key": "a", "unknown": 2}'])
def test_a_marker_that_cannot_be_read_is_told(content: str, finished: Path) -> None:
    (finished / "finished.json").write_text(content)
    with pytest.raises(ValueError, match=r"finished.json cannot be read"):
        read_finished(finished)


def test_damage_is_found_before_a_unit_goes_on(finished: Path) -> None:
    assert damage(finished) is None
    content = (finished / "heads.parquet").read_bytes()
    (finished / "heads.parquet").write_bytes(content[:20])
    assert "heads.parquet cannot be read" in str(damage(finished))
    (finished / "heads.parquet").write_bytes(content)
    (finished / "checkpoints").mkdir()
    (finished / "checkpoints" / "last.ckpt").write_bytes(b"PK\x03\x04half")
    assert "last.ckpt cannot be read" in str(damage(finished))


def test_what_is_set_aside_is_kept(finished: Path) -> None:
    first = set_aside(finished)
    finished.mkdir()
    (finished / "new").write_text("x")
    second = set_aside(finished)
    assert json.loads((first / "finished.json").read_text())["key"] == "key"
    assert (second / "new").read_text() == "x"
    assert not finished.exists()


def _hold(folder: Path) -> None:
    with hold(folder):
        (folder / "held").touch()
        time.sleep(60)


def test_a_folder_is_held_by_one_process_and_free_when_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsecrets.sweeps.unit._PATIENCE_S", 0.2)
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path,))
    holder.start()
    deadline = time.monotonic() + 20
    while not (tmp_path / "held").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(BusyError, match="is being written by another process"), hold(tmp_path):
        pass
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    with hold(tmp_path):
        pass
