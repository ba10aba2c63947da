"""The code version follows the package's files, and those of other packages that a configuration uses."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from packages import installed, write_package

import bertsecrets
from bertsecrets.sweeps import run_folder as module
from bertsecrets.sweeps.run_folder import code_version, outside_code


def test_code_weights_and_rows_count_and_rooms_without_numbers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, package = Path(bertsecrets.__file__).parent, tmp_path / "package"
    for room in ("data/demo", "patterns", "cli"):
        shutil.copytree(root / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "__init__.py", package)
    monkeypatch.setattr(module.bertsecrets, "__file__", str(package / "__init__.py"))
    version = code_version.__wrapped__
    before = version()
    assert re.fullmatch(re.escape(bertsecrets.__version__) + r"\+[0-9a-f]{8}", before)
    for name in ("cli/train.py", "cli/added.py", "patterns/notes.txt"):
        (package / name).write_text("ADDED = 1\n", "utf-8")
        assert version() == before, name
    for name in (
        "added.py",
        "patterns/added.py",
        "patterns/weights.safetensors",
        "data/demo/demo_nli.train.jsonl.gz",
        "data/demo/coreference.conll",
    ):
        (package / name).write_bytes(b"other")
        changed = version()
        assert changed != before, name
        before = changed


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of packages: one that is named, and one with a score and a family under entry points."""
    files = {
        "mine/__init__.py": "",
        "mine/heads.py": "from .helpers import Mine\n",
        "mine/helpers.py": "class Mine:\n    pass\n",
        "mine/other.py": "x = 1\n",
        "offering.py": "def score(situation):\n    return 1\nclass Family:\n    pass\n",
    }
    folder = write_package(tmp_path / "outside", files, {"scores": {"weight": "offering:score"}})
    with installed(folder):
        yield folder


def test_a_module_that_the_configuration_names_counts_with_its_package(outside: Path) -> None:
    config = {"measure": {"mine": {"_target_": "mine.heads.Mine"}}}
    digest = outside_code(config)
    assert digest == outside_code(config) != ""
    for name in ("mine/heads.py", "mine/helpers.py", "mine/__init__.py"):
        content = (outside / name).read_text("utf-8")
        (outside / name).write_text(f"{content}ADDED = 1\n", "utf-8")
        assert outside_code(config) != digest, name
        (outside / name).write_text(content, "utf-8")
    (outside / "offering.py").write_text("", "utf-8")
    assert outside_code(config) == digest


def test_a_file_and_an_offered_score_count(outside: Path) -> None:
    by_file, by_name = {"_target_": f"{outside}/mine/other.py:x"}, {"prune": {"scores": ["weight"]}}
    by_function = {"prune": {"scores": ["offering:score"]}}
    before = [outside_code(config) for config in (by_file, by_name, by_function)]
    assert before[0] != before[1] == before[2]
    for name in ("mine/other.py", "offering.py"):
        (outside / name).write_text("def score(situation):\n    return 2\n", "utf-8")
    after = [outside_code(config) for config in (by_file, by_name, by_function)]
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_own_code_and_libraries_do_not_count_twice(outside: Path) -> None:
    names = ("bertsecrets.measures.entropy.Entropy", "pytorch_lightning.Trainer", "pathlib.Path", "no_such.Thing")
    assert outside_code({name: {"_target_": name} for name in names}) == ""


def test_a_family_of_a_package_counts_for_every_run(tmp_path: Path) -> None:
    package = write_package(tmp_path / "kin", {"kin.py": "x = 1\n"}, {"families": {"roformer": "kin:x"}})
    with installed(package):
        first = outside_code({})
        (package / "kin.py").write_text("x = 2\n", "utf-8")
        assert outside_code({}) != first != ""
