"""Which presenter makes the pages of a declared experiment, and what a run's folder may not make the program import."""

import importlib
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

import bertsecrets.present
from bertsecrets.files import load_file
from bertsecrets.keys import DescribedKeys
from bertsecrets.present.presenter import Presenter, presenter_of
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import Comparison, MeasureView, Replicates

VIEW = MeasureView(
    Run(Path("nowhere"), "r", "m", "t", "pretrained"), Declaration("name", "Title", ""), HeadTable.empty()
)

FOREIGN = """
from pathlib import Path
from bertsecrets.present.presenter import Presenter

Path({marker!r}).touch()
THEIRS = Presenter(scalars=lambda view: {{"theirs": 1.0}})
FAILS = Presenter(section=lambda view: view.gone, comparison=lambda comparison: 1 / 0, scalars=lambda view: 1 / 0)


class Other:
    inner = THEIRS
"""


def declared(presenter: str) -> Declaration:
    return Declaration("name", "Title", "", presenter=presenter)


@pytest.fixture(params=["foreign_package", "bertsecrets_foreign"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A module that could be imported, and the file that it leaves when it is."""
    name, marker = str(request.param), tmp_path / "imported"
    (tmp_path / f"{name}.py").write_text(FOREIGN.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name, marker


def test_what_a_folder_names_is_not_imported(foreign: tuple[str, Path]) -> None:
    name, marker = foreign
    assert presenter_of(declared(f"{name}:THEIRS")) == Presenter()
    assert not marker.exists()
    assert name not in sys.modules


def test_an_imported_module_brings_its_presenters(foreign: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, marker = foreign
    DescribedKeys.model_construct(measure={"other": {"_target_": f"{name}.Other"}}).load_classes()
    assert marker.exists()
    for presenter in ("THEIRS", "Other.inner"):
        assert presenter_of(declared(f"{name}:{presenter}")).scalars(VIEW) == {"theirs": 1.0}
    assert presenter_of(declared(f"{name}:Other")) == Presenter()
    monkeypatch.delitem(sys.modules, name)


def test_a_presenter_that_fails_says_so_on_the_page(foreign: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, _ = foreign
    importlib.import_module(name)
    presenter = presenter_of(declared(f"{name}:FAILS"))
    section = presenter.section(VIEW)
    assert section.title == "Title"
    assert section.paragraphs == [
        f"The presenter '{name}:FAILS' failed (AttributeError: 'MeasureView' object has no attribute 'gone'); correct "
        "it, and rebuild the page."
    ]
    assert presenter.scalars(VIEW) == {}
    compared = presenter.comparison(Comparison({"a": Replicates([VIEW])}))
    assert "(ZeroDivisionError: division by zero)" in compared.paragraphs[0]
    monkeypatch.delitem(sys.modules, name)


def test_a_file_is_imported_only_if_the_command_names_it(foreign: tuple[str, Path], tmp_path: Path) -> None:
    name, marker = foreign
    file = tmp_path / f"{name}.py"
    declaration = declared(f"bertsecrets.files.{quote(str(file)).replace('.', '%2E')}:THEIRS")
    assert presenter_of(declaration) == Presenter()
    assert not marker.exists()
    load_file(file)
    assert presenter_of(declaration).scalars(VIEW) == {"theirs": 1.0}


@pytest.mark.parametrize(
    "presenter",
    [
        "",
        ":",
        "bertsecrets",
        "bertsecrets:PRESENTER",
        "bertsecrets.present.dependency:GONE",
        "bertsecrets.gone:PRESENTER",
        "bertsecrets..present:PRESENTER",
        "bertsecrets.grid:Column",
        "bertsecrets.present.dependency:np.maximum",
        "no such module:Thing",
    ],
)
def test_what_is_not_at_hand_is_shown_like_any_grid(presenter: str) -> None:
    assert presenter_of(declared(presenter)) == Presenter()


def test_presenters_load_neither_torch_nor_transformers() -> None:
    """Pages are made without a model."""
    modules = sorted(path.stem for path in Path(bertsecrets.present.__path__[0]).glob("[!_]*.py"))
    names = ", ".join(f"bertsecrets.present.{name}" for name in modules)
    code = (
        f"import sys, {names}, bertsecrets.reporting.run_report; print({{'torch', 'transformers'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
