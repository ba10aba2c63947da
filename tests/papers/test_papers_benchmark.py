"""What the benchmark of the papers' pages stores."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import papers


@pytest.fixture(scope="module")
def stored() -> dict[str, object]:
    return json.loads(papers.RESULTS.read_text("utf-8"))


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
