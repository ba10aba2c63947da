"""What reports, comparisons and the page on Kovaleva et al. say of patterns, from shares put in by hand."""

from html import unescape
from pathlib import Path

import numpy as np
import pytest
from reporting.finished_runs import make_run, table_of, view_of

from bertsecrets.papers.page import find_page
from bertsecrets.patterns.classes import NAMES, dominant_patterns, over_seeds
from bertsecrets.patterns.measure import Patterns
from bertsecrets.present.figures.patterns import ShareBar, pattern_bars, pattern_grid
from bertsecrets.present.patterns import PRESENTER
from bertsecrets.present.report.content import Section
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable

DECLARATION = Patterns(1, 1).declaration()
VERTICAL, DIAGONAL, MIXED = (
    (0.8, 0.1, 0.0, 0.0, 0.1, 0.0),
    (0.0, 0.7, 0.1, 0.0, 0.2, 0.0),
    (0.3, 0.1, 0.1, 0.1, 0.4, 0.0),
)


def rows(shares: list[list[tuple[float, ...]]], stage: str, step: int, task: str = "mrpc") -> HeadTable:
    share_LHC = np.array(shares)
    columns = {column.name: share_LHC[..., c] for c, column in enumerate(Patterns.columns)}
    error_LHC = np.sqrt(share_LHC * (1 - share_LHC) / 99)
    return table_of("patterns", columns, stage, step, stderr=error_LHC, count=100, model="minilm", task=task)


def section_of(*tables: HeadTable) -> Section | None:
    return PRESENTER.section(view_of(DECLARATION, *tables))


def test_the_section_has_shares_heads_and_movement() -> None:
    section = section_of(
        rows([[VERTICAL, VERTICAL], [DIAGONAL, MIXED]], "initial", 0),
        rows([[VERTICAL, MIXED], [DIAGONAL, MIXED]], "training", 5),
        rows([[VERTICAL, DIAGONAL], [DIAGONAL, MIXED]], "training", 9),
    )
    lead = section.findings
    assert {block.name for block in section.figures} == {"patterns_shares", "patterns_heads"}
    transitions = section.tables[1]
    patterns = ["vertical", "diagonal", "vertical + diagonal", "block", "heterogeneous", "none"]
    assert list(transitions.header) == ["before fine-tuning (rows), at step 9", *patterns]
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
    section = section_of(
        rows([[VERTICAL]], "training", 5), rows([[DIAGONAL]], "training", 9), rows([[VERTICAL]], "checkpoint", 6)
    )
    assert "at step 5, 0 of the 1 heads with a pattern both times changed it" in section.findings[1]


def test_no_patterns_no_section_and_short_maps_say_so() -> None:
    assert section_of(HeadTable.empty()) is None
    none = {column.name: [[np.nan]] for column in Patterns.columns}
    section = section_of(table_of("patterns", none, stderr=np.nan, count=0))
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


def texts(axes: object) -> list[str]:
    return [each.get_text() for each in axes.texts]


def test_bars_stack_to_one_and_name_their_shares() -> None:
    share = np.array([0.5, 0.03, 0.2, 0.07, 0.1, 0.1])
    bars = [ShareBar("mrpc", share, np.full(6, 0.02)), ShareBar("qqp", share[::-1], np.full(6, np.nan))]
    axes = pattern_bars(bars, title="t", note="n = 10 examples").axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["mrpc", "qqp"]
    widths = np.array([[patch.get_width() for patch in axes.patches[row::2]] for row in range(2)])
    assert np.allclose(widths, [share, share[::-1]])
    # Too small a share has no number.
    assert sorted(texts(axes)) == sorted(["50", "20", "7", "10", "10"] * 2)


def test_a_head_has_the_pattern_of_half_its_maps_or_none() -> None:
    share = np.zeros((1, 4, len(NAMES)))
    share[0, 0, 1] = 0.5
    share[0, 0, 0] = 0.4
    share[0, 1, :3] = 0.33
    share[0, 2, NAMES.index("uncertain")] = 0.9
    share[0, 3] = np.nan
    assert dominant_patterns(share).tolist() == [[1, -1, -1, -1]]
    axes = pattern_grid(share, title="t", note="n").axes[0]
    assert texts(axes) == ["50"]
    legend = axes.get_legend()
    assert [each.get_text() for each in legend.get_texts()] == ["diagonal", "no pattern in half the maps"]
