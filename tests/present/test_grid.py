"""Sections that every experiment has, against numbers put into tables by hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measures.toy import view_of as written_view
from numpy.typing import ArrayLike
from reporting.finished_runs import table_of, view_of
from scipy import stats

from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.entropy import Entropy
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.surface import Surface
from bertsecrets.present.grid import (
    agreement_table,
    compared_section,
    correlation_in_words,
    grid_comparison,
    grid_section,
)
from bertsecrets.present.ranking import like_the_extreme
from bertsecrets.present.report.content import Section
from bertsecrets.results.formatting import p_value, with_limits
from bertsecrets.results.run import Declaration
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import Comparison, Contrast, MeasureView, Replicates
from bertsecrets.statistics.ranks import rank_correlation

COSINE = np.array([[0.9, 0.1, math.nan], [0.2, 0.5, 0.95]])


def drift(value_LH: np.ndarray, step: int = 9, names: Sequence[str] = ("cosine",), **others: np.ndarray) -> HeadTable:
    columns = {**dict.fromkeys(names, value_LH), **others}
    return table_of("drift", columns, "training", step, stderr=value_LH[..., None] / 10, count=30)


def section_of(*tables: HeadTable) -> Section:
    return grid_section(view_of(Drift(1, 1).declaration(), *tables))


def test_the_most_changed_heads_come_first() -> None:
    section = section_of(drift(COSINE))
    # The head without a number is left out.
    heads = [(line.layer, line.head) for line in section.highlights.heads]
    assert heads == [(0, 1), (1, 0), (1, 1), (0, 0), (1, 2)]
    first = section.highlights.heads[0]
    assert (first.quantity, first.value, first.stderr) == ("cosine", 0.1, 0.01)
    most_changed, _ = section.tables
    assert most_changed.rows[:2] == [["layer 0 · head 1", "0.100 ± 0.010"], ["layer 1 · head 0", "0.200 ± 0.020"]]
    assert section.findings == [
        "By layer, the mean cosine similarity with the maps before fine-tuning is lowest in layer 0 (0.500) and "
        "highest in layer 1 (0.550).",
        "The head that changed most is layer 0 · head 1: cosine 0.100 (0.073 to 0.127) over 30 examples. The lowest "
        "head is significantly lower than every other (standard errors, Holm-corrected).",
    ]


def test_the_title_of_entropy_compares_the_broadest_head_with_uniform_attention() -> None:
    table = table_of("entropy", {"bits": [[1.0, 3.0]], "uniform": [[4.0, 5.0]]}, stderr=0.1)
    section = grid_section(view_of(Entropy(1, 2).declaration(), table))
    # 4.5: the mean of 4 and 5.
    broadest = "layer 0 · head 1 attends most broadly, 3.000 of the 4.500 bits of uniform attention"
    assert section.headline == f"Entropy of attention: {broadest}."


def test_at_most_ten_heads_are_listed() -> None:
    section = section_of(drift(np.linspace(0.2, 0.9, 24).reshape(4, 6)))
    assert [(line.layer, line.head) for line in section.highlights.heads] == [divmod(n, 6) for n in range(10)]
    assert len(section.tables[0].rows) == 10


def test_every_column_is_drawn_on_its_own_scale_and_the_last_step_counts() -> None:
    names = [column.name for column in Drift.columns if column.role == "value"]
    section = section_of(drift(COSINE, 4, names), drift(COSINE / 2, 9, names))
    figures = {block.name: block.figure for block in section.figures}
    # Columns of one unit share a scale; the first, whose heads are outlined, is drawn apart.
    assert list(figures) == ["drift", "drift_jensen_shannon", "drift_cls_cosine", "drift_cosine_steps"]
    limits = [figures[name].axes[0].collections[0].get_clim() for name in list(figures)[:3]]
    assert limits == [(0.0, 1.0), (0.0, math.log(2)), (0.0, 1.0)]
    shown_LH = figures["drift"].axes[0].collections[0].get_array().reshape(2, 3)
    np.testing.assert_array_equal(shown_LH.filled(math.nan), COSINE / 2)
    # One step makes a line from step 0, where nothing has changed yet.
    alone = {block.name: block.figure for block in section_of(drift(COSINE, 4)).figures}["drift_cosine_steps"]
    np.testing.assert_array_equal(alone.axes[0].lines[0].get_xdata(), [0, 4])
    assert alone.axes[0].lines[0].get_ydata()[0] == 1.0


def test_heatmap_trajectory_and_list_name_the_same_heads() -> None:
    # Between the first and the last validation other heads moved most than since the start.
    last_LH = np.linspace(0.1, 0.9, 12).reshape(3, 4)
    first_LH = np.where(last_LH < 0.5, last_LH + 0.01, 0.99)
    section = section_of(drift(first_LH, 4), drift(last_LH, 9))
    listed = [(line.layer, line.head) for line in section.highlights.heads[:5]]
    figures = {block.name: block.figure for block in section.figures}
    named = [text.get_text() for text in figures["drift_cosine_steps"].axes[1].get_legend().get_texts()]
    assert sorted(named) == sorted(f"layer {layer} · head {head}" for layer, head in listed)
    outlined = {
        (round(patch.get_y() - 0.04), round(patch.get_x() - 0.04))
        for patch in figures["drift"].axes[0].patches
        if patch.get_width() == pytest.approx(0.92)
    }
    assert outlined == set(listed)


@pytest.mark.parametrize(
    ("p", "words"),
    [
        ([1, 0.5, 0.01, 0.2], "from the top: layer 0 · head 1, layer 1 · head 1 (paired t tests"),
        ([1, 0.5, 0.06, 0.2], "(0.073 to 0.127) over 30 examples. No other head differs significantly from it (paired"),
        ([1, 0.01, 0.01, 0.01], "It changed most, significantly ahead of every other head"),
        ([math.nan] * 4, "With 30 examples the order of the heads cannot be tested."),
    ],
)
def test_heads_that_cannot_be_told_from_the_first_by_paired_tests_are_named(p: list[float], words: str) -> None:
    p_LH = np.array(p, float).reshape(2, 2)
    section = section_of(drift(np.array([[0.1, 0.2], [0.3, 0.4]]), p_cosine_first=p_LH))
    assert words in section.findings[1]


VALUE = np.array([[0.30, 0.32, 0.10], [0.29, np.nan, 0.31]])


@pytest.mark.parametrize(
    ("value_LH", "stderr", "count", "words"),
    [
        # In their order, with a reference to the test.
        (VALUE, 0.02, 100, "from the top: layer 1 · head 2, layer 0 · head 0, layer 1 · head 0 (standard errors, Holm"),
        (VALUE, 1e-4, 100, "The top head is significantly higher than every other (standard errors, Holm-corrected)."),
        (np.arange(12.0).reshape(3, 4), 50, 100, "No other head differs significantly from it (standard errors"),
        # A long list is cut and counted.
        (np.r_[-1000, 1.0:12].reshape(3, 4), 50, 100, "layer 1 · head 3, layer 1 · head 2 and 5 more ("),
        (VALUE, np.nan, 1, "With 1 example the order of the heads cannot be tested."),
        (np.array([[0.3]]), 0.01, 100, None),
        (np.full((2, 2), np.nan), 0.01, 100, None),
        # Five examples: far wider than the normal distribution has it.
        (VALUE, 0.004, 5, "layer 1 · head 0"),
        (VALUE, 0.004, 500, "from the top: layer 1 · head 2 ("),
    ],
)
def test_heads_within_the_errors_of_the_highest_are_named(
    value_LH: np.ndarray, stderr: float, count: int, words: str | None
) -> None:
    sentence = like_the_extreme(value_LH, np.full(value_LH.shape, stderr), np.full(value_LH.shape, count))
    assert sentence == "" if words is None else words in sentence


SAME = "differs from its reference beyond rounding on 30 examples: cosine similarity"


@pytest.mark.parametrize(
    ("value_LH", "finding"),
    [
        (np.full((2, 2), math.nan), "Drift of attention: cosine similarity with the maps before fine-tuning is undefined "
                                    "for all 4 heads."),
        (np.ones((2, 2)), f"None of 4 heads {SAME}"),
        (np.full((2, 2), 1 - 3e-8), f"None of 4 heads {SAME}"),
        (np.ones((1, 1)), "The only head equals its reference beyond rounding on 30 examples: cosine similarity"),
        (np.full((1, 1), 0.4), "The only head, layer 0 · head 0, has a cosine 0.400 (0.318 to 0.482) over 30 examples"),
        (np.full((2, 2), 0.4), "All 2 layers have the same mean cosine similarity with the maps before fine-tuning, "
                               "0.400."),
        (np.array([[0.4, 0.6]]), "The head that changed most is layer 0 · head 0"),
    ],
)  # fmt: skip
def test_edge_cases_have_a_sentence_that_is_true(value_LH: np.ndarray, finding: str) -> None:
    section = section_of(drift(value_LH))
    assert section.findings[0].startswith(finding)
    assert (section.highlights is None) == ("beyond rounding" in finding or "undefined" in finding)


def test_each_column_has_its_sentences_and_columns_share_panels(tmp_path: Path) -> None:
    measure = Surface(2, 2)
    value_LHC = torch.zeros(2, 2, 10, dtype=torch.float64)
    value_LHC[1, :, 1] = torch.tensor([0.9, 0.5])
    value_LHC[0, 0, 0] = 0.25
    value_LHC[..., 6:] = 0.1
    error_LHC, count_LHC = torch.full_like(value_LHC, 0.01), torch.full(value_LHC.shape, 7)
    grid = HeadGrid("surface", measure.columns, value_LHC, error_LHC, count_LHC)
    section = grid_section(written_view(tmp_path, measure, grid))
    assert section.head == (1, 0)
    separators, first, punctuation = section.findings
    assert separators.startswith("Layer 1 · head 0 has the highest value of “[SEP]”, 0.900 (")
    assert separators.endswith(
        "significantly higher than every other (standard errors, Holm-corrected). By layer, the mean is lowest in "
        "layer 0 (0.000) and highest in layer 1 (0.700). Above 0.5: 1 head of layer 1; the mean of layer 1 too."
    )
    assert first.endswith("By layer, the mean is lowest in layer 1 (0.000) and highest in layer 0 (0.125).")
    assert punctuation == "Punctuation is 0.000 in all 4 heads."
    (table,) = section.tables
    # What uniform attention gives is the same for every head: no heatmap, and no head that is the highest.
    assert [row[2] for row in table.rows[-4:]] == ["all heads"] * 4
    heatmaps, layers = section.figures
    assert len([axes for axes in heatmaps.figure.axes if axes.get_title().endswith("(n = 7)")]) == 6
    assert [axes.get_title() for axes in layers.figure.axes] == ["attention to", "attention to [SEP] from"]
    assert layers.figure.axes[0].lines[2].get_ydata().tolist() == pytest.approx([0.0, 0.0, 0.9, 0.5])


FOCUS = Declaration("focus", "Focus", "")
DELTA = np.full((2, 3), 0.1)


def compared(
    deltas: Mapping[str, ArrayLike],
    declaration: Declaration = FOCUS,
    before: float = 0.3,
    stderr: float = 0.01,
    others: Sequence[HeadTable] = (),
) -> MeasureView:
    """A model that differs in each column by so much from the model before fine-tuning, which has one number."""
    grids = {name: np.asarray(delta_LH, float) for name, delta_LH in deltas.items()}
    stages = {
        "initial": (0, {name: 0 * grid_LH + before for name, grid_LH in grids.items()}),
        "checkpoint": (9, {name: grid_LH + before for name, grid_LH in grids.items()}),
        "checkpoint-initial": (9, grids),
    }
    tables = [
        table_of(declaration.name, columns, stage, step, stderr=stderr, count=20)
        for stage, (step, columns) in stages.items()
    ]
    return view_of(declaration, *tables, *others)


def rising(columns: int) -> dict[str, np.ndarray]:
    """Every head of each column rises by 0.1 but one, which falls by 0.001; the last column does not move."""
    delta_LH = np.where(np.arange(6).reshape(2, 3) == 5, -0.001, DELTA)
    return {**{f"kind_{number}": delta_LH for number in range(columns - 1)}, "uniform": 0 * DELTA}


def test_changes_are_tested_head_by_head() -> None:
    found = compared(rising(2)).compared
    change = found["initial"]["kind_0"]
    p_N = 2 * stats.t.sf(np.array([10.0] * 5 + [0.1]), 19)
    # Corrected over the heads of both columns; the second does not move.
    assert np.allclose(change.p_LH.ravel(), stats.false_discovery_control(np.concatenate([p_N, np.ones(6)]))[:6])
    assert change.differs_LH.ravel().tolist() == [True] * 5 + [False]
    assert "random" not in found


def test_the_section_says_how_many_heads_changed_and_leaves_out_what_cannot() -> None:
    section = compared_section(compared(rising(2)))
    assert "5 of 6 heads differ significantly in focus (kind 0, the column with the most)" in section.findings[0]
    assert "0.300 there, 0.400 here" in section.findings[0]
    (table,) = section.tables
    assert table.rows == [["kind 0", "0.383", "0.300", "5", "0", "0.100 (layer 0 · head 0)"]]
    assert [block.name for block in section.figures] == ["focus_beside_initial"]
    assert not view_of(FOCUS, table_of("focus", {"kind_0": DELTA})).compared


COLUMNS = (Column("own", "own"), Column("level", "level", role="baseline"), Column("p", "p", role="p_value"))
FEATURES = Features(1, 1, {"nouns": {"pos": ["NOUN"]}}).declaration()


@pytest.mark.parametrize(
    ("declaration", "names", "values"),
    [
        (replace(FOCUS, columns=COLUMNS), ["own", "level", "p"], 1),
        # Roles count, not names: undeclared columns are values.
        (FOCUS, ["own", "level", "p"], 3),
        (FEATURES, ["nouns", "nouns_uniform", "nouns_random", "nouns_over_random"], 1),
        (FrameRelations(1, 1).declaration(), ["weight", "uniform", "p_position_corrected"], 1),
    ],
)
def test_a_baseline_and_a_p_value_are_not_compared(declaration: Declaration, names: list[str], values: int) -> None:
    assert list(compared(dict.fromkeys(names, DELTA), declaration).compared["initial"]) == names[:values]


@pytest.mark.parametrize(
    ("delta", "stderr", "words"),
    [
        (0.0, 0.0, "no head differs at all in attention patterns."),
        (1e-3, 0.1, "no head differs significantly in attention patterns."),
        (0.1, 0.01, "6 of 6 heads differ significantly in attention patterns, most of all layer 0 · head 0 (0.300 there, "
                    "0.400 here)."),
    ],
)  # fmt: skip
def test_a_sentence_says_what_differs(delta: float, stderr: float, words: str) -> None:
    declaration = Declaration("patterns", "Attention patterns", "")
    section = compared_section(compared({"block": np.full((2, 3), delta)}, declaration, stderr=stderr))
    assert list(section.findings) == [f"Compared with the model before fine-tuning, {words}"]


def test_a_figure_has_no_more_panels_than_can_be_read() -> None:
    (block,) = compared_section(compared(rising(20))).figures
    texts = [text.get_text() for text in block.figure.texts]
    assert any("the 12 of 19 columns" in " ".join(text.split()) for text in texts)


def test_a_model_with_random_weights_is_a_second_comparison() -> None:
    random = [
        table_of("focus", {"all": [[0.9, 0.9]]}, "random", 0),
        table_of("focus", {"all": [[-0.5, -0.5]]}, "checkpoint-random", count=20),
    ]
    section = compared_section(compared({"all": [[0.1, 0.1]]}, others=random))
    assert len(section.findings) == 1
    assert section.paragraphs[0].startswith("Compared with a model with random weights")
    assert "has seen no text" in section.paragraphs[-1]
    assert [block.name for block in section.figures] == ["focus_beside_initial", "focus_beside_random"]
    (row,) = section.tables[0].rows
    # Before fine-tuning two heads are lower, with random weights two are higher.
    assert row[2:6] == ["0.300", "2", "0", "0.100 (layer 0 · head 0)"]
    assert row[6:] == ["0.900", "0", "2", "−0.500 (layer 0 · head 0)"]


TOY = Declaration(
    "toy",
    "Toy numbers",
    "",
    (
        Column("bits", "entropy", "bits", (0.0, 3.0)),
        Column("nats", "entropy again", "nats"),
        Column("other", "third", "nats"),
        Column("level", "uniform attention", "bits", (0.0, 3.0), role="baseline"),
        Column("p", "p-value", role="p_value"),
    ),
)
"""An experiment that says nothing of itself but its columns."""

VALUES: dict[str, Any] = {
    "bits": np.array([[1.0, 2.0], [0.5, 1.5]]),
    "nats": np.array([[0.1, 0.2], [0.4, 0.3]]),
    "other": np.full((2, 2), np.nan),
    "level": np.full((2, 2), 2.5),
    "p": np.full((2, 2), 0.04),
}


def toy_view(columns: Mapping[str, ArrayLike]) -> MeasureView:
    return view_of(TOY, table_of("toy", columns, "training", count=20))


def layers_view(mean_L: ArrayLike, stderr: float = 0.001, **shown: bool) -> MeasureView:
    """Numbers of whole layers, which may be negative."""
    columns = (replace(TOY.columns[0], limits=None),)
    table = table_of("toy", {"bits": np.reshape(mean_L, (-1, 1))}, stderr=stderr, count=20, whole_layers=True)
    return view_of(replace(TOY, columns=columns, shown=Shown(**shown)), table)


def test_an_experiment_without_words_of_its_own_gets_figures_a_table_and_a_finding() -> None:
    section = grid_section(toy_view(VALUES))
    assert section.title == "Toy numbers"
    assert section.findings == [
        "Toy numbers: layer 0 · head 1 has the highest value of “entropy”, 2.000 (1.973 to 2.027); the 4 heads average "
        "1.250. The top head is significantly higher than every other (standard errors, Holm-corrected)."
    ]
    (table,) = section.tables
    # A column without a number has no row, and p-values are not averaged.
    assert table.rows == [
        ["entropy", "1.250", "layer 0 · head 1", "2.000 (1.973 to 2.027)"],
        ["entropy again", "0.250", "layer 1 · head 0", "0.400 (0.373 to 0.427)"],
        ["uniform attention", "2.500", "all heads", "2.500 (2.473 to 2.527)"],
    ]
    # One figure for each unit and scale, the first under the experiment's own name; none of what is the same for every
    # head.
    assert [block.name for block in section.figures] == ["toy", "toy_nats"]
    for unit, block in zip(("bits", "nats"), section.figures, strict=True):
        assert unit in [axes.get_ylabel() for axes in block.figure.axes]


def test_an_experiment_of_whole_layers_speaks_of_layers_and_lists_each_of_them() -> None:
    section = grid_section(layers_view([0.0, -0.05, -0.075], lowest=True, effects=True))
    # Of changes of a score the largest loss is what a reader looks for.
    assert section.findings == [
        "Toy numbers: layer 2 has the lowest value of “entropy”, −0.075 (−0.078 to −0.072); the 3 layers average "
        "−0.042. The lowest layer is significantly lower than every other (standard errors, Holm-corrected)."
    ]
    assert section.tables[0].rows == [["0", "0.000 ± 0.001"], ["1", "−0.050 ± 0.001"], ["2", "−0.075 ± 0.001"]]
    (axes, *_) = section.figures[0].figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["all heads"]


def contrasted(first: Sequence[MeasureView], second: Sequence[MeasureView]) -> Section:
    replicates = {"a": Replicates(first), "b": Replicates(second)}
    return grid_comparison(Comparison(replicates, [Contrast("a − b", "a", "b")]))


def shifted(shift_LHC: ArrayLike) -> MeasureView:
    """The toy's numbers, all moved by so much."""
    shift_LHC = np.broadcast_to(shift_LHC, (2, 2, len(VALUES)))
    return toy_view({name: value_LH + shift_LHC[..., c] for c, (name, value_LH) in enumerate(VALUES.items())})


