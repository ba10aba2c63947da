"""What the sections on features and linked words say, against grids made by hand."""

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
from bertsecrets.present.report.content import Section
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

Array = NDArray[np.float64]


def table_of(measure: str, values: dict[str, Array], counts: dict[str, int], stderr: float = 0.01) -> HeadTable:
    value_LHC = torch.tensor(np.stack(list(values.values()), -1))
    count_LHC = torch.tensor([counts.get(name, 50) for name in values]).expand(value_LHC.shape)
    grid = HeadGrid(measure, tuple(values), value_LHC, torch.full_like(value_LHC, stderr), count_LHC)
    return HeadTable.from_grid(grid, run="r", model="m", task="t", init="pretrained", stage="checkpoint", step=3)


FEATURES = {
    "nouns": np.array([[0.02, 0.06], [0.04, 0.32]]),
    "negation": np.full((2, 2), math.nan),
    "cls": np.array([[0.4, 0.6], [0.1, 0.1]]),
    "sep": np.array([[0.05, 0.05], [0.5, 0.3]]),
    "nouns_uniform": np.full((2, 2), 0.05),
    "negation_uniform": np.full((2, 2), math.nan),
    "cls_uniform": np.full((2, 2), 0.05),
    "sep_uniform": np.full((2, 2), 0.05),
}


RANDOM = {"nouns": 0.08, "negation": math.nan, "cls": 0.05, "sep": 0.05}
"""What as many random words get in every head."""
FEATURES |= {f"{name}_random": np.full((2, 2), value) for name, value in RANDOM.items()}
FEATURES |= {f"{name}_over_random": FEATURES[name] - value for name, value in RANDOM.items()}


EMPTY = {name: 0 for name in FEATURES if name.startswith("negation")}


def view_of(table: HeadTable, kind: type[Features | TokenToToken]) -> MeasureView:
    # The folder holds nothing: the sections read the table alone.
    run = Run(Path("nowhere"), "r", "m", "t", "pretrained")
    return MeasureView(run, Declaration(kind.name, kind.title, ""), table)


def features(values: dict[str, Array]) -> tuple[Section, set[str]]:
    """The section, and the names of its figures."""
    rows = table_of("features", values, {name: 0 for name in values if name.startswith("negation")})
    section = Features.describe(view_of(rows, Features))
    assert section is not None
    return section, {block.name for block in section.figures}


def test_the_section_says_where_features_are_attended_to_most() -> None:
    section, figures = features(FEATURES)
    assert section.findings == [
        "Mean attention is highest to [CLS] in layer 0 (0.500 on average over heads) and [SEP] in layer 1 (0.400 on average over "
        "heads); that is the paper's order, [CLS] early and [SEP] late, but differences between layers are not tested.",
        "Furthest above as many random words of the same examples is attention to nouns in layer 1 · head 1, 4.0 times as "
        "much; 1 of 4 heads gives nouns significantly more. The top head is significantly higher than every other (standard "
        "errors, Holm-corrected).",
    ]
    assert figures == {"features_special", "features_special_heads", "features_words"}
    [table] = section.tables
    assert table.header[2:5] == ["mean of heads", "uniform", "as many random words"]
    # Only what an example has: no example has a negation.
    assert [row[0] for row in table.rows] == ["nouns", "[CLS]", "[SEP]"]
    assert table.rows[0][1:] == ["50", "0.110", "0.050", "0.080", "1 of 4", "layer 1 · head 1: 0.320 (0.294 to 0.346)"]
    assert (
        "that is not the paper's order"
        in features({**FEATURES, "cls": FEATURES["sep"], "sep": FEATURES["cls"]})[0].findings[0]
    )


def test_no_head_above_random_words_is_said_so() -> None:
    values = {name: FEATURES[name] for name in FEATURES if name.startswith("nouns")}
    values |= {"nouns": np.full((2, 2), 0.07), "nouns_over_random": np.full((2, 2), -0.01)}
    section, _ = features(values)
    assert section.findings == ["No head is shown to give nouns more than as many random words of the same examples."]
    assert section.tables[0].rows[0][5] == "0 of 4"


def test_features_of_words_alone_make_no_figure_of_special_tokens() -> None:
    section, figures = features({name: FEATURES[name] for name in FEATURES if name.startswith("nouns")})
    assert figures == {"features_words"}
    assert section.figures[0].caption.endswith("(section 4.4 of Kovaleva et al.).")
    assert len(section.findings) == 1


def test_all_separators_together_without_the_highest_of_them() -> None:
    values = {name.replace("sep", "sep_total"): value for name, value in FEATURES.items()}
    section, figures = features(values)
    assert [row[0] for row in section.tables[0].rows] == ["nouns", "[CLS]", "all [SEP] together"]
    assert figures == {"features_special", "features_special_heads", "features_words"}
    without = {name: value for name, value in PAIRS.items() if not name.startswith(("cls_to_sep", "coreferent"))}
    without |= {name: PAIRS[name] for name in ("cls_to_sep_total", "cls_to_sep_total_random")}
    section_ = TokenToToken.describe(view_of(table_of("token_to_token", without, {}), TokenToToken))
    assert section_ is not None
    assert "the mean attention of [CLS] is highest to all [SEP] together (0.600" in section_.findings[0]


