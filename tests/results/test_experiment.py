"""Which class describes a declared experiment, and what a run's folder may not make the program import."""

import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from bertsecrets.ablation.experiment import Disabling
from bertsecrets.callbacks.capture import CaptureMaps
from bertsecrets.callbacks.gradient_flow import GradientFlow
from bertsecrets.errors import UserError
from bertsecrets.grid import Column
from bertsecrets.measures.drift import Drift
from bertsecrets.results.experiment import Experiment, experiment_of
from bertsecrets.results.run import Declaration

FOREIGN = """
from pathlib import Path
from bertsecrets.results.experiment import Experiment

Path({marker!r}).touch()


class Theirs(Experiment):
    name = "theirs"
    title = "Theirs"

    class Inner(Experiment):
        pass


class Other:
    pass
"""


class Local(Experiment):
    """Of a module that is imported already."""

    name = "local"
    title = "Local"
    columns = (Column("a", "a"),)


def declared(experiment: str) -> Declaration:
    return Declaration("name", "Title", experiment)


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
    assert experiment_of(declared(f"{name}:Theirs")) is Experiment
    assert experiment_of(declared(f"{name}:Theirs"), trusted=["xml.dom.minidom:Document"]) is Experiment
    assert not marker.exists()
    assert name not in sys.modules


def test_a_trusted_class_is_imported(foreign: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, marker = foreign
    kind = experiment_of(declared(f"{name}:Theirs"), trusted=[f"{name}:Theirs"])
    assert marker.exists()
    assert kind.title == "Theirs"
    assert kind is sys.modules[name].Theirs
    # Once it is imported, no trust is needed to find it.
    assert experiment_of(declared(f"{name}:Theirs")) is kind
    assert experiment_of(declared(f"{name}:Theirs.Inner")) is kind.Inner  # type: ignore[attr-defined]
    assert experiment_of(declared(f"{name}:Other")) is Experiment
    monkeypatch.delitem(sys.modules, name)


def test_a_class_that_the_command_names_brings_the_experiments_of_its_module(
    foreign: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = foreign
    kind = experiment_of(declared(f"{name}:Theirs"), trusted=[f"{name}:Other"])
    assert kind.title == "Theirs"
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=f"'{name}:Othr', which cannot be imported .*did you mean 'Other'"):
        experiment_of(declared(f"{name}:Theirs"), trusted=[f"{name}:Othr"])
    monkeypatch.delitem(sys.modules, name)


def test_a_file_is_imported_only_if_the_command_names_it(foreign: tuple[str, Path], tmp_path: Path) -> None:
    name, marker = foreign
    file = tmp_path / f"{name}.py"
    declaration = declared(f"bertsecrets.files.{quote(str(file)).replace('.', '%2E')}:Theirs")
    assert experiment_of(declaration) is Experiment
    assert not marker.exists()
    kind = experiment_of(declaration, trusted=[f"{file}:Other"])
    assert kind.title == "Theirs"
    assert kind().declaration().experiment == declaration.experiment


@pytest.mark.parametrize("kind", [Drift, Disabling, GradientFlow, CaptureMaps, Local])
def test_classes_declare_what_finds_them_again(kind: type[Experiment]) -> None:
    # Without a run, a folder or a model.
    experiment = kind.__new__(kind)
    assert experiment_of(experiment.declaration()) is kind


def test_an_instance_declares_its_name_title_class_and_columns() -> None:
    local = Local()
    assert local.declaration() == Declaration("local", "Local", f"{__name__}:Local", (Column("a", "a"),))
    columns = (Column("accuracy_uniform", "accuracy"),)
    assert Disabling(columns).declaration() == Declaration(
        "ablation", "Disabled heads", "bertsecrets.ablation.experiment:Disabling", columns
    )


@pytest.mark.parametrize(
    "experiment",
    [
        "",
        ":",
        "bertsecrets",
        "bertsecrets:Drift",
        "bertsecrets.measures.drift:Gone",
        "bertsecrets.gone:Drift",
        "bertsecrets..measures:Drift",
        "bertsecrets.grid:Column",
        "bertsecrets.measures.drift:np.nanmean",
        "no such module:Thing",
    ],
)
def test_what_is_not_at_hand_is_described_by_the_defaults(experiment: str) -> None:
    assert experiment_of(declared(experiment)) is Experiment
