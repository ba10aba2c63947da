import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write, folder_write, in_command, remove_leftovers


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


def test_any_error_of_the_system_is_a_user_error_that_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"a\.txt' cannot be written \(permission denied\)"),
        atomic_write(tmp_path / "a.txt"),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file exists"), atomic_write(tmp_path / "file" / "a.txt"):
        pass


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file may grow beyond a size, as on a disk without more space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def random_table(count: int) -> pa.Table:
    return pa.table({"x": np.random.default_rng(0).random(count)})


WRITERS: dict[str, Callable[[Path, int], object]] = {
    "torch": lambda path, count: torch.save({"x": torch.zeros(count)}, path),
    "safetensors": lambda path, count: save_file({"x": torch.zeros(count)}, path),
    "parquet": lambda path, count: pq.write_table(random_table(count), path),
    "json": lambda path, count: path.write_text(json.dumps([0] * count), "utf-8"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_meets_a_full_disk_with_one_sentence(tmp_path: Path, name: str) -> None:
    write, path = WRITERS[name], tmp_path / "table.bin"
    with atomic_write(path) as temporary:
        write(temporary, 10)
    before = path.read_bytes()
    with (
        file_limit(100_000),
        pytest.raises(UserError, match=r"table\.bin' cannot be written"),
        atomic_write(path) as temporary,
    ):
        write(temporary, 200_000)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["table.bin"]


def test_a_folders_writer_meets_a_full_disk_or_a_file_in_its_place(tmp_path: Path) -> None:
    def write_as_tokenizers_do(folder: Path, reason: str) -> None:
        with folder_write(folder):
            raise Exception(reason)

    with pytest.raises(UserError, match=r"tokenizer' cannot be written \(no space left on device\)"):
        write_as_tokenizers_do(tmp_path / "tokenizer", "No space left on device (os error 28)")
    with pytest.raises(Exception, match="a bug"):
        write_as_tokenizers_do(tmp_path / "tokenizer", "a bug")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file' cannot be written \(file exists\)"), folder_write(tmp_path / "file"):
        pass


def test_errors_of_a_writer_itself_pass_through_on_a_disk_with_space(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a bug"), atomic_write(tmp_path / "a.txt"):
        raise RuntimeError("a bug")
    assert os.listdir(tmp_path) == []


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in (".heads.0123abcd.parquet", "sub/.last.89abcdef.ckpt", ".notes.txt", ".lock", "a.0123abcd.txt"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.rglob("*")} == {"sub", ".notes.txt", ".lock", "a.0123abcd.txt"}


def test_paths_below_the_current_folder_are_relative_and_others_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path, shown in (
        ("outputs/run", "outputs/run"),
        (tmp_path / "here" / "outputs" / "run", "outputs/run"),
        ("../there/run", str(tmp_path / "there" / "run")),
        (tmp_path / "there" / "run", str(tmp_path / "there" / "run")),
        ("my run", "'my run'"),
    ):
        assert in_command(Path(path)) == shown
