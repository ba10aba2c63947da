"""What the benchmark of the papers' pages stores, and what the documentation shows of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import papers


@pytest.fixture(scope="module")
def stored() -> dict[str, object]:
    return json.loads(papers.RESULTS.read_text("utf-8"))


def test_the_tables_of_the_pages_are_the_stored_ones(
    stored: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = {page: tmp_path / document.name for page, document in papers.DOCUMENTS.items()}
    for page, document in papers.DOCUMENTS.items():
        copies[page].write_text(document.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(papers, "DOCUMENTS", copies)
    papers.update(stored)
    for copy in copies.values():
        assert copy.read_text("utf-8") == (papers.ROOT / "docs" / copy.name).read_text("utf-8")
    page, copy = next(iter(copies.items()))
    copy.write_text("<!-- No such table -->\n| |\n\n", "utf-8")
    with pytest.raises(ValueError, match="asks for the table 'No such table', of which 0 are stored"):
        papers.update(stored)


def test_agreement_of_tasks_is_that_of_mean_effects(stored: dict[str, object]) -> None:
    runs = json.loads((papers.RESULTS.parent / "dark_secrets.json").read_text("utf-8"))["runs"]
    means = [
        np.mean(
            [
                run["head"]["delta"]
                for run in runs
                if (run["model"], run["init"], run["task"]) == ("minilm", "pretrained", task)
            ],
            axis=0,
        )
        for task in ("rte", "stsb")
    ]
    assert stored["shared_heads"]["minilm: rte, stsb"][0] == pytest.approx(stats.spearmanr(*means).statistic)  # type: ignore[index]


def test_agreement_with_figure_8_is_that_of_its_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs_LH = np.arange(144.0).reshape(12, 12)
    (tmp_path / "fig8.json").write_text(json.dumps({"MRPC": theirs_LH.tolist(), "QNLI": theirs_LH.tolist()}))
    monkeypatch.setattr(papers, "_effects", lambda model: {"mrpc": -np.arange(144.0)[None], "cola": np.zeros((1, 144))})
    agreement = papers.figure_8(tmp_path)
    assert set(agreement) == {"mrpc"}
    assert agreement["mrpc"]["seeds"] == 1
    assert agreement["mrpc"]["heads"][0] == pytest.approx(-1)
    assert agreement["mrpc"]["layers"][0] == pytest.approx(-1)
