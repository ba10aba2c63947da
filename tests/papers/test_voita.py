"""The page that follows Voita et al. 2019, against numbers put into the runs by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from papers.chapters import chapter_of, verdicts
from reporting.finished_runs import make_run

from bertsecrets.measures.voita_roles import VoitaRoles
from bertsecrets.papers.voita2019.heads import gates, last_to_go, roles
from bertsecrets.papers.voita2019.page import PAPER
from bertsecrets.pruning.gates_experiment import CausalGates
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run

PREVIOUS_LH = np.array([[0.99, 0.99, 0.99, 0.91], [0.1] * 4, [0.1] * 4])


def roles_measured(**shares: ArrayLike) -> dict[str, ArrayLike]:
    """Columns of ``voita_roles``: four positional heads in layer 0, one of them not significantly; others low unless given."""
    low_LH = np.full((3, 4), 0.1)
    names = ("next", "nsubj", "nsubj_from_head", "obj", "obj_from_head", "rarest", "two_rarest")
    return {"previous": PREVIOUS_LH, **dict.fromkeys(names, low_LH), **shares}


def a_run(
    folder: Path,
    shut_LH: ArrayLike,
    low: float,
    high: float,
    *,
    seed: int = 1,
    p_constant: float | None = None,
    path: Sequence[tuple[int, float, float]] | None = None,
    **shares: ArrayLike,
) -> Path:
    """A run with positional heads in layer 0, gates, and a path whose last point keeps 3 of 12 heads, or one of its own."""
    columns = {"pushed_shut": np.asarray(shut_LH, float), "pushed_open": np.ones((3, 4))}
    made = make_run(
        folder / f"run{seed}",
        seed=seed,
        p_constant=p_constant,
        measured=[
            ("checkpoint", "voita_roles", roles_measured(**shares)),
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
            "change": (at + to) / 2,
            "low": at,
            "high": to,
            "loss": 1.0,
        }
        for place, (kept, at, to) in enumerate(path or [(9, low, high), (3, low, high)])
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
    extras = {
        "thresholds": {"positional": 0.9, "gain": 0.1, "rare": 0.5},
        "min_count": 100,
        "baselines": {"nsubj": {"count": 200, "share": 0.3}, "obj": {"count": 99, "share": 0.3}},
    }
    run.write_json(run.extras_path("voita_roles"), {"model": extras})
    run.declare(CausalGates().declaration(), VoitaRoles(1, 1).declaration())
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


PASSED, FAILED, LOST = (-0.005, 0.01), (-0.03, 0.01), (-0.05, -0.02)


@pytest.mark.parametrize(
    ("path", "holds"),
    [
        ([(9, *FAILED), (5, *PASSED), (3, *FAILED)], True),
        # The second look at fewer than half of the heads does not count after a first that failed.
        ([(9, *PASSED), (5, *FAILED), (3, *PASSED)], None),
        ([(9, *PASSED), (5, *LOST), (3, *LOST)], False),
        ([(9, *PASSED), (5, *LOST), (3, *FAILED)], None),
        ([(9, *PASSED), (7, *PASSED)], None),
    ],
)
def test_a_path_is_tested_in_order_up_to_the_first_failure(
    tmp_path: Path, path: list[tuple[int, float, float]], holds: bool | None
) -> None:
    a_run(tmp_path, np.zeros((3, 4)), 0, 0, path=path)
    assert verdicts(chapter_of(gates, tmp_path)) == [holds]


@pytest.mark.parametrize(
    ("special", "p_constant", "holds"),
    [((0, 1, 1), None, True), ((1, 0, 0), None, None), ((1, 1, 1), 0.5, None), ((-1, -1, 1), None, False)],
)
def test_heads_with_a_role_stay_in_most_seeds_of_a_model_that_learned(
    tmp_path: Path, special: tuple[int, ...], p_constant: float | None, holds: bool | None
) -> None:
    first_LH = np.arange(12).reshape(3, 4) < 4
    kept = {1: first_LH, -1: ~first_LH, 0: np.ones((3, 4))}
    for seed, which in enumerate(special):
        a_run(tmp_path, kept[which], 0, 0.1, seed=seed + 1, p_constant=p_constant)
    chapter = chapter_of(last_to_go, tmp_path)
    assert verdicts(chapter) == [holds]
    assert [row[:2] for row in chapter.section.tables[1].rows] == [["mrpc", str(seed)] for seed in (1, 2, 3)]


def test_roles_are_counted_and_the_page_is_written(tmp_path: Path) -> None:
    a_run(tmp_path / "runs", np.eye(3, 4), 0, 0.1)
    chapter = chapter_of(roles, tmp_path / "runs")
    assert chapter.section.tables[1].rows == [["mrpc", "12", "4 (3)", "0 (0)", "0 (0)"]]
    # All heads are far below the thresholds of the other roles.
    assert verdicts(chapter) == [True, False, False]
    row = chapter_of(last_to_go, tmp_path / "runs").section.tables[1].rows[0]
    assert row[:7] == ["mrpc", "1", "1 of 4", "0 of 0", "0 of 0", "1 of 4", "2 of 8"]
    page = PAPER.write(find_runs([str(tmp_path / "runs")])[0], tmp_path / "page")
    assert "Section 5: roles of heads" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("nsubj", "rare", "expected"),
    [
        # 0.4 is the threshold of nsubj; the standard error is 0.01.
        (0.45, 0.55, [True, True]),
        (0.41, 0.49, [None, None]),
        (0.35, 0.45, [False, False]),
    ],
)
def test_a_role_takes_a_head_significantly_above_its_threshold(
    tmp_path: Path, nsubj: float, rare: float, expected: list[bool | None]
) -> None:
    for seed in (1, 2):
        nsubj_LH, rare_LH = np.full((3, 4), 0.1), np.full((3, 4), 0.1)
        nsubj_LH[2, seed], rare_LH[0, seed] = nsubj, rare
        # Rare words count in layer 0 alone.
        rare_LH[1, 0] = 0.9
        a_run(tmp_path, np.zeros((3, 4)), 0, 0.1, seed=seed, nsubj_from_head=nsubj_LH, two_rarest=rare_LH)
    assert verdicts(chapter_of(roles, tmp_path)) == [True, *expected]
