"""The page that follows Voita et al. 2019, against numbers put into the runs by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from reporting.finished_runs import make_run

from bertsecrets.measures.roles import Roles
from bertsecrets.papers.chapter import Chapter, PaperRuns
from bertsecrets.papers.voita2019.heads import gates, last_to_go, roles
from bertsecrets.papers.voita2019.page import PAPER
from bertsecrets.pruning.gates_experiment import CausalGates
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run

LOCAL_LH = np.array([[9.0, 9.0, 9.0, 9.0], [1.0] * 4, [1.0] * 4])


def chapter_of(make: Callable[[PaperRuns], Chapter | None], folder: Path) -> Chapter:
    chapter = make(PaperRuns(*find_conditions(find_runs([str(folder)])[0])))
    assert chapter is not None
    return chapter


def verdicts(chapter: Chapter) -> list[bool | None]:
    return [claim.holds for claim in chapter.claims]


def a_run(folder: Path, shut_LH: ArrayLike, low: float, high: float) -> Path:
    """A run with local heads in layer 0, gates, and a path whose last point keeps 3 of 12 heads."""
    columns = {"pushed_shut": np.asarray(shut_LH, float), "pushed_open": np.ones((3, 4))}
    made = make_run(
        folder / "run",
        measured=[
            ("checkpoint", "roles", {"local": LOCAL_LH, "syntactic": np.ones((3, 4))}),
            ("checkpoint", "causal_gates", columns),
        ],
    )
    run = Run.open(made)
    rows = [
        {
            "score": "gates",
            "seed": 0,
            "penalty": 0.1 * place,
            "kept": kept,
            "change": (low + high) / 2,
            "low": low,
            "high": high,
            "loss": 1.0,
        }
        for place, kept in enumerate((9, 3))
    ]
    content = {
        "metric": "accuracy",
        "level": 0.95,
        "examples": 400,
        "curves": rows,
        "penalty": 0.01,
        "steps": 1,
        "choosing": 8,
    }
    run.write_json(run.extras_path("causal_gates"), {"model": content})
    thresholds = {"local": 3.0, "syntactic": 3.0}
    run.write_json(run.extras_path("roles"), {"model": {"thresholds": thresholds}})
    run.declare(CausalGates().declaration(), Roles(1, 1).declaration())
    return made


@pytest.mark.parametrize(("low", "high", "holds"), [(-0.005, 0.02, True), (-0.05, -0.02, False), (-0.05, 0.02, None)])
def test_gates_prune_only_as_far_as_the_interval_says(
    tmp_path: Path, low: float, high: float, holds: bool | None
) -> None:
    a_run(tmp_path, np.zeros((3, 4)), low, high)
    assert verdicts(chapter_of(gates, tmp_path)) == [holds]


@pytest.mark.parametrize(
    ("open_heads", "holds"), [((0, 1, 2, 3), True), ((4, 5, 6, 7, 8, 9, 10, 11), False), ((0, 1, 4, 5, 8, 9), None)]
)
def test_heads_with_a_role_are_compared_with_the_others(
    tmp_path: Path, open_heads: tuple[int, ...], holds: bool | None
) -> None:
    shut_LH = np.isin(np.arange(12), open_heads).reshape(3, 4)
    a_run(tmp_path, shut_LH, 0, 0.1)
    assert verdicts(chapter_of(last_to_go, tmp_path)) == [holds]


def test_roles_are_counted_and_the_page_is_written(tmp_path: Path) -> None:
    a_run(tmp_path / "runs", np.zeros((3, 4)), 0, 0.1)
    chapter = chapter_of(roles, tmp_path / "runs")
    assert chapter.section.tables[1].rows[0][:4] == ["mrpc", "12", "4", "0"]
    # No syntactic head is shown, which refutes nothing.
    assert verdicts(chapter) == [None, None]
    page = PAPER.write(find_runs([str(tmp_path / "runs")])[0], tmp_path / "page")
    assert "Section 5: roles of heads" in page.read_text("utf-8")
