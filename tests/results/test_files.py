import errno
import os
from pathlib import Path

import pytest

from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write


def test_success_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.parquet"
    for content in ("old", "new"):
        with atomic_write(path) as temporary:
            assert temporary.parent == path.parent
            assert temporary.suffix == ".parquet"
            temporary.write_text(content)
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["table.parquet"]


def test_readers_see_the_old_file_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"


def test_failing_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write_half() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, full)
    with (
        pytest.raises(UserError, match=r"a\.txt; no incomplete file was kept.*free some space"),
        atomic_write(path) as temporary,
    ):
        temporary.write_text("new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_other_os_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), atomic_write(tmp_path / "a.txt"):
        raise PermissionError(errno.EACCES, "no")


def test_content_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1])
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("x")
    assert calls == ["fsync", "replace"]