def test_conditions_are_compared_by_every_value_column() -> None:
    noise = np.random.default_rng(0).normal(0, 0.001, (4, 2, 2, 5))
    section = contrasted([shifted(one) for one in noise[:2]], [shifted(one + 0.5) for one in noise[2:]])
    # The third column has no number, the others are a baseline and a p-value.
    assert [block.name for block in section.figures] == ["toy_bits", "toy_bits_differences", "toy_nats"]
    assert {row["column"] for row in section.rows} == {"bits", "nats", "other"}
    assert len(section.rows) == 2 * 3 * 4
    place = ("condition", "column", "layer", "head")
    (cell,) = [row for row in section.rows if [row[key] for key in place] == ["b", "bits", 0, 1]]
    mean, spread = (2.5 + noise[2:, 0, 1, 0]).mean(), noise[2:, 0, 1, 0].std(ddof=1)
    assert cell["mean"] == pytest.approx(mean)
    assert cell["high_pointwise"] == pytest.approx(mean + stats.t.ppf(0.975, 1) * spread / np.sqrt(2))
    assert cell["stderr_over_examples"] == pytest.approx(0.01)
    (agreement,) = section.tables
    assert [row[:3] for row in agreement.rows] == [["a", "2", "1.00"], ["b", "2", "1.00"]]
    expected = "a − b: toy numbers: entropy (tested over seeds) differs in 4 of 4 heads, those by −0.5"
    assert expected in section.findings[1]


