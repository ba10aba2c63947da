"""The notebooks run from top to bottom without network, in the order of their numbers, and are committed without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
FINE_TUNING = ("02_which_heads_matter", "03_what_fine_tuning_changed", "05_pruning")
"""The notebooks that fine-tune a model, once, which takes most of their time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder; the first notebook that fine-tunes a model leaves it there for the others."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in FINE_TUNING)) for path in NOTEBOOKS],
)
def test_a_notebook_runs(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) or "image/png" in output.get("data", {}) for output in shown)
    assert not [output for output in shown if output.output_type == "error"]


def test_there_are_five_and_they_are_committed_without_outputs() -> None:
    assert [path.stem.partition("_")[0] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert cells[0].cell_type == "markdown"
        assert "You will" in cells[0].source
        code = [cell for cell in cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)
        assert not any("bertsecrets." in cell.source for cell in code), "only the public API"
