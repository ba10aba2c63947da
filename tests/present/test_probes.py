"""The section on probes, against rows put together by hand."""

from pathlib import Path

import pytest

from bertsecrets.present.probes import PRESENTER
from bertsecrets.probes.experiment import Probes
from bertsecrets.probes.rows import Difference, HiddenState, Probed, ProbeScore, Structural
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Run
from bertsecrets.results.views import Comparison, MeasureView, Replicates

PROBED = Probed("ud", 100, 1, 900, True, 1, 2, "glove.txt", 30, 50, False, 1, 0.1, 32, 0, 0, 0.0)


def share(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05, n=100)


FOUND = [
    PROBED,
    ProbeScore("right_branching", share(0.25), share(0.2), None, None, 0, 0.0),
    ProbeScore("attention", share(0.6), share(0.5), share(0.1), share(0.5), 26, 1.0),
    Difference("attention", "right_branching", share(0.35)),
    Structural(800, 64, 10, share(0.3), share(0.4), 1.0),
    *(HiddenState(state, share(0.4 + 0.3 * (state == 1)), state == 1) for state in range(3)),
]


def view(folder: Path, found: list[object]) -> MeasureView:
    run = Run(folder, "r", "m", "t", "pretrained")
    run.write_rows("probes", "checkpoint", 0, found)
    return MeasureView(run, Probes().declaration())


def test_the_section_has_the_papers_table(tmp_path: Path) -> None:
    section = PRESENTER.section(view(tmp_path, FOUND))
    assert section is not None
    scores, differences, states = section.tables
    assert scores.rows[1] == [
        "attention",
        "60.0 (55.0 to 65.0)",
        "50.0 (45.0 to 55.0)",
        "10.0 (5.0 to 15.0)",
        "+50.0 (+45.0 to +55.0)",
        "26",
    ]
    assert scores.rows[0][3:5] == ["–", "–"]
    assert differences.rows == [["attention less right-branching", "+35.0 (+30.0 to +40.0)"]]
    assert [row[0] for row in states.rows] == [
        "neighbouring words",
        "the embeddings",
        "layer 0, chosen",
        "layer 1",
        "chosen less the embeddings",
    ]
    assert section.findings == [
        "A probe on attention finds the syntactic heads of 60.0 (55.0 to 65.0) % of the words of ud; right-branching "
        "25.0 %.",
        "The structural probe finds 70.0 (65.0 to 75.0) % of the trees' edges in the vectors of layer 0; embeddings "
        "40.0 %, neighbouring words 40.0 %.",
    ]
    assert [block.name for block in section.figures] == ["probes"]
    assert section.figures[0].figure.axes


def test_scores_are_logged_and_compared(tmp_path: Path) -> None:
    found = view(tmp_path, FOUND)
    assert PRESENTER.scalars(found) == pytest.approx(
        {
            "right_branching/uas": 25,
            "right_branching/las": 20,
            "attention/uas": 60,
            "attention/las": 50,
            "attention/selectivity": 50,
            "structural/uuas": 70,
        }
    )
    section = PRESENTER.comparison(Comparison({"a": Replicates([found]), "b": Replicates([found, found])}))
    assert section is not None
    assert section.paragraphs[0].endswith("; mean over 1 to 2 seeds.")
    assert section.tables[0].rows == [
        ["right-branching", "25.0", "25.0"],
        ["attention", "60.0", "60.0"],
        ["structural probe, edges without direction", "70.0", "70.0"],
    ]
