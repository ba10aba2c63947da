"""What the sections on features and linked words say, against grids made by hand."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reporting.finished_runs import IDENTITY, table_of, view_of
from scipy import stats

from bertsecrets.grid import HeadGrid
from bertsecrets.present import features
from bertsecrets.present.report.content import Section
from bertsecrets.results.run import Declaration
from bertsecrets.results.table import HeadTable

Values = dict[str, NDArray[np.float64]]
NOTHING = np.full((2, 2), math.nan)


def section(measure: str, values: Values) -> Section:
    presenter = features.FEATURES if measure == "features" else features.PAIRS
    count_LHC = np.where(np.isnan(np.stack([*values.values()], -1)), 0, 50)
    return presenter.section(view_of(Declaration(measure, "Attention", ""), table_of(measure, values, count=count_LHC)))


def against_random(random: float, **values: NDArray[np.float64]) -> Values:
    """Features, with what uniform attention and random words get in every head."""
    columns: Values = dict(values)
    for name, value_LH in values.items():
        columns |= {f"{name}_{end}": value_LH * 0 + at for end, at in (("uniform", 0.05), ("random", random))}
        columns[f"{name}_over_random"] = value_LH - random
    return columns


NOUNS = against_random(0.08, nouns=np.array([[0.02, 0.06], [0.04, 0.32]]))
SPECIAL = against_random(0.05, cls=np.array([[0.4, 0.6], [0.1, 0.1]]), sep=np.array([[0.05, 0.05], [0.5, 0.3]]))
FEATURES = {**NOUNS, **SPECIAL, **against_random(0.05, negation=NOTHING)}


def test_the_section_says_where_features_are_attended_to_most() -> None:
    made = section("features", FEATURES)
    assert made.findings == [
        "Mean attention is highest to [CLS] in layer 0 (0.500 on average over heads) and [SEP] in layer 1 (0.400 on "
        "average over heads); that is the paper's order, [CLS] early and [SEP] late, but differences between layers "
        "are not tested.",
        "Furthest above random words of the same examples is attention to nouns in layer 1 · head 1, 4.0 times as "
        "much; 1 of 4 heads gives nouns significantly more. The top head is significantly higher than every other "
        "(standard errors, Holm-corrected).",
    ]
    assert [block.name for block in made.figures] == ["features_special", "features_words"]
    assert all(block.figure.axes for block in made.figures)
    [table] = made.tables
    assert table.header[2:5] == ["mean of heads", "uniform", "random words"]
    # No example has a negation.
    assert [row[0] for row in table.rows] == ["nouns", "[CLS]", "[SEP]"]
    assert table.rows[0][1:] == ["50", "0.110", "0.050", "0.080", "1 of 4", "layer 1 · head 1: 0.320 (0.294 to 0.346)"]


OTHER_ORDER = {**FEATURES, **against_random(0.05, cls=FEATURES["sep"], sep=FEATURES["cls"])}
TOGETHER = {name.replace("sep", "sep_total"): value for name, value in FEATURES.items()}


@pytest.mark.parametrize(
    ("values", "finding", "figures"),
    [
        (OTHER_ORDER, "that is not the paper's order", 2),
        (against_random(0.05, cls=np.full((1, 2), 0.4)), "In the only layer, tokens give [CLS] 0.400 of their", 1),
        (
            against_random(0.08, nouns=np.full((2, 2), 0.07)),
            "No head gives nouns significantly more attention than random words of the same examples.",
            1,
        ),
        (TOGETHER, "highest to [CLS] in layer 0", 2),
    ],
    ids=["other order", "one layer", "nothing above", "separators together"],
)
def test_edge_cases_have_a_sentence_that_is_true(values: Values, finding: str, figures: int) -> None:
    made = section("features", values)
    assert finding in made.findings[0]
    assert len(made.figures) == figures


def pair(name: str, *values: NDArray[np.float64]) -> Values:
    ends = ("", "_mean", "_beyond_position", "_beyond_received", "_far")
    return {name + end: value_LH for end, value_LH in zip(ends, values, strict=True)}


PAIRS = {
    "cls_to_nouns": np.array([[0.9, 0.9], [0.2, 0.4]]),
    "cls_to_sep": np.array([[0.1, 0.1], [0.5, 0.7]]),
    "cls_to_sep_total": np.array([[0.1, 0.1], [0.5, 0.7]]),
    **{f"cls_to_{name}_random": np.full((2, 2), 0.07) for name in ("nouns", "sep", "sep_total")},
    **pair(
        "subject_to_verb",
        np.array([[0.9, 0.1], [0.2, 0.5]]),
        np.array([[0.6, 0.1], [0.2, 0.3]]),
        np.array([[0.0, -0.1], [0.001, 0.2]]),
        np.array([[0.3, -0.1], [0.3, 0.1]]),
        np.array([[0.02, 0.1], [0.2, 0.4]]),
    ),
    **pair("coreferent", *[NOTHING] * 5),
}


def test_heads_beyond_position_and_word_are_counted() -> None:
    made = section("token_to_token", PAIRS)
    assert made.findings == [
        "In the last layer, the mean attention of [CLS] over heads is highest to [SEP] (0.600; random words get "
        "0.070), then to nouns (0.300; random words get 0.070).",
        "Of 1 kind of linked words, 1 has a head that attends to them beyond both position and word; furthest beyond "
        "position is layer 1 · head 1 for subject → verb, 0.200 (0.174 to 0.226). The top head is significantly "
        "higher than every other (standard errors, Holm-corrected).",
    ]
    [table] = made.tables
    assert list(table.rows[0][:2]) == ["subject → verb", "50"]
    assert list(table.rows[0][2:]) == [
        "layer 0 · head 0: 0.900 (0.874 to 0.926)", "0.600", "0.000", "0.300", "0.020", "1 of 4",
        "layer 1 · head 1: 0.200 (0.174 to 0.226)",
    ]  # fmt: skip
    assert len(table.rows) == 1
    names = ["token_to_token_cls", "token_to_token_beyond_position"]
    assert [block.name for block in made.figures] == names
    assert all(block.figure.axes for block in made.figures)


def test_heads_above_random_words_are_those_of_scipys_test_on_the_examples_themselves() -> None:
    rng = np.random.default_rng(0)
    # Few examples whose lengths, and with them what random words get, differ widely.
    random_N = 1 / rng.integers(5, 60, 7)
    over_NLHC = rng.normal(rng.uniform(-0.02, 0.05, (3, 4, 2)), 0.03, (7, 3, 4, 2))
    batch_values: Values = {}
    for index, name in enumerate(("nouns", "verbs")):
        batch_values[name] = random_N[:, None, None] + over_NLHC[..., index]
        for end in ("_uniform", "_random"):
            batch_values[name + end] = np.broadcast_to(random_N[:, None, None], (7, 3, 4))
        batch_values[f"{name}_over_random"] = over_NLHC[..., index]
    value_NLHC = torch.tensor(np.stack(list(batch_values.values()), -1))
    count_LHC = torch.full(value_NLHC.shape[1:], 7)
    sums = value_NLHC.sum(0), value_NLHC.square().sum(0)
    table = HeadTable.from_grid(
        HeadGrid.from_sums("features", tuple(batch_values), *sums, count_LHC), **IDENTITY, stage="checkpoint", step=3
    )
    made = features.FEATURES.section(view_of(Declaration("features", "Attention", ""), table))
    related = [
        stats.ttest_rel(batch_values[name], batch_values[f"{name}_random"], axis=0, alternative="greater").pvalue
        for name in ("nouns", "verbs")
    ]
    expected_CN = stats.false_discovery_control(np.stack(related).ravel()).reshape(2, 12) <= 0.05
    assert 0 < expected_CN.sum() < expected_CN.size
    assert [row[5] for row in made.tables[0].rows] == [f"{each.sum()} of 12" for each in expected_CN]
    # A normal test that takes the two for samples of their own counts others.
    spreads = [np.hypot(stats.sem(batch_values[name]), stats.sem(random_N)) for name in ("nouns", "verbs")]
    p_CN = stats.norm.sf(np.moveaxis(over_NLHC.mean(0), -1, 0) / np.stack(spreads)).ravel()
    assert (stats.false_discovery_control(p_CN).reshape(2, 12) <= 0.05).sum() != expected_CN.sum()
