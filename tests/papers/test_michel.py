"""The page that follows Michel et al. 2019, against numbers put into the runs by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting.finished_runs import make_run

from bertsecrets.papers.chapter import Chapter, PaperRuns
from bertsecrets.papers.michel2019.ablation import one_head, other_data
from bertsecrets.papers.michel2019.page import PAPER
from bertsecrets.papers.michel2019.pruning import curves, efficiency
from bertsecrets.pruning.experiment import Pruning
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run


def chapter_of(make: Callable[[PaperRuns], Chapter | None], folder: Path) -> Chapter:
    chapter = make(PaperRuns(*find_conditions(find_runs([str(folder)])[0])))
    assert chapter is not None
    return chapter


def verdicts(chapter: Chapter) -> list[bool | None]:
    return [claim.holds for claim in chapter.claims]


def pruned_run(
    folder: Path, seed: int, exact: float, random: float, *, kept: int | None, latency: tuple[float, float] = (10, 8)
) -> None:
    """A pruned run of 12 heads: changes of the exact and of two random orders, each with an interval of two points."""
    run = Run.open(
        make_run(folder / f"run{seed}", seed=seed, measured=[("checkpoint", "pruning", {"kept": np.ones((3, 4))})])
    )
    rows = [
        {
            "score": score,
            "seed": order,
            "kept": left,
            "change": change,
            "low": change - 0.02,
            "high": change + 0.02,
            "loss": 0.5,
            "parameters": 90,
            "flops": 80,
            "latency": {"32": {"whole": 10.0, "smaller": latency[1] - 1, "low": latency[1] - 2, "high": latency[1]}}
            if score == "exact"
            else {},
        }
        for score, order, change in (("exact", 0, exact), ("random", 0, random), ("random", 1, random - 0.01))
        for left in (8, 6, 2)
    ]
    chosen = {"score": "exact", "kept": kept or 8, "holds": kept is not None, "asked": False, "p_value": 0.01}
    content: dict[str, Any] = {
        "metric": "accuracy",
        "total": 12,
        "margin": 0.01,
        "confidence": 0.95,
        "examples": 400,
        "choosing": 64,
        "iterative": False,
        "curves": rows,
        "chosen": chosen,
    }
    run.write_json(run.extras_path("pruning"), {"model": content})
    run.declare(Pruning().declaration())


@pytest.mark.parametrize(
    ("exact", "random", "kept", "expected"),
    [
        (0.0, -0.1, 2, [True, True]),
        (-0.2, -0.1, None, [False, False]),
        (-0.02, -0.01, 8, [None, False]),
    ],
)
def test_pruning_claims_follow_guarantee_and_random_orders(
    tmp_path: Path, exact: float, random: float, kept: int | None, expected: list[bool | None]
) -> None:
    for seed in (1, 2):
        pruned_run(tmp_path, seed, exact, random, kept=kept)
    chapter = chapter_of(curves, tmp_path)
    assert verdicts(chapter) == expected
    row = chapter.section.tables[1].rows[1]
    assert row[:3] == ["mrpc", "6 (50 %)", "exact"]
    assert row[3] == f"{100 * exact:.1f}".replace("-", "\N{MINUS SIGN}")


def test_one_seed_does_not_show_that_the_order_matters(tmp_path: Path) -> None:
    pruned_run(tmp_path, 1, 0.0, -0.1, kept=2)
    assert verdicts(chapter_of(curves, tmp_path)) == [True, None]


@pytest.mark.parametrize(("high", "holds"), [(8.0, True), (11.0, None)])
def test_a_faster_model_is_faster_in_most_rounds(tmp_path: Path, high: float, holds: bool | None) -> None:
    pruned_run(tmp_path, 1, 0.0, -0.1, kept=2, latency=(10, high))
    assert verdicts(chapter_of(efficiency, tmp_path)) == [holds]


def test_single_heads_are_counted_and_compared_between_tasks(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    delta_LH = generator.normal(size=(3, 4)) / 100
    few_LH = np.zeros((3, 4), bool)
    few_LH[0, 1] = True
    make_run(tmp_path / "a", task="mrpc", delta_LH=delta_LH, significant_LH=few_LH)
    make_run(tmp_path / "b", task="rte", delta_LH=2 * delta_LH, significant_LH=~few_LH)
    chapter = chapter_of(one_head, tmp_path)
    assert verdicts(chapter) == [False]
    assert "in 1 of 2 (not for rte)" in chapter.claims[0].here
    chapter = chapter_of(other_data, tmp_path)
    assert verdicts(chapter) == [True]
    assert chapter.section.tables[1].rows[0][2] == "1.00"


def test_heads_of_a_model_that_learned_nothing_are_not_judged(tmp_path: Path) -> None:
    quiet = {"delta_LH": np.zeros((3, 4)), "significant_LH": np.zeros((3, 4), bool)}
    make_run(tmp_path / "learned", p_constant=0.001, **quiet)
    make_run(tmp_path / "unlearned", p_constant=0.4, **quiet)
    assert verdicts(chapter_of(one_head, tmp_path / "learned")) == [True]
    chapter = chapter_of(one_head, tmp_path / "unlearned")
    assert verdicts(chapter) == [None]
    assert chapter.section.paragraphs[0].startswith("Nothing was learned")


def test_the_page_is_written(tmp_path: Path) -> None:
    pruned_run(tmp_path / "runs", 1, 0.0, -0.1, kept=2)
    page = PAPER.write(find_runs([str(tmp_path / "runs")])[0], tmp_path / "page")
    assert "Section 4, figure 3: iterative pruning of attention heads" in page.read_text("utf-8")
