"""Figures of sweeps: noise must look like noise."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import ArrayLike
from reporting.finished_runs import effect_row

from bertsecrets.ablation.redundancy import Group
from bertsecrets.present.figures.disabling import (
    disabling_heatmap,
    effect_trajectory,
    effects_in_order,
    redundancy_chart,
)
from bertsecrets.present.figures.grids import heatmap
from bertsecrets.results.components import Row
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED


def row(delta: float, verdict: str = INCONCLUSIVE, layer: int = 0, head: int = 0, **other: Any) -> Row:
    """A judged row of a head."""
    limits = {"low": delta - 0.05, "high": delta + 0.05}
    limits |= {"low_simultaneous": delta - 0.1, "high_simultaneous": delta + 0.1}
    judged = {"verdict": verdict, "significant": verdict == NEEDED, **limits}
    return effect_row(delta, layer, head, **{**judged, **other})


def grid(delta_LH: ArrayLike, needed_LH: ArrayLike, spared_LH: ArrayLike, **other: Any) -> list[Row]:
    """A row for each head, which is needed, or can be spared, or neither."""
    needed_LH, spared_LH = np.asarray(needed_LH), np.asarray(spared_LH)
    return [
        row(
            float(delta),
            NEEDED if needed_LH[cell] else DISPENSABLE if spared_LH[cell] else INCONCLUSIVE,
            *cell,
            **other,
        )
        for cell, delta in np.ndenumerate(delta_LH)
    ]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_insignificant_cells_are_pale_and_significant_ones_bold() -> None:
    delta_LH = np.array([[-0.191, 0.012], [np.nan, -0.004]])
    significant_LH = np.array([[True, False], [True, False]])
    dispensable_LH = np.array([[False, True], [False, False]])
    rows = grid(delta_LH, significant_LH, dispensable_LH)
    figure = disabling_heatmap(rows, title="t")
    texts = {text.get_text(): text for text in figure.axes[0].texts}
    assert set(texts) == {"\N{MINUS SIGN}19.1", "1.2", "\N{MINUS SIGN}0.4"}
    assert texts["\N{MINUS SIGN}19.1"].get_fontweight() == "bold"
    assert texts["1.2"].get_fontweight() == "normal"
    coloured = figure.axes[0].collections[0].get_array()
    assert np.ma.getmaskarray(coloured).reshape(2, 2).tolist() == [[False, True], [True, True]]
    note = figure._supxlabel.get_text()
    assert "pale blue: can be spared (a loss of 1.0 points or more is ruled out)" in note.replace("\n", " ")
    assert "n = 408 examples" in note.replace("\n", " ")


def test_cells_that_are_no_heads_are_called_what_they_are() -> None:
    none = np.zeros((3, 4), bool)
    figure = disabling_heatmap(grid(np.zeros((3, 4)), none, none, kind="neurons"), title="t")
    assert figure.axes[0].get_xlabel() == "group"
    note = figure._supxlabel.get_text().replace("\n", " ")
    assert "corrected over all groups" in note
    assert "head" not in note


@pytest.mark.parametrize("count", [3, 144])
def test_effects_are_in_order(count: int) -> None:
    delta_V = np.linspace(0.1, -0.2, count)
    verdicts = [NEEDED if delta < -0.1 else DISPENSABLE if delta > 0 else INCONCLUSIVE for delta in delta_V]
    rows = [row(float(delta), verdict, 1, i) for i, (delta, verdict) in enumerate(zip(delta_V, verdicts, strict=True))]
    figure = effects_in_order(rows, title="t")
    if count == 3:
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert labels == [f"layer 1 · head {head}" for head in (2, 1, 0)]
    else:
        harmful, helpful = words(figure)
        assert harmful.splitlines()[:2] == ["most harmful", "layer 1 · head 143 \N{MINUS SIGN}20.0"]
        assert helpful.splitlines()[-1] == "layer 1 · head 0 10.0"


def test_layers_stay_in_their_own_order() -> None:
    rows = [{**row(delta, kind="layer"), "layer": layer, "head": None} for delta, layer in ((0.0, 3), (-0.1, 7))]
    figure = effects_in_order(rows, title="t")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["layer 3", "layer 7"]


def test_the_largest_effects_at_the_end_are_named() -> None:
    rows = [row(0.0, head=head) for head in range(7)]
    later = [row(delta, head=head, step=10) for head, delta in enumerate((-0.3, 0.01, 0.05, 0.0, -0.2, 0.04, -0.1))]
    figure = effect_trajectory(rows, [*({**each, "step": 5} for each in rows), *later], title="t")
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        f"layer 0 · head {head}" for head in (0, 4, 6, 2, 5)
    ]


def test_groups_carry_their_verdicts() -> None:
    pair, three = (
        row(delta, verdict, kind="group", heads=heads, redundant=redundant)
        for delta, verdict, heads, redundant in (
            (-0.2, NEEDED, "0-1 0-2", True),
            (0.0, DISPENSABLE, "1-1 1-2 1-3", False),
        )
    )
    groups = [
        Group(pair, [row(-0.01), row(0.0)], [row(0.0), row(-0.01)], [row(delta) for delta in (-0.01, 0.0, 0.01)]),
        Group(three, [row(0.0)] * 3, [row(0.0)] * 3, []),
    ]
    assert {"redundant", "can be spared"} <= set(words(redundancy_chart(groups, title="t")))


@pytest.mark.parametrize("shape", [(12, 12), (6, 12), (24, 16), (24, 24)])
@pytest.mark.parametrize("disabled", [True, False])
def test_every_number_of_a_heatmap_is_large_enough_and_alone(shape: tuple[int, int], disabled: bool) -> None:
    delta_LH = np.random.default_rng(0).normal(0, 0.08, shape)
    rows = grid(delta_LH, np.abs(delta_LH) > 0.1, delta_LH > 0)
    drawn = disabling_heatmap(rows, title="t") if disabled else heatmap(-abs(delta_LH), title="t", unit="u", count=1)
    drawn.draw_without_rendering()
    assert all(text.get_fontsize() >= 8 for text in drawn.findobj(Text) if text.get_text())
    texts: dict[float, list[Text]] = {}
    for text in drawn.axes[0].texts:
        texts.setdefault(text.get_position()[1], []).append(text)
    for line in texts.values():
        boxes = sorted((text.get_window_extent() for text in line), key=lambda box: box.x0)
        assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))


def test_a_score_that_is_undefined_hides_no_other() -> None:
    figure = effects_in_order([row(np.nan), *(row(0.0, head=head) for head in range(1, 50))], title="t")
    assert "nan" not in "".join(words(figure))
    assert "1 without a defined score" in figure._supxlabel.get_text().replace("\n", " ")
