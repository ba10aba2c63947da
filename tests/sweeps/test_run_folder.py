"""A run's folder: what makes its key, what its markers promise, who may write to it, and when a run is resumed."""

import errno
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from bertsecrets.errors import UserError
from bertsecrets.results.run import write_config
from bertsecrets.sweeps.run_folder import (
    FAILURE,
    claim_folder,
    code_version,
    config_digest,
    exclusive_run,
    find_damage,
    mark_finished,
    read_finished,
    report_failure,
    run_key,
)

CONFIG = {"task": {"name": "mrpc"}, "seed": 1, "logger": {}, "resume": None}


def test_the_key_follows_what_decides_the_numbers_and_nothing_else(tmp_path: Path) -> None:
    model = tmp_path / "model.ckpt"
    model.write_bytes(b"weights")
    config = {**CONFIG, "checkpoint": str(model)}
    key = run_key(config)
    same = [
        {**config, "resume": str(tmp_path)},
        {**config, "logger": {"wandb": {"mode": "online"}}},
        {**config, "group": "sweep", "tags": ["a"], "progress": False},
        {**config, "report": {"heads": 2}},
        dict(reversed(config.items())),
    ]
    assert {run_key(each) for each in same} == {key}
    other = [{**config, "seed": 2}, {**config, "task": {"name": "rte"}}, CONFIG]
    assert key not in {run_key(each) for each in other}
    model.write_bytes(b"Weights")
    assert run_key(config) != key


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


def test_a_marker_covers_every_table(finished: Path) -> None:
    marker = read_finished(finished)
    assert (marker.key, marker.seconds, marker.code) == ("key", 1.5, code_version())
    assert set(marker.files) == {"config.yaml", "scores.json", "heads.parquet", "predictions/val.parquet"}
    for name in marker.files:
        content = (finished / name).read_bytes()
        (finished / name).write_bytes(content[:-1] + b"?")
        with pytest.raises(ValueError, match=f"{name} has changed"):
            read_finished(finished)
        (finished / name).unlink()
        with pytest.raises(ValueError, match=f"{name} is missing"):
            read_finished(finished)
        (finished / name).write_bytes(content)
    (finished / "finished.json").unlink()
    assert read_finished(finished) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 1}', '{"key": "a", "unknown": 2}'])
def test_an_unreadable_marker_is_reported(content: str, finished: Path) -> None:
    (finished / "finished.json").write_text(content)
    with pytest.raises(ValueError, match=r"finished.json cannot be read"):
        read_finished(finished)


def test_damage_is_found_before_a_run_is_resumed(finished: Path) -> None:
    assert find_damage(finished) is None
    content = (finished / "heads.parquet").read_bytes()
    (finished / "heads.parquet").write_bytes(content[:20])
    assert "heads.parquet cannot be read" in str(find_damage(finished))
    (finished / "heads.parquet").write_bytes(content)
    (finished / "checkpoints").mkdir()
    (finished / "checkpoints" / "last.ckpt").write_bytes(b"PK\x03\x04half")
    assert "last.ckpt cannot be read" in str(find_damage(finished))


def test_an_interrupted_run_is_resumed_only_with_its_own_code_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"seed": 1, "task": {"name": "mrpc"}}
    folder = tmp_path / "run"

    def interrupted() -> None:
        with exclusive_run(OmegaConf.create(config), folder):
            write_config(OmegaConf.create(config), folder)
            raise KeyboardInterrupt

    def begin() -> None:
        with pytest.raises(KeyboardInterrupt):
            interrupted()

    begin()
    assert claim_folder(config, folder) == "resumable"
    other = {**config, "seed": 2}
    assert claim_folder(other, folder) == "new"
    assert not folder.exists()
    begin()
    monkeypatch.setattr("bertsecrets.sweeps.run_folder.code_version", lambda: "9.9.9+other")
    assert claim_folder(config, folder) == "new"
    assert len(list((tmp_path / ".set_aside").iterdir())) == 2


def test_a_finished_run_is_kept_for_its_settings_and_code_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"seed": 1, "report": {"heads": 6}}
    folder = tmp_path / "run"
    with exclusive_run(OmegaConf.create(config), folder):
        write_config(OmegaConf.create(config), folder)
    assert claim_folder({**config, "report": {"heads": 2}}, folder) == "finished"
    with pytest.raises(UserError, match="contains a finished run with other settings"):
        claim_folder({**config, "seed": 2}, folder)
    before = code_version()
    monkeypatch.setattr("bertsecrets.sweeps.run_folder.code_version", lambda: "9.9.9+other")
    assert claim_folder(config, folder) == "new"
    assert f"was finished with code {before}: moved to" in caplog.text


def test_only_a_damaged_file_is_damage(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory, and too many threads or open files, say nothing of the table."""
    keep = pq.ParquetFile.read

    def without_threads(file: pq.ParquetFile, columns: list[str] | None = None, use_threads: bool = True) -> Any:
        if use_threads:
            raise OSError("Failed to launch worker thread: Resource temporarily unavailable")
        return keep(file, columns, use_threads=False)

    monkeypatch.setattr(pq.ParquetFile, "read", without_threads)
    assert find_damage(finished) is None
    for error in (OSError(errno.EMFILE, "Too many open files"), pa.ArrowMemoryError("malloc of size 64 failed")):
        monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            find_damage(finished)
        (finished / "finished.json").unlink(missing_ok=True)
        with pytest.raises(
            UserError, match=r"cannot be read at present \((too many open files|malloc of size 64 failed)\)"
        ):
            claim_folder({}, finished)
        assert (finished / "heads.parquet").is_file()


def test_a_failure_that_cannot_be_reported_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(FAILURE, str(tmp_path / "file" / "failure.json"))
    report_failure("UserError", "The disk is full.")
    monkeypatch.setenv(FAILURE, str(tmp_path / "failure.json"))
    report_failure("UserError", "The disk is full.")
    assert json.loads((tmp_path / "failure.json").read_text()) == {"error": "UserError", "reason": "The disk is full."}
