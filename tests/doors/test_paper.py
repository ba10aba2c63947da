"""The page that follows the paper, against numbers put into the runs by hand."""

from html import unescape
from pathlib import Path

import numpy as np
import pytest
from comparison.runs import make_run

from bertsecrets.comparison.runs import find_runs
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.page import write_paper


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two tasks, two initialisations, two seeds; on RTE the change is largest at the bottom."""
    for task, drift_L in (("mrpc", [0.9, 0.5, 0.4]), ("rte", [0.3, 0.9, 0.8])):
        for init, accuracy in (("pretrained", 0.8), ("random_normal", 0.68)):
            for seed in (1, 2):
                make_run(
                    tmp_path / f"{task}-{init}-{seed}",
                    task=task,
                    init=init,
                    seed=seed,
                    accuracy=accuracy + 0.01 * seed,
                    model={"name": "bert_base", "path": "model"},
                    cosine_LH=np.repeat(np.array(drift_L)[:, None], 2, axis=1),
                    delta_LH=np.array([[0.02, -0.01], [-0.03, 0.0], [-0.02, -0.01]]) - (0.05 if task == "rte" else 0),
                )
    return tmp_path


def test_claims_and_published_numbers_stand_beside_what_was_put_in(sweep: Path) -> None:
    runs, _ = find_runs([str(sweep)])
    text = unescape(write_paper(runs, sweep / "page").read_text())
    # Table 1 of the paper: 82.3 pre-trained, 68.3 random for MRPC's accuracy.
    assert "82.3 / 68.3" in text
    # Means of 0.81 and 0.82 with t(1) at 97.5 %: 12.71 * 0.00707 / sqrt(2) = 0.0635
    assert "81.5 ± 6.4" in text
    assert "The mean score is higher in all 2." in text
    assert "The two layers with the lowest mean are the last two in 1 of 2 (not for rte)." in text
    assert "Layer 0 changes least in 1 of 2 (not for rte)." in text
    # In the figure MRPC's first layer has 0.97 and its last 0.41.
    assert ".97 .93 .89 .78 .79 .87 .84 .76 .64 .67 .37 .41" in text
    assert ".90 .50 .40" in text
    # RTE: 2 points less 5 is the best head's change.
    assert "The best head's mean change is above 0 in 1 of 2 (not for rte)" in text
    assert "0.883: 0.876 to 0.894" in text
    assert "0.770 to 0.820" in text
    assert (sweep / "page" / "figures" / "paper_figure8.png").is_file()


def test_another_model_is_not_held_to_published_numbers(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / str(seed), seed=seed, cosine_LH=np.ones((2, 2)))
    text = write_paper(find_runs([str(tmp_path)])[0], tmp_path / "page").read_text()
    assert "published numbers are left out" in text
    assert "82.3 / 68.3" not in text
    assert ".97 .93" not in text


def test_how_often_a_claim_holds_is_said_with_its_exceptions() -> None:
    assert held(["a", "b"], ["a", "b"]) == "in all 2"
    assert held(["a"], ["a"]) == "for a"
    assert held(["a"], ["a", "b", "c"]) == "in 1 of 3 (not for b, c)"
    rows = claims_table([Claim("x", "y", True), Claim("x", "y", False), Claim("x", "y", None)]).rows
    assert [row[2] for row in rows] == ["agrees", "does not agree", "cannot be told"]