def test_whole_layers_are_compared_as_layers() -> None:
    mean_L = np.array([3.0, 1.0, 2.0])
    section = contrasted(*([layers_view(mean_L + shift + seed) for seed in (0, 0.001)] for shift in (0, 1)))
    assert "order of layers" in section.findings[0]
    assert "differs in 3 of 3 layers" in section.findings[1]
    (agreement,) = section.tables
    assert [cells[-1] for cells in agreement.rows] == ["layer 0, layer 1, layer 2"] * 2
    assert "mean within layers" not in agreement.header
    assert {block.figure.axes[0].get_xlabel() for block in section.figures} == {""}


def test_one_seed_each_is_tested_over_examples() -> None:
    section = contrasted([shifted(0)], [shifted(0.5)])
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
    total, _, rest = correlation_in_words(correlation).partition(", including the dependence of both on depth, and ")
    assert total == f"{with_limits(correlation.rho, correlation.low, correlation.high, 2)}".replace(
        "(", "(95 % interval "
    )
    assert rest == f"{correlation_in_words(within)} within layers"
    assert f"permutation p {p_value(within.p_value)})" in rest
    assert correlation_in_words(
        rank_correlation(x_LH[:, :1].repeat(3, axis=0), y_LH[:, :1].repeat(3, axis=0))
    ).endswith("including the dependence of both on depth")