PAIRS = {
    "cls_to_nouns": np.array([[0.9, 0.9], [0.2, 0.4]]),
    "cls_to_sep": np.array([[0.1, 0.1], [0.5, 0.7]]),
    "cls_to_sep_total": np.array([[0.1, 0.1], [0.5, 0.7]]),
    "subject_to_verb": np.array([[0.9, 0.1], [0.2, 0.5]]),
    "subject_to_verb_mean": np.array([[0.6, 0.1], [0.2, 0.3]]),
    "subject_to_verb_beyond_position": np.array([[0.0, -0.1], [0.001, 0.2]]),
    "subject_to_verb_beyond_received": np.array([[0.3, -0.1], [0.3, 0.1]]),
    "subject_to_verb_far": np.array([[0.02, 0.1], [0.2, 0.4]]),
    "coreferent": np.full((2, 2), math.nan),
    "coreferent_mean": np.full((2, 2), math.nan),
    "coreferent_beyond_position": np.full((2, 2), math.nan),
    "coreferent_beyond_received": np.full((2, 2), math.nan),
    "coreferent_far": np.full((2, 2), math.nan),
    "uniform": np.full((2, 2), 0.05),
}
PAIRS |= {f"cls_to_{name}_random": np.full((2, 2), 0.07) for name in ("nouns", "sep", "sep_total")}


def test_heads_beyond_position_are_counted() -> None:
    empty = dict.fromkeys((name for name in PAIRS if name.startswith("coreferent")), 0)
    section = TokenToToken.describe(view_of(table_of("token_to_token", PAIRS, empty), TokenToToken))
    assert section is not None
    assert section.findings == [
        "In the last layer the mean attention of [CLS] is highest to [SEP] (0.600 on average over heads; as many random words get 0.070), then "
        "to nouns (0.300; 0.070).",
        "Of 1 kind of linked words, 1 has a head that attends to them beyond both position and word; furthest beyond "
        "position goes layer 1 · head 1 for subject → verb, 0.200 (0.174 to 0.226). The top head is significantly higher than every "
        "other (standard errors, Holm-corrected).",
    ]
    [rows] = [table.rows for table in section.tables]
    assert rows == [
        [
            "subject → verb",
            "50",
            "layer 0 · head 0: 0.900 (0.874 to 0.926)",
            "0.600",
            "0.000",
            "0.300",
            "0.020",
            "1 of 4",
            "layer 1 · head 1: 0.200 (0.174 to 0.226)",
        ]
    ]
    assert {block.name for block in section.figures} == {
        "token_to_token_cls",
        "token_to_token_pairs",
        "token_to_token_beyond_position",
    }


def test_heads_above_random_words_are_those_of_scipys_test_on_the_examples_themselves() -> None:
    rng = np.random.default_rng(0)
    # Few examples whose lengths, and with them what random words get, differ widely.
    random_N = 1 / rng.integers(5, 60, 7)
    over_NLHC = rng.normal(rng.uniform(-0.02, 0.05, (3, 4, 2)), 0.03, (7, 3, 4, 2))
    batch_values = {}
    for index, name in enumerate(("nouns", "verbs")):
        batch_values[name] = random_N[:, None, None] + over_NLHC[..., index]
        for end in ("_uniform", "_random"):
            batch_values[name + end] = np.broadcast_to(random_N[:, None, None], (7, 3, 4))
        batch_values[f"{name}_over_random"] = over_NLHC[..., index]
    value_NLHC = torch.tensor(np.stack(list(batch_values.values()), -1))
    count_LHC = torch.full(value_NLHC.shape[1:], 7)
    grid = HeadGrid.from_sums("features", tuple(batch_values), value_NLHC.sum(0), value_NLHC.square().sum(0), count_LHC)
    rows = HeadTable.from_grid(grid, run="r", model="m", task="t", init="pretrained", stage="checkpoint", step=3)
    section = Features.describe(view_of(rows, Features))
    assert section is not None
    [table] = section.tables
    related = [
        stats.ttest_rel(batch_values[name], batch_values[f"{name}_random"], axis=0, alternative="greater").pvalue
        for name in ("nouns", "verbs")
    ]
    expected_CN = stats.false_discovery_control(np.stack(related).ravel()).reshape(2, 12) <= 0.05
    assert 0 < expected_CN.sum() < expected_CN.size
    assert [row[5] for row in table.rows] == [f"{each.sum()} of 12" for each in expected_CN]
    # A normal test that takes the two for samples of their own counts others.
    spreads = [np.hypot(stats.sem(batch_values[name]), stats.sem(random_N)) for name in ("nouns", "verbs")]
    p_CN = stats.norm.sf(np.moveaxis(over_NLHC.mean(0), -1, 0) / np.stack(spreads)).ravel()
    assert (stats.false_discovery_control(p_CN).reshape(2, 12) <= 0.05).sum() != expected_CN.sum()


def test_no_section_without_a_number() -> None:
    for kind in (Features, TokenToToken):
        assert kind.describe(view_of(HeadTable.empty(), kind)) is None
    nothing = {
        name: np.full((2, 2), math.nan) for name in ("nouns", "nouns_uniform", "nouns_random", "nouns_over_random")
    }
    rows = table_of("features", nothing, dict.fromkeys(nothing, 0))
    assert Features.describe(view_of(rows, Features)) is None
