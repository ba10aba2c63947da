"""The code version follows the code that makes numbers, and nothing that only presents them."""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from packages import installed, write_package

import bertsecrets
from bertsecrets.sweeps.code_version import code_version, number_making, outside_code, package_digest

MEASURE = '''"""Drift of heads."""

from bertsecrets.measures.base import Column, Measure, MeasureView
from bertsecrets.results.figures.grids import heatmap
from torch import Tensor


def _sentence(value: float) -> str:
    return f"Attention changed by {value:.2f}."


def _scale(value: Tensor) -> Tensor:
    """Scale values."""
    return 2 * value


_LIMITS = (0.0, 1.0)


class Drift(Measure):
    """Change of attention."""

    name = "drift"
    title = "Drift"
    about = "Maps before and after."
    columns = (Column("cosine", "cosine similarity", role="value", limits=_LIMITS),)
    size: int = Field(default=3, description="a whole number")

    def per_example(self, attention_BHQK: Tensor) -> Tensor:
        # The paper's formula.
        if attention_BHQK.ndim != 4:
            raise UserError(f"expected 4 axes, not {attention_BHQK.ndim}.")
        return _scale(attention_BHQK)

    @classmethod
    def describe(cls, view: MeasureView) -> Section:
        return Section([_sentence(view.value)], [heatmap(view.value)])
'''

PRESENTING = [
    ("2 * value", "2 * value  # doubled"),
    ('"""Scale values."""', '"""Double values."""'),
    ('"""Scale values."""\n    ', ""),
    ('"""Drift of heads."""', ""),
    ('title = "Drift"', 'title = "Change of attention"'),
    ('title = "Drift"', 'title: str = "Drift"'),
    ("Maps before", "Attention before"),
    ('"cosine similarity"', '"cosine", unit="bits"'),
    ("_LIMITS = (0.0, 1.0)", "_LIMITS = (-1.0, 1.0)"),
    ("Attention changed by", "Drift:"),
    ("[heatmap(view.value)]", "[heatmap(view.value, view.error)]"),
    ("from bertsecrets.results.figures.grids import heatmap\n", ""),
    ("a whole number", "a number of heads"),
    ("expected 4 axes", "4 axes are expected"),
    ("grids import heatmap", "maps import heatmap"),
]

NUMBER_MAKING = [
    ("2 * value", "3 * value"),
    ('Column("cosine"', 'Column("angle"'),
    ('role="value"', 'role="p_value"'),
    ('name = "drift"', 'name = "change"'),
    ("default=3", "default=4"),
    ("ndim != 4", "ndim != 3"),
    ("import Tensor", "import BoolTensor as Tensor"),
    ("return _scale(attention_BHQK)", "return attention_BHQK"),
]


@pytest.mark.parametrize(("old", "new"), PRESENTING)
def test_words_and_figures_leave_the_version_alone(old: str, new: str) -> None:
    assert MEASURE.count(old) == 1
    assert number_making(MEASURE.replace(old, new)) == number_making(MEASURE)


@pytest.mark.parametrize(("old", "new"), NUMBER_MAKING)
def test_a_line_that_makes_numbers_changes_the_version(old: str, new: str) -> None:
    assert MEASURE.count(old) == 1
    assert number_making(MEASURE.replace(old, new)) != number_making(MEASURE)


def test_what_describes_can_be_removed() -> None:
    rest = MEASURE.replace(", limits=_LIMITS", "").replace("_LIMITS = (0.0, 1.0)\n", "")
    rest = rest[: rest.index("    @classmethod")].replace(", MeasureView", "")
    rest = "\n".join(line for line in rest.splitlines() if "heatmap" not in line)
    rest = rest.replace(rest[rest.index("def _sentence") : rest.index("def _scale")], "")
    assert number_making(rest) == number_making(MEASURE)


def test_nothing_but_the_measure_itself_is_left() -> None:
    assert number_making(MEASURE) == (
        "from bertsecrets.measures.base import Column, Measure\n"
        "from torch import Tensor\n"
        "def _scale(value: Tensor) -> Tensor:\n"
        "    return 2 * value\n"
        "class Drift(Measure):\n"
        "    name = 'drift'\n"
        "    columns = (Column('cosine', role='value'),)\n"
        "    size: int = Field(default=3)\n\n"
        "    def per_example(self, attention_BHQK: Tensor) -> Tensor:\n"
        "        if attention_BHQK.ndim != 4:\n"
        "            raise UserError()\n"
        "        return _scale(attention_BHQK)"
    )


