"""The notebooks run from top to bottom without network, in the order of their numbers, and answer as their stored
outputs do.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
FINE_TUNING = ("02_which_heads_matter", "03_what_fine_tuning_changed", "05_pruning")
"""The notebooks that fine-tune a model, once, which takes most of their time."""


def answer(notebook: nbformat.NotebookNode) -> str:
    """The sentence that the last cell of code prints, without its numbers."""
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    printed = "".join(output.text for output in last.outputs if output.get("name") == "stdout")
    return re.sub(r"[−-]?\d+(\.\d+)?", "#", printed).strip()


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each cell of code shows: the media types of its result, without widgets of progress."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    results = [[output for output in cell.outputs if output.output_type == "execute_result"] for cell in code]
    return [sorted(kind for output in outputs for kind in output.data) for outputs in results]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder; the first notebook that fine-tunes a model leaves it there for the others."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in FINE_TUNING)) for path in NOTEBOOKS],
)
def test_a_notebook_runs_and_answers_as_stored(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    stored, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    assert kinds(notebook) == kinds(stored)
    assert re.sub("wider|narrower", "*", answer(notebook)) == re.sub("wider|narrower", "*", answer(stored))


def test_there_are_five_and_each_is_stored_with_an_answer() -> None:
    assert [path.stem.partition("_")[0] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        cells = notebook.cells
        assert cells[0].cell_type == "markdown"
        assert "You will" in cells[0].source
        code = [cell for cell in cells if cell.cell_type == "code"]
        assert not any("bertsecrets." in cell.source for cell in code), "only the public API"
        outputs = [output for cell in code for output in cell.outputs]
        assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
        assert any("text/html" in output.get("data", {}) or "image/png" in output.get("data", {}) for output in outputs)
        assert len(answer(notebook).split()) > 10
        assert path.stat().st_size < 2e6
