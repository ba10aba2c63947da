"""Which heads matter by first-order estimates, against scipy's tests."""

import math
from pathlib import Path

import pytest
import torch
from measures.toy import view_of
from scipy import stats

from bertsecrets.grid import HeadGrid
from bertsecrets.importance.first_order import FirstOrder
from bertsecrets.present.importance import FIRST_ORDER


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
    assert ("is not significant" in finding) == (mode == "mean")