def test_helpers_of_helpers_go_and_side_effects_stay() -> None:
    source = (
        "import os\nimport plugin\nfrom a import b\n"
        "def _inner():\n    return b(_UNIT)\ndef _outer():\n    return _inner() if _outer else 0\n_UNIT = os.sep\n"
        "def describe(module):\n    return module\n"
        "class A:\n    def scalars(self):\n        return _outer()\n"
    )
    # An import that nothing ever used may register something; describe() of a module is no method that describes.
    assert number_making(source) == "import plugin\ndef describe(module):\n    return module\nclass A:\n    pass"


def test_a_tuple_of_names_goes_when_none_of_them_is_used() -> None:
    source = (
        "_A, _B = 1, 2\n_C, _D = 3, 4\nclass M:\n    size = _C\n    def describe(self):\n        return _A + _B + _D\n"
    )
    assert number_making(source) == "_C, _D = (3, 4)\nclass M:\n    size = _C"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of a few rooms of the package; a digest of all of it takes seconds."""
    root, package = Path(bertsecrets.__file__).parent, tmp_path / "package"
    for room in ("data/demo", "patterns", "statistics"):
        shutil.copytree(root / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    for path in root.glob("*.py"):
        shutil.copy(path, package)
    return package


def test_only_rooms_that_make_numbers_count(package: Path) -> None:
    digest = package_digest(package)
    for name in ("settings.py", "errors.py"):
        path = package / name
        path.write_text(f"{path.read_text('utf-8')}\nADDED = 1\n", "utf-8")
    for name in (
        "results/scores.py",
        "reporting/runs.py",
        "cli/train.py",
        "sweeps/job.py",
        "papers/new/page.py",
        "ablation/figures.py",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("ADDED = 1\n", "utf-8")
    assert package_digest(package) == digest
    rooms = ("data", "models", "attention", "measures", "ablation", "patterns", "callbacks", "statistics", "probes")
    for room in rooms:
        (package / room).mkdir(exist_ok=True)
        (package / room / "added.py").write_text("ADDED = 1\n", "utf-8")
        assert package_digest(package) != digest, room
        (package / room / "added.py").unlink()
    (package / "grid.py").write_text("ADDED = 1\n", "utf-8")
    assert package_digest(package) != digest


def test_a_comment_in_any_module_leaves_the_version_alone(package: Path) -> None:
    digest = package_digest(package)
    for path in package.rglob("*.py"):
        path.write_text(f"# A comment.\n{path.read_text('utf-8')}", "utf-8")
    assert package_digest(package) == digest


def test_shipped_weights_and_rows_count(package: Path) -> None:
    names = ("patterns/weights.safetensors", "data/demo/demo_nli.train.jsonl.gz", "data/demo/coreference.conll")
    assert all((package / name).is_file() for name in names)
    for name in names:
        digest = package_digest(package)
        (package / name).write_bytes(b"other")
        assert package_digest(package) != digest, name


def test_the_version_names_release_and_digest() -> None:
    assert re.fullmatch(re.escape(bertsecrets.__version__) + r"\+[0-9a-f]{8}", code_version())


HEADS = "from .helpers import scale\nclass Mine:\n    title = 'x'\n    def per_example(self):\n        return scale\n"


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of packages: one that is named, and one with a score and a family under entry points."""
    files = {
        "mine/__init__.py": "",
        "mine/heads.py": HEADS,
        "mine/helpers.py": "import beside\nscale = 1\n",
        "mine/other.py": "x = 1\n",
        "beside.py": "y = 1\n",
        "offering.py": "def score(situation):\n    return 1\nclass Family:\n    pass\n",
    }
    folder = write_package(tmp_path / "outside", files, {"scores": {"weight": "offering:score"}})
    with installed(folder):
        yield folder


def test_a_module_that_the_configuration_names_counts_with_what_it_imports(outside: Path) -> None:
    config = {"measure": {"mine": {"_target_": "mine.heads.Mine"}}}
    digest = outside_code(config)
    assert digest == outside_code(config) != ""
    for name in ("mine/heads.py", "mine/helpers.py", "mine/__init__.py", "beside.py"):
        content = (outside / name).read_text("utf-8")
        (outside / name).write_text(f"{content}ADDED = 1\n", "utf-8")
        assert outside_code(config) != digest, name
        (outside / name).write_text(content, "utf-8")
    (outside / "mine" / "other.py").write_text("x = 2\n", "utf-8")
    (outside / "offering.py").write_text("", "utf-8")
    (outside / "mine" / "heads.py").write_text("# A comment.\n" + HEADS.replace("'x'", "'A title'"), "utf-8")
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


def test_no_module_imports_a_private_name_of_another() -> None:
    """A private name that describes is left out of its module, so that no other module may depend on it."""
    private = {
        f"{path.name}: {alias.name}"
        for path in Path(bertsecrets.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("bertsecrets")
        for alias in node.names
        if alias.name.startswith("_")
    }
    assert private == set()
