"""The page that follows Michel et al. 2019, against numbers put into the runs by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers.chapters import chapter_of, verdicts
from reporting.finished_runs import make_run
from scipy import stats

from bertsecrets.papers.michel2019.ablation import one_head, other_data
from bertsecrets.papers.michel2019.page import PAPER
from bertsecrets.papers.michel2019.pruning import curves, efficiency
from bertsecrets.pruning.experiment import Pruning
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run


def pruned_run(
    folder: Path,
    seed: int,
    exact: float,
    random: float,
    *,
    kept: int | None,
    latency: tuple[float, float] = (10, 8),
    p_constant: float | None = None,
) -> None:
    """A pruned run of 12 heads: changes of the exact and of two random orders, each with an interval of two points."""
    run = Run.open(
        make_run(
            folder / f"run{seed}",
            seed=seed,
            p_constant=p_constant,
            measured=[("checkpoint", "pruning", {"kept": np.ones((3, 4))})],
        )
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


@pytest.mark.parametrize(
    ("exact", "holds"),
    [
        # Less the mean of the random orders, -0.105: t intervals of 0.055 +- 0.038 and 0.055 +- 0.108.
        ((-0.04, -0.05, -0.06, -0.05), True),
        ((0.0, -0.05, -0.1, -0.05), None),
        ((-0.16, -0.15, -0.17, -0.16), False),
    ],
)
def test_an_order_beats_random_ones_by_an_interval_over_seeds(
    tmp_path: Path, exact: tuple[float, ...], holds: bool | None
) -> None:
    for seed, change in enumerate(exact):
        pruned_run(tmp_path, seed + 1, change, -0.1, kept=2)
    differences = np.array(exact) + 0.105
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    assert (True if low > 0 else False if high < 0 else None) == holds
    assert verdicts(chapter_of(curves, tmp_path))[1] is holds


def test_pruning_a_model_that_learned_nothing_shows_nothing(tmp_path: Path) -> None:
    for seed in (1, 2):
        pruned_run(tmp_path, seed, 0.0, -0.1, kept=2, p_constant=0.5)
    assert verdicts(chapter_of(curves, tmp_path)) == [None, None]


def add_order(folder: Path, score: str, change: float, kept: int | None) -> None:
    """Put another order into the pruned runs, with the smallest model that is shown on it."""
    for path in folder.glob("*/pruning.json"):
        content = json.loads(path.read_text())
        own = [row for row in content["model"]["curves"] if row["score"] == "exact"]
        noise = 0.001 * int(path.parent.name[-1])
        content["model"]["curves"] += [{**row, "score": score, "change": change + noise, "latency": {}} for row in own]
        content["model"] |= {"from_tables": [], "shown": {score: kept, "exact": None}}
        path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "kept", "expected"), [(0.0, 2, [True, True, True]), (-0.3, None, [False, False, False])]
)
def test_the_papers_score_is_judged_where_it_was_taken(
    tmp_path: Path, change: float, kept: int | None, expected: list[bool | None]
) -> None:
    for seed in (1, 2):
        pruned_run(tmp_path, seed, -0.05, -0.1, kept=2)
    add_order(tmp_path, "head_gradient/example_normalised", change, kept)
    chapter = chapter_of(curves, tmp_path)
    assert verdicts(chapter) == expected
    assert [row[2] for row in chapter.section.tables[1].rows] == ["head_gradient/example_normalised"] * 3 + [
        "exact"
    ] * 3
    assert "This is I_h of the paper" in chapter.section.paragraphs[-1]


def test_one_seed_does_not_show_that_the_order_matters(tmp_path: Path) -> None:
    pruned_run(tmp_path, 1, 0.0, -0.1, kept=2)
    assert verdicts(chapter_of(curves, tmp_path)) == [True, None]


@pytest.mark.parametrize(("high", "holds"), [(8.0, True), (11.0, None)])
def test_a_faster_model_is_faster_in_most_rounds(tmp_path: Path, high: float, holds: bool | None) -> None:
    pruned_run(tmp_path, 1, 0.0, -0.1, kept=2, latency=(10, high))
    assert verdicts(chapter_of(efficiency, tmp_path)) == [holds]


def test_single_heads_are_counted_and_compared_between_tasks(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    delta_LH = -np.abs(generator.normal(size=(3, 4))) / 100
    few_LH = np.zeros((3, 4), bool)
    few_LH[0, 1] = True
    make_run(tmp_path / "a", task="mrpc", delta_LH=delta_LH, significant_LH=few_LH, dispensable_LH=~few_LH)
    make_run(tmp_path / "b", task="rte", delta_LH=2 * delta_LH, significant_LH=~few_LH)
    chapter = chapter_of(one_head, tmp_path)
    assert verdicts(chapter) == [False]
    assert "in 1 of 2 (not for rte)" in chapter.claims[0].here
    assert [row[4:7] for row in chapter.section.tables[1].rows] == [
        ["1.0 of 12", "11.0", "0.0"],
        ["11.0 of 12", "0.0", "0.0"],
    ]
    chapter = chapter_of(other_data, tmp_path)
    assert verdicts(chapter) == [True]
    assert chapter.section.tables[1].rows[0][2] == "1.00"


@pytest.mark.parametrize(
    ("significant", "dispensable", "p_constant", "holds"),
    [
        (0, 0, None, None),
        (0, 6, None, None),
        (0, 7, None, True),
        (7, 0, None, False),
        (0, 7, 0.5, None),
        (7, 0, 0.5, None),
    ],
)
def test_that_few_heads_matter_takes_evidence_and_a_model_that_learned(
    tmp_path: Path, significant: int, dispensable: int, p_constant: float | None, holds: bool | None
) -> None:
    place_LH = np.arange(12).reshape(3, 4)
    for seed in (1, 2):
        make_run(
            tmp_path / f"run{seed}",
            seed=seed,
            delta_LH=-0.01 - place_LH / 1000,
            significant_LH=place_LH < significant,
            dispensable_LH=place_LH < dispensable,
            p_constant=p_constant,
        )
    chapter = chapter_of(one_head, tmp_path)
    assert verdicts(chapter) == [holds]
    assert any("Nothing was learned" in text for text in chapter.section.paragraphs) == (p_constant == 0.5)


def test_tasks_are_compared_only_if_both_were_learned(tmp_path: Path) -> None:
    delta_LH = np.arange(12).reshape(3, 4) / 100
    make_run(tmp_path / "a", task="mrpc", delta_LH=delta_LH, p_constant=0.001)
    make_run(tmp_path / "b", task="rte", delta_LH=delta_LH, p_constant=0.5)
    make_run(tmp_path / "c", task="sst2", delta_LH=delta_LH, p_constant=0.001)
    [claim] = chapter_of(other_data, tmp_path).claims
    assert "for mrpc and sst2; cannot be told for mrpc and rte, rte and sst2" in claim.here


def test_the_page_is_written(tmp_path: Path) -> None:
    pruned_run(tmp_path / "runs", 1, 0.0, -0.1, kept=2)
    page = PAPER.write(find_runs([str(tmp_path / "runs")])[0], tmp_path / "page")
    assert "Section 4, figure 3: iterative pruning of attention heads" in page.read_text("utf-8")
