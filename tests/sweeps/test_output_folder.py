"""A single run's output folder: what a used one holds is kept, and a refused run leaves nothing behind."""

import json
import multiprocessing
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from shared import wait_for

from bertsecrets.errors import BusyError, UserError
from bertsecrets.results.run import CONFIG_COPY
from bertsecrets.sweeps import run_folder
from bertsecrets.sweeps.run_folder import cannot_write, claimed, exclusive_run, hold, keep_results
from bertsecrets.sweeps.signals import Interrupted

CONFIG: dict[str, Any] = {"task": {"name": "mrpc"}, "seed": 1, "resume": None, "overwrite": False}


def claim(
    folder: Path, *, resume: bool = False, overwrite: bool = False, **settings: object
) -> AbstractContextManager[bool]:
    return claimed(folder, {**CONFIG, **settings}, resume=resume, overwrite=overwrite)


def run(folder: Path, *, stop: BaseException | None = None, result: str | None = "scores.json", **options: Any) -> bool:
    """A run that writes one result and then stops or finishes; returns whether it ran."""
    settings = {**CONFIG, **{key: value for key, value in options.items() if key == "seed"}}
    with claim(folder, **options) as unfinished:
        if unfinished:
            (folder / ".hydra").mkdir(exist_ok=True)
            (folder / ".hydra" / "config.yaml").touch()
            (folder / "train.log").touch()
            with exclusive_run(OmegaConf.create(settings), folder):
                if result is not None:
                    keep_results()
                    (folder / result).write_text(json.dumps(settings["seed"]))
                if stop is not None:
                    raise stop
        return unfinished


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    assert run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    with pytest.raises(Interrupted):
        run(tmp_path / "run", stop=Interrupted(15))
    return tmp_path / "run"


def test_a_finished_run_is_not_run_again_whatever_only_changes_its_pages(finished: Path) -> None:
    before = content(finished)
    assert not run(finished)
    assert not run(finished, progress=False, report={"heads": 3}, group="g")
    assert content(finished) == before


@pytest.mark.parametrize("kind", ["finished", "unfinished"])
def test_another_run_is_refused_with_the_ways_on(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    (folder.parent / "run.1").mkdir()
    for _ in range(2):
        before = content(folder.parent)
        with pytest.raises(UserError, match=rf"already contains an? {kind} run") as refusal:
            run(folder, seed=2)
        assert (f"resume it with python -m bertsecrets resume folder={folder}, " in str(refusal.value)) == (
            kind == "unfinished"
        )
        assert "hydra.run.dir=<folder>" in str(refusal.value)
        assert "overwrite=true, which moves it to 'run.2'" in str(refusal.value)
        assert content(folder.parent) == before
        # Also in a copy, which nobody has locked.
        (folder / ".lock").unlink(missing_ok=True)


def test_a_run_by_other_code_or_with_a_changed_file_is_another_run(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "code_version", lambda: "other")
        with pytest.raises(UserError, match="already contains a finished run with other settings, code or inputs"):
            run(finished)
    (finished / "scores.json").write_text("changed")
    with pytest.raises(UserError, match="already contains a finished run"):
        run(finished)
    assert run(finished, resume=True)
    assert not run(finished, resume=True)


def test_overwriting_moves_the_old_run_aside_and_never_deletes(finished: Path) -> None:
    old = content(finished)
    assert run(finished, seed=2, overwrite=True)
    assert run(finished, seed=2, overwrite=True)
    names = {path.name for path in finished.parent.iterdir()}
    assert names == {"run", "run.1", "run.2"}
    moved = content(finished.with_name("run.1"))
    assert moved == {name: data for name, data in old.items() if name != ".lock"}
    assert json.loads((finished.with_name("run.2") / "scores.json").read_text()) == 2
    assert run(finished.parent / "new", overwrite=True)


def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, finished: Path) -> None:
    before = content(tmp_path)
    with pytest.raises(UserError, match="wrong"):
        run(tmp_path / "a" / "b" / "c", stop=UserError("wrong"), result=None)
    assert not (tmp_path / "a").exists()
    with pytest.raises(UserError, match="wrong"):
        run(finished, seed=2, overwrite=True, stop=UserError("wrong"), result=None)
    assert content(tmp_path) == {name: data for name, data in before.items() if not name.endswith(".lock")}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "mine" / "train.log").write_text("mine, too")
    with pytest.raises(UserError, match="wrong"):
        run(tmp_path / "mine", stop=UserError("wrong"), result=None)
    assert set(content(tmp_path / "mine")) == {"notes.txt", "train.log"}


def test_a_failed_run_keeps_its_results(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not finite"):
        run(tmp_path / "run", stop=UserError("not finite"), result="heads.parquet")
    assert {CONFIG_COPY, "heads.parquet", "begun.json"} <= set(content(tmp_path / "run"))


def test_an_interrupted_run_can_be_resumed_from_its_first_moment(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path / "run", stop=Interrupted(2), result=None)
    (tmp_path / "run" / ".heads.0123abcd.parquet").write_text("half")
    assert run(tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / ".heads.0123abcd.parquet").exists()
    with pytest.raises(Interrupted), claim(tmp_path / "other"):
        raise Interrupted(2)
    assert not (tmp_path / "other").exists()


def _finish_slowly(folder: Path, seed: int) -> None:
    with claim(folder, seed=seed), exclusive_run(OmegaConf.create({**CONFIG, "seed": seed}), folder):
        (folder / "scores.json").write_text("first")
        time.sleep(0.5)


@pytest.mark.parametrize("seed", [1, 2])
def test_who_waits_for_the_lock_does_not_run_over_the_run_that_held_it(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "run"
    first = multiprocessing.get_context("fork").Process(target=_finish_slowly, args=(folder, seed))
    first.start()
    assert wait_for((folder / "scores.json").exists)
    if seed == 1:
        assert not run(folder)
    else:
        with pytest.raises(UserError, match="already contains a finished run"):
            run(folder)
    first.join()
    assert (folder / "scores.json").read_text() == "first"


def _hold(folder: Path) -> None:
    with hold(folder):
        (folder / "held").touch()
        time.sleep(60)


def test_who_loses_the_lock_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "_PATIENCE_S", 0.2)
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path,))
    holder.start()
    assert wait_for((tmp_path / "held").exists)
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(BusyError, match="is being written by another process"):
            run(tmp_path, **options)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "held"}
    holder.kill()
    holder.join()
    # The lock of a process that was killed is free.
    with hold(tmp_path):
        pass


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=rf"is '{folder}', but '{tmp_path / 'file'}' is a file; choose another"):
            run(folder)
    with pytest.raises(UserError, match=r"'/proc/bertsecrets/run' cannot be written \(no such file or directory\)"):
        run(Path("/proc/bertsecrets/run"))
    assert content(tmp_path) == {"file": b""}


def test_a_sweeps_folder_takes_no_single_run(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="contains a sweep, not a single run"):
            run(tmp_path, overwrite=overwrite)
    assert set(content(tmp_path)) <= {"sweep.json", ".lock"}


def test_errors_of_the_disk_are_told_from_bugs(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    assert "no space left on device" in str(cannot_write(full, tmp_path))
    inside = PermissionError(13, "Permission denied", str(tmp_path / "csv" / "metrics.csv"))
    assert f"'{tmp_path}/csv/metrics.csv' cannot be written (permission denied)" in str(cannot_write(inside, tmp_path))
    assert cannot_write(FileNotFoundError(2, "No such file", "/elsewhere"), tmp_path) is None
