"""What reports, comparisons and the page on Kovaleva et al. say of patterns, from shares put in by hand."""

from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from reporting.finished_runs import make_run

from bertsecrets.grid import HeadGrid
from bertsecrets.papers.page import find_page
from bertsecrets.patterns.classes import over_seeds
from bertsecrets.patterns.measure import Patterns
from bertsecrets.present.patterns import PRESENTER
from bertsecrets.present.report.content import Section
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

DECLARATION = Patterns(1, 1).declaration()
VERTICAL, DIAGONAL, MIXED = (
    (0.8, 0.1, 0.0, 0.0, 0.1, 0.0),
    (0.0, 0.7, 0.1, 0.0, 0.2, 0.0),
    (0.3, 0.1, 0.1, 0.1, 0.4, 0.0),
)


def rows(
    shares: list[list[tuple[float, ...]]], stage: str, step: int, count: int = 100, task: str = "mrpc"
) -> HeadTable:
    share_LHC = torch.tensor(shares, dtype=torch.float64)
    error_LHC = (share_LHC * (1 - share_LHC) / (count - 1)).sqrt()
    grid = HeadGrid("patterns", Patterns.columns, share_LHC, error_LHC, torch.full(share_LHC.shape, count))
    return HeadTable.from_grid(grid, run="r", model="minilm", task=task, init="pretrained", stage=stage, step=step)


def section_of(table: HeadTable) -> Section | None:
    # The folder holds nothing: the section reads the table alone.
    return PRESENTER.section(MeasureView(Run(Path("nowhere"), "r", "m", "t", "pretrained"), DECLARATION, table))


def test_the_section_has_shares_heads_and_movement() -> None:
    table = HeadTable.concat(
        [
            rows([[VERTICAL, VERTICAL], [DIAGONAL, MIXED]], "initial", 0),
            rows([[VERTICAL, MIXED], [DIAGONAL, MIXED]], "training", 5),
            rows([[VERTICAL, DIAGONAL], [DIAGONAL, MIXED]], "training", 9),
        ]
    )
    section = section_of(table)
    assert section is not None
    lead = section.findings
    assert {block.name for block in section.figures} == {"patterns_shares", "patterns_heads"}
    transitions = section.tables[1]
    assert list(transitions.header) == [
        "before fine-tuning (rows), at step 9",
        "vertical",
        "diagonal",
        "vertical + diagonal",
        "block",
        "heterogeneous",
        "none",
    ]
    counts = {row[0]: list(row[1:]) for row in transitions.rows}
    assert counts["vertical"] == ["1", "1", "0", "0", "0", "0"]
    assert counts["none"] == ["0", "0", "0", "0", "0", "1"]
    # Diagonal: (0.1 + 0.7 + 0.7 + 0.1) / 4 = 40 %, vertical (0.8 + 0.3) / 4 = 27.5 %.
    assert "the most frequent pattern is diagonal (40 %); of 4 heads 3 show one pattern" in lead[0]
    assert "diagonal 2, vertical 1" in lead[0]
    # One vertical head became diagonal; its vertical share fell by 80 of 400 points, its diagonal share rose by 60.
    assert "before fine-tuning, 1 of the 3 heads with a pattern both times changed it" in lead[1]
    assert "vertical, by −20.0 percentage points" in lead[1]
    cells = {row[0]: row for row in section.tables[0].rows}
    assert cells["vertical"][2] == "layer 0 · head 0 (80 %)"
    errors = [np.sqrt(p * (1 - p) / 99) for p in (0.8, 0.0, 0.0, 0.3)]
    assert cells["vertical"][1] == f"27.5 % ± {196 * np.mean(errors):.1f} %"


def test_a_checkpoint_is_not_followed_by_later_training() -> None:
    table = HeadTable.concat(
        [
            rows([[VERTICAL]], "training", 5),
            rows([[DIAGONAL]], "training", 9),
            rows([[VERTICAL]], "checkpoint", 6),
        ]
    )
    section = section_of(table)
    assert section is not None
    assert "at step 5, 0 of the 1 heads with a pattern both times changed it" in section.findings[1]


def test_no_patterns_no_section_and_short_maps_say_so() -> None:
    assert section_of(HeadTable.empty()) is None
    none = torch.full((1, 1, 6), float("nan"))
    grid = HeadGrid("patterns", Patterns.columns, none, none, torch.zeros((1, 1, 6), dtype=torch.int64))
    table = HeadTable.from_grid(grid, run="r", model="m", task="t", init="pretrained", stage="checkpoint", step=1)
    section = section_of(table)
    assert section is not None
    assert "No example has the 8 tokens" in section.paragraphs[0]


def test_the_interval_over_heads_is_never_too_narrow() -> None:
    """Heads whose errors all have the same sign: the mean is as far off as each of them."""
    generator = np.random.default_rng(0)
    drawn = generator.random((2000, 50)) < 0.3
    # Two heads that judge every example alike.
    share = drawn.mean(1)
    error = np.sqrt(share * (1 - share) / 49)
    covered = 0
    for value, stderr in zip(share, error, strict=True):
        mean, reach = over_seeds(np.full((1, 1, 2, 1), value), np.full((1, 1, 2, 1), stderr))
        covered += abs(mean[0] - 0.3) <= reach[0]
    assert covered / 2000 > 0.92


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for task, shares in (("mrpc", [[VERTICAL, DIAGONAL]]), ("qqp", [[MIXED, MIXED]])):
        for seed in (1, 2):
            folder = make_run(
                tmp_path / f"{task}-{seed}", task=task, seed=seed, model={"name": "bert_base", "path": "model"}
            )
            rows(shares, "training", 9, task=task).write(folder / "heads.parquet")
            Run.open(folder).declare(DECLARATION)
    return tmp_path


def test_a_comparison_has_a_bar_for_each_task(sweep: Path) -> None:
    runs, _ = find_runs([str(sweep)])
    text = unescape(write_comparison(runs, [], sweep / "page", heads=True).read_text())
    # MRPC: heterogeneous (0.1 + 0.2) / 2 and no block; QQP 0.4 and 0.1.
    assert "are 50 % of the maps of qqp and 15 % of those of mrpc" in text
    assert "maps labelled by language models, not people" in text
    assert (sweep / "page" / "figures" / "patterns_shares.png").is_file()


def test_the_papers_page_has_its_figure_2_beside_ours(sweep: Path) -> None:
    runs, _ = find_runs([str(sweep)])
    text = unescape(find_page("kovaleva2019").write(runs, sweep / "paper").read_text())
    assert "which patterns do the heads show?" in text
    # Theirs for MRPC: vertical 41.8, heterogeneous 27.6.
    assert "40.0 / 41.8" in text
    assert "15.0 / 27.6" in text
    # Wherever shares are shown the page says who named the patterns.
    assert "maps labelled by language models, not people" in text
    assert "87, 83 and 77 % of its predictions agreed" in text
