"""Sections that every experiment has, against numbers put into tables by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.present.grid import (
    agreement_table,
    compared_section,
    correlation_in_words,
    grid_comparison,
    grid_section,
)
from bertsecrets.present.report.content import Section
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import p_value, with_limits
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import Comparison, Contrast, MeasureView, Replicates
from bertsecrets.statistics.ranks import rank_correlation

IDENTITY = {"run": "r", "model": "m", "task": "t", "init": "pretrained"}


def rows(
    stage: str,
    step: int,
    columns: Sequence[str],
    value_LHC: np.ndarray,
    stderr: float = 0.01,
    measure: str = "focus",
    count: int = 20,
) -> HeadTable:
    value = torch.from_numpy(np.asarray(value_LHC, float))
    grid = HeadGrid(measure, tuple(columns), value, torch.full_like(value, stderr), torch.full(value.shape, count))
    return HeadTable.from_grid(grid, **IDENTITY, stage=stage, step=step)


def view_of(
    table: HeadTable, measure: str = "focus", title: str = "Focus", columns: tuple[Column, ...] = ()
) -> MeasureView:
    # The folder holds nothing: sections read the table alone.
    run = Run(Path("nowhere"), "r", "m", "t", "pretrained")
    return MeasureView(run, Declaration(measure, title, "", columns), table)


def table(columns: int = 2) -> HeadTable:
    """Every head of the first column rises by 0.1 but one, which falls by 0.001; the last column does not move."""
    names = [f"kind_{number}" for number in range(columns - 1)] + ["uniform"]
    before = np.full((2, 3, columns), 0.3)
    delta = np.full((2, 3, columns), 0.1)
    delta[1, 2] = -0.001
    delta[..., -1] = 0
    parts = [("initial", 0, before), ("checkpoint", 9, before + delta), ("checkpoint-initial", 9, delta)]
    return HeadTable.concat([rows(stage, step, names, values) for stage, step, values in parts])


def test_changes_are_tested_head_by_head() -> None:
    compared = view_of(table()).compared
    change = compared["initial"]["kind_0"]
    p_N = 2 * stats.t.sf(np.array([10.0] * 5 + [0.1]), 19)
    # Corrected over the heads of both columns; the second does not move.
    assert np.allclose(change.p_LH.ravel(), stats.false_discovery_control(np.concatenate([p_N, np.ones(6)]))[:6])
    assert change.differs_LH.ravel().tolist() == [True] * 5 + [False]
    assert "random" not in compared


def test_the_section_says_how_many_heads_changed_and_leaves_out_what_cannot() -> None:
    section = compared_section(view_of(table()))
    assert "5 of 6 heads differ significantly in focus (kind 0, the column with the most)" in section.findings[0]
    assert "0.300 there, 0.400 here" in section.findings[0]
    (rows_,) = [each.rows for each in section.tables]
    assert rows_ == [["kind 0", "0.383", "0.300", "5", "0", "0.100 (layer 0 · head 0)"]]
    assert [block.name for block in section.figures] == ["focus_beside_initial"]
    assert not view_of(table().select(stage="checkpoint")).compared


def test_a_baseline_and_a_p_value_are_not_compared() -> None:
    described = (Column("own", "own"), Column("level", "level", role="baseline"), Column("chance", "p", role="p_value"))
    names = [column.name for column in described]
    delta = np.full((2, 3, len(names)), 0.1)
    parts = [("initial", 0, delta), ("checkpoint", 9, 2 * delta), ("checkpoint-initial", 9, delta)]
    made = HeadTable.concat([rows(stage, step, names, values) for stage, step, values in parts])
    assert list(view_of(made, columns=described).compared["initial"]) == ["own"]
    # Roles count, not names: undeclared columns are values.
    assert list(view_of(made).compared["initial"]) == names


def test_what_cannot_tell_models_apart_is_not_compared() -> None:
    features = Features(1, 1, {"nouns": {"pos": ["NOUN"]}}).declaration()
    relations = FrameRelations(1, 1).declaration()
    for declaration, names in (
        (features, ["nouns", "nouns_uniform", "nouns_random", "nouns_over_random"]),
        (relations, ["weight", "uniform", "p_position_corrected"]),
    ):
        delta = np.full((2, 3, len(names)), 0.1)
        parts = [("initial", 0, delta), ("checkpoint", 9, 2 * delta), ("checkpoint-initial", 9, delta)]
        made = HeadTable.concat([rows(*part[:2], names, part[2], 0.01, declaration.name) for part in parts])
        view = view_of(made, declaration.name, columns=declaration.columns)
        assert list(view.compared["initial"]) == names[:1]


@pytest.mark.parametrize(
    ("delta", "stderr", "expected"),
    [
        (0.0, 0.0, "Compared with the model before fine-tuning, no head differs at all in attention patterns."),
        (
            1e-3,
            0.1,
            "Compared with the model before fine-tuning, no head differs significantly in attention patterns.",
        ),
        (
            0.1,
            0.01,
            "Compared with the model before fine-tuning, 6 of 6 heads differ significantly in attention patterns, most "
            "of all layer 0 · head 0 (0.300 there, 0.400 here).",
        ),
    ],
)
def test_a_sentence_says_what_differs(delta: float, stderr: float, expected: str) -> None:
    before = np.full((2, 3, 1), 0.3)
    parts = [("initial", 0, before), ("checkpoint", 9, before + delta), ("checkpoint-initial", 9, 0 * before + delta)]
    made = HeadTable.concat([rows(*part[:2], ["block"], part[2], stderr, "patterns") for part in parts])
    section = compared_section(view_of(made, "patterns", "Attention patterns"))
    assert list(section.findings) == [expected]


def test_a_figure_has_no_more_panels_than_can_be_read() -> None:
    section = compared_section(view_of(table(columns=20)))
    (block,) = section.figures
    texts = [text.get_text() for text in block.figure.texts]
    assert any("the 12 of 19 columns" in " ".join(text.split()) for text in texts)


def test_a_model_with_random_weights_is_a_second_comparison() -> None:
    before = np.full((1, 2, 1), 0.3)
    random = np.full((1, 2, 1), 0.9)
    parts = [
        ("initial", 0, before), ("random", 0, random), ("checkpoint", 9, before + 0.1),
        ("checkpoint-initial", 9, 0 * before + 0.1), ("checkpoint-random", 9, 0 * before - 0.5),
    ]  # fmt: skip
    made = HeadTable.concat([rows(stage, step, ["all"], values) for stage, step, values in parts])
    section = compared_section(view_of(made))
    assert len(section.findings) == 1
    assert section.paragraphs[0].startswith("Compared with a model with random weights")
    assert "has seen no text" in section.paragraphs[-1]
    assert [block.name for block in section.figures] == ["focus_beside_initial", "focus_beside_random"]
    (row,) = section.tables[0].rows
    # Before fine-tuning two heads are lower, with random weights two are higher.
    assert row[2:6] == ["0.300", "2", "0", "0.100 (layer 0 · head 0)"]
    assert row[6:] == ["0.900", "0", "2", "−0.500 (layer 0 · head 0)"]


class Toy(Experiment):
    """An experiment that says nothing of itself but its columns."""

    name = "toy"
    title = "Toy numbers"
    columns = (
        Column("bits", "entropy", "bits", (0.0, 3.0)),
        Column("nats", "entropy again", "nats"),
        Column("other", "third", "nats"),
        Column("level", "uniform attention", "bits", (0.0, 3.0), role="baseline"),
        Column("p", "p-value", role="p_value"),
    )


def toy_view(value_LHC: np.ndarray, step: int = 9, stderr: float = 0.01, run: str = "r") -> MeasureView:
    names = [column.name for column in Toy.columns]
    return view_of(rows("training", step, names, value_LHC, stderr, "toy"), "toy", Toy.title, Toy.columns)


VALUES = np.stack(
    [
        np.array([[1.0, 2.0], [0.5, 1.5]]), np.array([[0.1, 0.2], [0.4, 0.3]]), np.full((2, 2), np.nan),
        np.full((2, 2), 2.5), np.full((2, 2), 0.04),
    ],
    axis=-1,
)  # fmt: skip


def test_an_experiment_without_words_of_its_own_gets_figures_a_table_and_a_finding() -> None:
    section = grid_section(toy_view(VALUES))
    assert section is not None
    assert section.title == "Toy numbers"
    assert section.findings == [
        "Toy numbers: layer 0 · head 1 has the highest value of “entropy”, 2.000 (1.973 to 2.027); the 4 heads average "
        "1.250. The top head is significantly higher than every other (standard errors, Holm-corrected)."
    ]
    (table_,) = section.tables
    # A column without a number has no row, and p-values are not averaged.
    assert table_.rows == [
        ["entropy", "1.250", "layer 0 · head 1", "2.000 (1.973 to 2.027)"],
        ["entropy again", "0.250", "layer 1 · head 0", "0.400 (0.373 to 0.427)"],
        ["uniform attention", "2.500", "all heads", "2.500 (2.473 to 2.527)"],
    ]
    # One figure for each unit and scale, the first under the experiment's own name; none of what is the same for every
    # head.
    assert [block.name for block in section.figures] == ["toy", "toy_nats"]
    labels = [[axes.get_ylabel() for axes in block.figure.axes] for block in section.figures]
    assert "bits" in labels[0]
    assert "nats" in labels[1]


class Losses(Toy):
    # Changes of a score may be negative.
    columns = tuple(replace(column, limits=None) for column in Toy.columns)


def test_an_experiment_of_whole_layers_speaks_of_layers_and_lists_each_of_them() -> None:
    value = torch.tensor([0.0, -0.05, -0.075], dtype=torch.float64)[:, None, None]
    grid = HeadGrid("toy", ("bits",), value, torch.full_like(value, 0.001), torch.full(value.shape, 20), True)
    table = HeadTable.from_grid(grid, **IDENTITY, stage="training", step=9)
    shown = Shown(lowest=True, effects=True)
    run = Run(Path("nowhere"), "r", "m", "t", "pretrained")
    section = grid_section(MeasureView(run, Declaration("toy", Toy.title, "", Losses.columns, shown), table))
    assert section is not None
    # Of changes of a score the largest loss is what a reader looks for.
    assert section.findings == [
        "Toy numbers: layer 2 has the lowest value of “entropy”, −0.075 (−0.078 to −0.072); the 3 layers average "
        "−0.042. The lowest layer is significantly lower than every other (standard errors, Holm-corrected)."
    ]
    assert section.tables[0].rows == [["0", "0.000 ± 0.001"], ["1", "−0.050 ± 0.001"], ["2", "−0.075 ± 0.001"]]
    (axes, *_) = section.figures[0].figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["all heads"]


def compared(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Section:
    replicates = {
        label: Replicates([toy_view(VALUES + np.asarray(shift)) for shift in shifts])
        for label, shifts in (("a", first), ("b", second))
    }
    section = grid_comparison(Comparison(replicates, [Contrast("a − b", "a", "b")]))
    assert section is not None
    return section


def test_conditions_are_compared_by_every_value_column() -> None:
    noise = np.random.default_rng(0).normal(0, 0.001, (4, 2, 2, 5))
    shift = np.full(5, 0.5)
    section = compared([noise[0], noise[1]], [noise[2] + shift, noise[3] + shift])
    # The third column has no number, the others are a baseline and a p-value.
    assert [block.name for block in section.figures] == ["toy_bits", "toy_bits_differences", "toy_nats"]
    assert {row["column"] for row in section.rows} == {"bits", "nats", "other"}
    assert len(section.rows) == 2 * 3 * 4
    (cell,) = [
        row
        for row in section.rows
        if (row["condition"], row["column"], row["layer"], row["head"]) == ("b", "bits", 0, 1)
    ]
    mean, spread = (2.5 + noise[2:, 0, 1, 0]).mean(), noise[2:, 0, 1, 0].std(ddof=1)
    assert cell["mean"] == pytest.approx(mean)
    assert cell["high_pointwise"] == pytest.approx(mean + stats.t.ppf(0.975, 1) * spread / np.sqrt(2))
    assert cell["stderr_over_examples"] == pytest.approx(0.01)
    (agreement,) = section.tables
    assert [row[:2] for row in agreement.rows] == [["a", "2"], ["b", "2"]]
    assert [row[2] for row in agreement.rows] == ["1.00", "1.00"]
    assert (
        "a − b: toy numbers: entropy (tested over seeds) differs in 4 of 4 heads, those by −0.5" in section.findings[1]
    )


def test_whole_layers_are_compared_as_layers() -> None:
    def replicates(shift: float) -> Replicates:
        views = []
        for seed in (0, 1):
            value_LHC = torch.tensor([3.0, 1.0, 2.0]).double()[:, None, None] + shift + 0.001 * seed
            grid = HeadGrid("toy", ("bits",), value_LHC, value_LHC * 0 + 0.001, torch.full((3, 1, 1), 20), True)
            table = HeadTable.from_grid(grid, **IDENTITY, stage="training", step=9)
            run = Run(Path("nowhere"), f"r{seed}", "m", "t", "pretrained")
            views.append(MeasureView(run, Declaration("toy", Toy.title, "", Toy.columns[:1], Shown()), table))
        return Replicates(views)

    section = grid_comparison(Comparison({"a": replicates(0), "b": replicates(1)}, [Contrast("a − b", "a", "b")]))
    assert section is not None
    assert "order of layers" in section.findings[0]
    assert "differs in 3 of 3 layers" in section.findings[1]
    (agreement,) = section.tables
    assert [cells[-1] for cells in agreement.rows] == ["layer 0, layer 1, layer 2"] * 2
    assert "mean within layers" not in agreement.header
    for block in section.figures:
        assert block.figure.axes[0].get_xlabel() == ""


def test_one_seed_each_is_tested_over_examples() -> None:
    section = compared([np.zeros(5)], [np.full(5, 0.5)])
    assert not section.tables
    assert section.findings == [
        "a − b: toy numbers: entropy (tested over examples) differs in 4 of 4 heads, those by −0.500 on average."
    ]


def test_seeds_that_share_depth_alone_do_not_agree_within_layers() -> None:
    generator = np.random.default_rng(0)
    value_RLH = 10 * np.arange(4.0)[:, None] + generator.normal(size=(3, 4, 6))
    table = agreement_table({"a": value_RLH}, "x")
    row = dict(zip(table.header, table.rows[0], strict=True))
    by_layer = [
        np.mean([stats.spearmanr(value_RLH[i, layer], value_RLH[j, layer]).statistic for layer in range(4)])
        for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    assert float(row["rank correlation, mean"]) > 0.9
    assert row["mean within layers"].replace("\N{MINUS SIGN}", "-") == f"{np.mean(by_layer):.2f}"


def test_the_total_correlation_of_heads_has_no_p_value_beside_that_within_layers() -> None:
    x_LH, y_LH = np.random.default_rng(0).normal(size=(2, 4, 6))
    correlation = rank_correlation(x_LH, y_LH)
    within = correlation.within
    assert within is not None
    total, _, rest = correlation_in_words(correlation).partition(", including the dependence of both on depth, and ")
    assert total == f"{with_limits(correlation.rho, correlation.low, correlation.high, 2)}".replace(
        "(", "(95 % interval "
    )
    assert rest == f"{correlation_in_words(within)} within layers"
    assert f"permutation p {p_value(within.p_value)})" in rest
    assert correlation_in_words(
        rank_correlation(x_LH[:, :1].repeat(3, axis=0), y_LH[:, :1].repeat(3, axis=0))
    ).endswith("including the dependence of both on depth")
