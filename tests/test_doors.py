"""What installed packages and files offer: names without imports, one line for what is broken, files by their paths."""

import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path

import pytest
from packages import installed, write_package

from bertsecrets.doors import free_names, load_offer, offered_folders, offers, resolve
from bertsecrets.errors import UserError
from bertsecrets.files import load_file

BROKEN = "raise RuntimeError('two\\nlines.')\n"


def test_names_are_read_without_an_import(tmp_path: Path) -> None:
    package = write_package(tmp_path / "shy", {"shy/__init__.py": BROKEN}, {"scores": {"mine": "shy:score"}})
    with installed(package):
        assert list(offers("scores")) == ["mine"]
        assert list(offers("measures")) == []
        assert "shy" not in sys.modules


def test_a_broken_offer_is_named_in_one_line_and_the_others_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = write_package(
        tmp_path / "mixed",
        {"mixed_a.py": "answer = 42\n", "mixed_b.py": BROKEN},
        {"scores": {"good": "mixed_a:answer", "bad": "mixed_b:answer", "gone": "mixed_c:answer", "no": "mixed_a:no"}},
    )
    with installed(package):
        for _ in range(2):
            loaded = {name: load_offer("scores", name) for name in free_names("scores", ())}
            assert loaded == {"good": 42, "bad": None, "gone": None, "no": None}
    lines = [record.getMessage() for record in caplog.records]
    # Each is said once.
    assert len(lines) == 3
    assert "bertsecrets.scores 'bad' of mixed is skipped: RuntimeError: two lines." in lines[0]
    assert "'gone' of mixed is skipped: ModuleNotFoundError: No module named 'mixed_c'." in lines[1]
    assert "'no' of mixed is skipped: AttributeError" in lines[2]
    assert not any("\n" in line for line in lines)


def test_names_are_unique(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = write_package(tmp_path / "first", {"one_a.py": "x = 1\n"}, {"scores": {"x": "one_a:x", "exact": "one_a:x"}})
    second = write_package(tmp_path / "second", {"one_b.py": "x = 2\n"}, {"scores": {"x": "one_b:x"}})
    with installed(first, second):
        assert free_names("scores", ("exact",)) == ("x",)
        assert load_offer("scores", "x") == 1
        assert free_names("scores", ("x",)) == ("exact",)
    lines = [record.getMessage() for record in caplog.records]
    assert any("'x' of second is skipped: 'one_a:x' already has this name" in line for line in lines)
    assert any("'exact' of first is skipped: bertsecrets itself has this name" in line for line in lines)


def test_folders_are_found_without_an_import(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = {"holder/__init__.py": BROKEN, "holder/data/conf/measure/a.yaml": "a: {}\n"}
    points = {"conf": {"holder": "holder.data.conf", "none": "holder.other", "away": "no_such_package.conf"}}
    package = write_package(tmp_path / "dist", files, points)
    with installed(package):
        assert offered_folders("conf") == {"holder": package / "holder" / "data" / "conf"}
        assert "holder" not in sys.modules
    assert sorted(record.getMessage().partition(" is skipped: ")[2] for record in caplog.records) == [
        "no package has the folder 'holder.other' (does its wheel contain YAML files?).",
        "no package has the folder 'no_such_package.conf' (does its wheel contain YAML files?).",
    ]


def test_dotted_names_and_files(tmp_path: Path) -> None:
    assert resolve("os.path.join") is resolve("os.path:join") is os.path.join
    assert resolve("xml.dom.minidom.Document") is xml.dom.minidom.Document
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "heads.py").write_text(f"class Mine:\n    origin = '{name}'\n", "utf-8")
    one, two = (resolve(f"{tmp_path / name / 'heads.py'}:Mine") for name in ("one", "two"))
    # Files of the same name stay apart, and a file is imported once.
    assert (one.origin, two.origin) == ("one", "two")
    assert resolve(f"{tmp_path}/two/../one/heads.py:Mine") is one
    assert sys.modules[one.__module__].Mine is one
    with pytest.raises(AttributeError, match=r"heads\.py has no 'Min'; did you mean 'Mine'\?"):
        resolve(f"{tmp_path / 'one' / 'heads.py'}:Min")
    with pytest.raises(UserError, match="is not a file; give the path of a Python file"):
        resolve(f"{tmp_path}/none.py:Mine")


def test_objects_of_a_file_go_to_a_process_that_has_not_loaded_it(tmp_path: Path) -> None:
    file = tmp_path / "my.folder, 100%" / "heads.v2.py"
    file.parent.mkdir()
    file.write_text("class Mine:\n    def __init__(self, x):\n        self.x = x\n", "utf-8")
    mine = resolve(f"{file}:Mine")(7)
    (tmp_path / "mine.pickle").write_bytes(pickle.dumps(mine))
    program = (
        f"import pickle; mine = pickle.load(open({str(tmp_path / 'mine.pickle')!r}, 'rb')); print(mine.x, "
        "type(mine).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "7 Mine\n"), done.stderr
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(operator.attrgetter("x"), (mine,)) == 7


def test_a_file_that_raises_can_be_corrected(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN, "utf-8")
    with pytest.raises(RuntimeError):
        load_file(file)
    file.write_text("x = 1\n", "utf-8")
    assert load_file(file).x == 1
