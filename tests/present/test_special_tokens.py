"""Sections on attention to special tokens, against rows put together by hand."""

import math
from pathlib import Path

import torch
from measures.toy import view_of

from bertsecrets.grid import HeadGrid
from bertsecrets.importance.rows import Limits
from bertsecrets.importance.sink_heads import Sinks, sink_rows
from bertsecrets.present.special_tokens import SINKS
from bertsecrets.results.views import MeasureView

HEADS = [(0, 0), (1, 0), (1, 2)]
NUMBERS = {
    "attention": (0.9, 0.5, 0.7),
    "value_ratio": (0.1, 0.8, 0.9),
    "norm_share": (0.2, 0.7, 0.4),
    "output_change": (3.0, 0.5, 0.2),
    "redirect": (0.001, 0.2, 0.02),
    "redirect_loss": (0.001, 0.3, -0.2),
    "redirect_flips": (0.0, 0.1, 0.05),
    "cut": (0.0001, 0.1, 0.002),
}


def sinks_view(folder: Path, numbers: dict[str, tuple[float, ...]]) -> MeasureView:
    """2 layers of 3 heads that give 10 % of their attention to each token, but for those of HEADS, to [CLS]."""
    experiment = Sinks()
    names = [column.name for column in experiment.columns]
    value_LHC = torch.full((2, 3, len(names)), math.nan, dtype=torch.float64)
    for token in ("sep", "cls"):
        value_LHC[..., names.index(f"{token}_attention")] = 0.1
    for name, values in numbers.items():
        for (layer, head), value in zip(HEADS, values, strict=True):
            value_LHC[layer, head, names.index(f"cls_{name}")] = value
    grid = HeadGrid(
        "sinks",
        experiment.columns,
        value_LHC,
        torch.full_like(value_LHC, 0.01),
        torch.where(value_LHC.isnan(), 0, 100),
    )
    return view_of(folder, experiment, grid, list(sink_rows(grid, ("sep", "cls"), Limits())))  # type: ignore[arg-type]


def test_sink_heads_are_told_by_diagnosis_and_intervention(tmp_path: Path) -> None:
    view = sinks_view(tmp_path, NUMBERS)
    section = SINKS.section(view)
    assert section is not None
    assert section.findings == [
        "No head gives [SEP] 50 % of its attention, so whether this attention is a no-op cannot be tested.",
        "3 of 6 heads are sink heads of [CLS]. Redirecting one head's attention away from it changes the predictions "
        "by less than 0.01 on average in 1 of them; the loss rises significantly in 1 and falls in 1. By "
        "intervention: 1 nop, 1 broadcast, 1 content. The value norm predicts the heads where cutting changes the "
        "predictions with an area under the ROC curve of 0.50 (0.08 to 0.92); chance is 0.5.",
    ]
    assert SINKS.classes(view)["sink by norms"] == [["[CLS] nop", "–", "–"], ["[CLS] broadcast", "–", "[CLS] content"]]
    assert SINKS.scalars(view)["cls/broadcast"] == 1.0
    heads, kinds, agreement = section.tables
    assert heads.rows[1][0] == "layer 1 · head 0"
    assert heads.rows[1][5:8] == ["0.2000", "0.3000 ± 0.0100*", "10.0"]
    assert kinds.rows[1] == ["broadcast", "0", "1", "0", "1"]
    cells = {row[0]: list(row[1:]) for row in agreement.rows}
    assert cells["[SEP], cutting"] == ["0", "0", "–", "–"]
    assert cells["[CLS], redirecting"][:3] == ["2", "1", "1.00"]
    redirected, cut = section.figures[0].figure.axes
    # Empty dots for heads that change the answers by less than 0.01, then filled ones.
    assert [line.get_ydata().tolist() for line in redirected.lines[1:]] == [[0.001], [0.2, 0.02]]
    assert [line.get_ydata().tolist() for line in cut.lines[1:]] == [[0.0001, 0.002], [0.1]]


def test_no_sink_head_leaves_no_figure(tmp_path: Path) -> None:
    section = SINKS.section(sinks_view(tmp_path, {}))
    assert section is not None
    assert not section.figures
    assert not section.tables
    assert len(section.findings) == 2
