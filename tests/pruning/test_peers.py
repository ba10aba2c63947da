"""The table of smaller models side by side, and what it says of them."""

import math
from typing import Any

import pytest

from benchmarks.shrink import limits_of, over_seeds, summary_of, table_of
from bertsecrets.statistics.replicates import interval_over_seeds


def row(method: str, seed: int, smaller: float, speedup: float = 2.0, taught: int = 3000) -> dict[str, Any]:
    return {
        "run": "minilm on sst2",
        "method": method,
        "seed": seed,
        "examples": 872,
        "tests": [{"metric": "accuracy", "whole": 0.85, "smaller": smaller, "bound": 0.01 * seed, "high": 0.02}],
        "speedup": {"1": speedup / 2, "32": speedup},
        "rows": taught,
    }


OURS = [row("ours", seed, 0.79 + 0.03 * seed) for seed in (1, 2, 3)]
"""Three seeds with changes of −3, 0 and 3 points, each with limits one point away."""
for _seed, _change in zip(OURS, (-0.03, 0.0, 0.03), strict=True):
    _seed["tests"][0] |= {"bound": 0.01 - _change, "high": _change + 0.01}


def test_the_table_has_means_over_seeds_and_says_where_ours_loses() -> None:
    rows = [*OURS, row("layers", 3, 0.83, 1.9), row("int8", 1, 0.855, 2.5)]
    table = table_of(rows)
    # Limits over seeds and examples, from each seed's of 90 % on two sides: not the mean of the seeds' limits, which is
    # −1.0.
    found = interval_over_seeds([[-3.0, -4.0, -2.0], [0.0, -1.0, 1.0], [3.0, 2.0, 4.0]], 0.9)
    assert found.low < -3
    bound = math.ceil(-10 * found.low) / 10
    assert f"| ours | 3 | 3,000 | 2.00; 1.00 | 0.850 | +0.0 (−3.0 to +3.0) | {bound:.1f} |" in table
    assert "| layers | 1 | 3,000 | 1.90; 0.95 | 0.830 | −2.0 | 3.0 |" in table
    assert table.endswith(
        "Where ours loses:\n\n"
        "- minilm on sst2 (0.850), to int8: +0.5 points, 2.50 in place of 2.00 times as fast, losses above 1.0 in "
        f"place of {bound:.1f} points ruled out."
    )
    assert "loses" not in table_of(rows[:4])
    # A lower score, but less of a loss left open and no less speed.
    assert "to int8: −0.5 points" in table_of([*rows[:4], row("int8", 1, 0.845)])
    assert "loses" not in table_of([*rows[:4], row("int8", 1, 0.845, 1.9)])


def test_limits_of_accuracy_are_exact_and_those_of_a_second_search_wider() -> None:
    unchanged = row("ours", 1, 0.85)
    unchanged["tests"][0] |= {"lost": 0, "won": 0}
    # Clopper and Pearson's limit of no event: 1 - alpha^(1/N).
    assert limits_of(unchanged)[1:] == pytest.approx(
        [-100 * (1 - 0.05 ** (1 / 872)), 100 * (1 - 0.05 ** (1 / 872))], abs=1e-4
    )
    alpha = 0.05 * 2 / 9
    assert limits_of({**unchanged, "search": 2})[1] == pytest.approx(-100 * (1 - alpha ** (1 / 872)), abs=1e-4)
    assert "(search 2)" in summary_of([{**unchanged, "search": 2}])


def test_the_summary_has_a_row_for_each_fine_tuning_with_the_best_of_the_others() -> None:
    other = row("ours, int8", 1, 0.89, 4.0)
    other["tests"][0]["whole"] = 0.9
    rows = [*OURS, row("ours", 1, 0.7, taught=100), row("layers", 3, 0.83), other]
    rows.append(row("int8", 1, 0.855, 2.5, taught=0))
    low, high = (f"{limit:+.1f}".replace("-", "−") for limit in (over_seeds(OURS).low, over_seeds(OURS).high))
    assert summary_of(rows).splitlines()[2:] == [
        f"| minilm on sst2, accuracy 0.850 | 2.0×, 0.0 ({low} to {high}) | – | int8: 2.5×, +0.5 (−1.0 to +2.0) |",
        "| minilm on sst2, accuracy 0.900 | – | 4.0×, −1.0 (−1.0 to +2.0) | – |",
    ]


def test_two_fine_tunings_of_a_model_are_not_mixed() -> None:
    other = row("ours", 2, 0.89)
    other["tests"][0]["whole"] = 0.9
    lines = table_of([row("ours", 1, 0.84), other]).splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| **")] == [
        "| **minilm on sst2**: accuracy 0.850 on 872 examples",
        "| **minilm on sst2**: accuracy 0.900 on 872 examples",
    ]
    assert [line.split(" | ")[5] for line in lines if line.startswith("| ours")] == ["−1.0", "−1.0"]


def test_a_method_stands_beside_ours_taught_on_as_many_rows() -> None:
    rows = [
        row("ours", 1, 0.88, taught=20000),
        row("ours", 1, 0.84),
        row("layers", 2, 0.85),
        row("int8", 2, 0.87, taught=0),
    ]
    table = table_of(rows)
    assert [line.split(" | ")[2] for line in table.splitlines() if line.startswith("| ours")] == ["20,000", "3,000"]
    # Whole layers beat ours of 3,000 rows, 8-bit weights do not beat ours of 20,000.
    assert "to layers: +1.0 points" in table
    assert "to int8" not in table
