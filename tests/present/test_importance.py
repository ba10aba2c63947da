"""Sections on scores of heads, against numbers put together by hand."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measures.toy import view_of
from scipy import stats

from bertsecrets.ablation.direct import DirectEffects
from bertsecrets.ablation.rows import EarlyHeads, Worth
from bertsecrets.ablation.shapley import Shapley
from bertsecrets.grid import HeadGrid
from bertsecrets.importance.confidence import Confidence
from bertsecrets.importance.first_order import FirstOrder
from bertsecrets.importance.gradient import GradientImportance
from bertsecrets.importance.integrated_gradients import IntegratedGradients
from bertsecrets.importance.relevance import Relevance
from bertsecrets.importance.rows import Completeness, Propagation
from bertsecrets.present.importance import FIRST_ORDER
from bertsecrets.present.presenter import presenter_of
from bertsecrets.present.report.content import Section
from bertsecrets.results.estimate import Estimate


def section_of(
    folder: Path,
    experiment: Any,
    columns: Mapping[str, Any],
    found: Sequence[object] = (),
    error: float = 0.01,
) -> Section:
    """The section of 2 layers of 2 heads with these numbers, 1 in other columns, over 50 examples."""
    names = [column.name for column in experiment.columns]
    value_LHC = torch.ones(2, 2, len(names), dtype=torch.float64)
    for name, value_LH in columns.items():
        value_LHC[..., names.index(name)] = torch.as_tensor(value_LH, dtype=torch.float64)
    stderr_LHC = torch.full_like(value_LHC, error)
    grid = HeadGrid(experiment.name, experiment.columns, value_LHC, stderr_LHC, torch.full_like(value_LHC, 50).long())
    view = view_of(folder, experiment, grid, found)
    section = presenter_of(experiment.declaration()).section(view)
    assert section is not None
    assert all(block.figure.axes for block in section.figures)
    return section


def test_confident_heads_are_counted(tmp_path: Path) -> None:
    section = section_of(tmp_path, Confidence(2, 2), {"confidence": [[0.5, 0.7], [0.81, 1.0]]})
    assert section.findings[1].endswith(" in 2 of 4 heads.")


def test_shares_are_compared_with_what_they_should_add_up_to(tmp_path: Path) -> None:
    sums = Completeness(loss_disabled=3.25, loss=0.25, total=3.01)
    section = section_of(tmp_path, IntegratedGradients(2, 2), {}, [sums])
    assert section.findings[1] == (
        "The shares sum to 3.010; disabling all heads raises the loss from 0.250 to 3.250, by 3.000."
    )


@pytest.mark.parametrize(
    ("mode", "t_4", "words"),
    [
        ("uniform", (9.0, 5.0, 0.1, -9.0), "2 of 4 heads have a first-order estimate significantly above 0, most of "
                                           "all layer 0 · head 0: "),
        ("zero", (0.1, -9.0, 5.0, 0.0), "1 of 4 heads has a first-order estimate significantly above 0: layer 1 · head "
                                        "0, "),
        ("mean", (0.1, 0.2, 0.3, 0.1), "None of 4 heads has a first-order estimate significantly above 0 in mode mean "
                                       "("),
        ("uniform", (-1.0, -2.0, -3.0, -9.0), "no estimate is above 0."),
        ("zero", (math.nan, 9.0, math.nan, math.nan), "1 of 1 heads has a first-order estimate significantly above 0: "
                                                      "layer 0 · head 1, the loss is estimated to rise by"),
        # A mode without an estimate is that of the first column.
        ("resample", (9.0, 5.0, 0.1, -9.0), "without it in mode uniform ("),
    ],
)  # fmt: skip
def test_first_order_says_which_heads_matter_in_the_mode_of_the_run(
    mode: str, t_4: tuple[float, ...], words: str, tmp_path: Path
) -> None:
    measure, count = FirstOrder(2, 2), 50
    value_LHC = torch.zeros(2, 2, 3, dtype=torch.float64)
    asked = mode if mode in {column.name for column in measure.columns} else "uniform"
    value_LHC[..., [column.name for column in measure.columns].index(asked)] = torch.tensor(t_4).reshape(2, 2) / 100
    shape = value_LHC.shape
    grid = HeadGrid(measure.name, measure.columns, value_LHC, torch.full(shape, 0.01), torch.full(shape, count))
    (tmp_path / "config.yaml").write_text(f"ablation: {{mode: {mode}}}")
    section = FIRST_ORDER.section(view_of(tmp_path, measure, grid))
    assert section is not None
    (finding,) = section.findings
    assert words in finding
    p_N = stats.t.sf([t for t in t_4 if not math.isnan(t)], count - 1)
    shown = int((stats.false_discovery_control(p_N) <= 0.05).sum())
    assert f"{shown or 'None'} of" in finding
    assert ("may be chance" in finding) == (mode == "mean")


def test_gradients_by_class_count_heads_and_name_layers(tmp_path: Path) -> None:
    columns = {
        "gradient_sep_total": [[0.25, 0.25], [2.0, 2.0]],
        "sep_total_minus_other": [[-0.75, -0.75], [1.0, 0.0]],
        "cls_minus_other": np.zeros((2, 2)),
    }
    section = section_of(tmp_path, GradientImportance(2, 2), columns)
    assert section.findings[0] == (
        "The loss depends significantly less on attention to [SEP] than on attention to other tokens in 2 of 4 heads, "
        "and more in 1; a layer's mean gradient for [SEP] is between 0.25 (layer 0) and 2.00 (layer 1) times that for "
        "other tokens."
    )
    assert " in 0 of 4 heads, and more in 0;" in section.findings[1]
    assert [block.name for block in section.figures] == [
        "gradient_importance",
        "gradient_importance_product",
        "gradient_importance_heads",
    ]
    assert [list(row[:4]) for row in section.tables[0].rows] == [
        ["0", "1.00e+00", "1.00", "0.25"],
        ["1", "1.00e+00", "1.00", "2.00"],
    ]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Propagation("z", False), "Attention weights are held fixed"),
        (
            Propagation("alpha_beta", True),
            "get half of the relevance of a product, which goes on to queries and keys. Positive",
        ),
    ],
)
def test_the_most_relevant_head_of_each_layer_is_named(tmp_path: Path, how: Propagation, words: str) -> None:
    columns = {"relevance": [[0.7, 0.3], [0.2, 0.8]], "signed": [[-0.7, 0.3], [0.2, 0.8]]}
    section = section_of(tmp_path, Relevance(2, 2), columns, [how])
    assert section.findings[0].startswith("Layer 1 · head 1 has the highest share of its layer's relevance: 0.800 (")
    assert "where equal shares would be 0.500. " in section.findings[0]
    assert section.tables[0].rows == [
        ["0", "layer 0 · head 0", "0.700 ± 0.010", "−0.700"],
        ["1", "layer 1 · head 1", "0.800 ± 0.010", "+0.800"],
    ]
    assert words in section.paragraphs[0]


WORTHS = [Worth("loss", -0.5, -0.75, "zero", 128), Worth("f1", 0.9, 0.6, "zero", 128)]


def test_shapley_values_add_up_to_what_all_heads_are_worth(tmp_path: Path) -> None:
    columns = {"loss": [[0.2, 0.1], [0.0, -0.05]], "f1": [[0.3, 0.0], [0.0, 0.0]]}
    section = section_of(tmp_path, Shapley("f1"), columns, WORTHS)
    loss, metric = section.findings
    assert loss.startswith(
        "The mean loss is 0.500 with all heads and 0.750 without any; the values of the 4 heads add up"
    )
    assert " 2 have a value significantly above 0 and 1 below; the highest is 0.2000 (" in loss
    assert metric.startswith("The F1 is 0.900 with all heads and 0.600 without any")
    assert section.tables[0].rows[0][:2] == ["layer 0 · head 0", "0.2000 ± 0.0100"]
    assert "(mode zero)" in section.paragraphs[0]
    assert "on these 128 examples" in section.paragraphs[0]
    assert section.head == (0, 0)


SUM = Estimate(0.5, stderr=0.1, n=50)


@pytest.mark.parametrize(
    ("early", "words"),
    [
        (
            EarlyHeads("zero", SUM, SUM, Estimate(0.8, 0.5, 1.25)),
            "the total effect is 0.80 (0.50 to 1.25) times the direct one.",
        ),
        (EarlyHeads("zero", SUM, SUM, None), "so the share of it that later layers undo cannot be told."),
        (EarlyHeads("zero", None, None, None), "in 1 head, and more in 1."),
    ],
)
def test_direct_effects_are_compared_with_total_ones(tmp_path: Path, early: EarlyHeads, words: str) -> None:
    columns = {"direct": [[0.2, 0.1], [0.0, -0.3]], "undone": [[0.1, -0.1], [0.3, 0.3]]}
    section = section_of(tmp_path, DirectEffects(2, 2), columns, [early])
    assert section.findings[0].startswith(
        "Disabling a head raises the loss significantly by its direct effect in 2 of 4 heads."
    )
    assert section.findings[0].endswith(words)
    assert [row[0] for row in section.tables[0].rows][:2] == ["layer 1 · head 1", "layer 0 · head 0"]
    # The last layer has no later one.
    assert [row[-1] == "–" for row in section.tables[0].rows] == [True, False, False, True]
