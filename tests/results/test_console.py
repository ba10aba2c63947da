import io
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bertsecrets.grid import HeadGrid
from bertsecrets.results.console import HeadLine, outstanding_heads, print_summary
from bertsecrets.results.score import Score
from bertsecrets.results.table import HeadTable


def printed(scores: list[Score], heads: list[HeadLine], path: Path, width: int = 80) -> str:
    out = io.StringIO()
    print_summary(Console(file=out, width=width), scores, heads, path)
    return out.getvalue()


def test_summary_shows_scores_heads_and_path() -> None:
    text = printed(
        [Score("accuracy", 0.8631, 0.6838, 0.017), Score("pearson [r]", 0.5, math.nan)],
        [HeadLine(5, 3, "cosine", 0.4123, 0.0101), HeadLine(11, 10, "cosine", 0.5, math.nan)],
        Path("out/report.html"),
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["accuracy", "0.863", "±", "0.017", "0.684"] in rows
    assert ["pearson", "[r]", "0.500", "–"] in rows
    assert "layer 5 · head 3     cosine 0.412 ± 0.010\n" in text
    assert "layer 11 · head 10   cosine 0.500\n" in text
    assert "Report: out/report.html\n" in text


def test_a_long_path_is_not_broken() -> None:
    path = Path("/very") / ("long" * 40) / "report.html"
    assert f"Report: {path}\n" in printed([], [], path, width=40)


@pytest.mark.parametrize(("first", "expected"), [("lowest", [(0, 1), (1, 0)]), ("highest", [(1, 2), (0, 0)])])
def test_outstanding_heads_come_in_order(first: str, expected: list[tuple[int, int]]) -> None:
    value_LHC = torch.tensor([[0.9, 0.1, math.nan], [0.2, 0.5, 0.95]])[:, :, None]
    grid = HeadGrid("drift", ("cosine",), value_LHC, value_LHC / 10, torch.ones(2, 3, 1))
    table = HeadTable.from_grid(grid, run="r", model="m", task="t", init="i", stage="s", step=3)
    lines = outstanding_heads(table, "drift", "cosine", "s", 3, first=first, limit=2)  # type: ignore[arg-type]
    assert [(line.layer, line.head) for line in lines] == expected
    assert lines[0].value == pytest.approx(value_LHC[expected[0]].item())
    assert lines[0].stderr == pytest.approx(value_LHC[expected[0]].item() / 10)
    everything = outstanding_heads(table, "drift", "cosine", "s", 3, first=first, limit=99)  # type: ignore[arg-type]
    assert (0, 2) not in [(line.layer, line.head) for line in everything]
    assert len(everything) == 5
