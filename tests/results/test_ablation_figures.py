"""Figures of sweeps: noise must look like noise."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from bertsecrets.ablation.figures import (
    SimilarGroup,
    cumulative_curve,
    disabling_heatmap,
    effect_trajectory,
    layer_bars,
    redundancy_chart,
    sorted_effects,
    volcano,
)


def words(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_insignificant_cells_are_pale_and_significant_ones_bold() -> None:
    delta_LH = np.array([[-0.191, 0.012], [np.nan, -0.004]])
    significant_LH = np.array([[True, False], [True, False]])
    dispensable_LH = np.array([[False, True], [False, False]])
    figure = disabling_heatmap(
        delta_LH, significant_LH, dispensable_LH, title="t", count=408, margin=0.01, smallest_effect=0.029
    )
    texts = {text.get_text(): text for text in figure.axes[0].texts}
    assert set(texts) == {"\N{MINUS SIGN}19.1", "1.2", "\N{MINUS SIGN}0.4"}
    assert texts["\N{MINUS SIGN}19.1"].get_fontweight() == "bold"
    assert texts["1.2"].get_fontweight() == "normal"
    coloured = figure.axes[0].collections[0].get_array()
    assert np.ma.getmaskarray(coloured).reshape(2, 2).tolist() == [[False, True], [True, True]]
    note = figure._supxlabel.get_text()  # type: ignore[attr-defined]
    assert "pale blue: can be spared (a loss of 1.0 points or more is ruled out)" in note.replace("\n", " ")
    assert "2.9 points" in note.replace("\n", " ")
    assert "n = 408 examples" in note.replace("\n", " ")


def test_cells_that_are_no_heads_are_called_what_they_are() -> None:
    grid = np.zeros((3, 4), bool)
    figure = disabling_heatmap(np.zeros((3, 4)), grid, grid, title="t", count=5, smallest_effect=0.5, column="group")
    assert figure.axes[0].get_xlabel() == "group"
    note = figure._supxlabel.get_text().replace("\n", " ")  # type: ignore[attr-defined]
    assert "corrected over all groups" in note
    assert "head" not in note


def test_a_sweep_without_any_effect_is_all_pale() -> None:
    figure = disabling_heatmap(
        np.zeros((3, 4)), np.zeros((3, 4), bool), np.zeros((3, 4), bool), title="t", count=5, smallest_effect=0.5
    )
    assert np.ma.getmaskarray(figure.axes[0].collections[0].get_array()).all()


@pytest.mark.parametrize("count", [3, 144])
def test_effects_are_in_order(count: int) -> None:
    delta_V = np.linspace(0.1, -0.2, count)
    names = [f"v{i}" for i in range(count)]
    figure = sorted_effects(
        names, delta_V, delta_V - 0.1, delta_V + 0.1, delta_V < -0.1, delta_V > 0, title="t", count=9
    )
    if count == 3:
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["v2", "v1", "v0"]
    else:
        harmful, helpful = words(figure)
        assert harmful.splitlines()[:2] == ["most harmful", "v143 \N{MINUS SIGN}20.0*"]
        assert helpful.splitlines()[-1] == "v0 10.0"
    with pytest.raises(ValueError, match="at least one variant"):
        sorted_effects([], [], [], [], [], [], title="t", count=1)


def test_volcano_counts_and_names() -> None:
    figure = volcano(["a", "b", "c"], [-0.2, 0.0, 0.1], [1e-9, 1.0, 0.2], [True, False, False], title="t", count=9)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["not significant after correction (2)", "significant after correction (1)"]
    assert "a" in words(figure)
    assert "c" not in words(figure)


def test_layers_of_a_part_of_the_model_keep_their_numbers() -> None:
    figure = layer_bars([3, 7], [-0.1, 0.0], [-0.2, -0.1], [0.0, 0.1], [True, False], [False, True], title="t", count=9)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["3", "7"]
    first, second = figure.axes[0].patches[:2]
    assert first.get_facecolor() != second.get_facecolor()


def test_a_curve_is_sorted_by_size() -> None:
    figure = cumulative_curve([3, 1], [0.5, 0.8], [0.4, 0.7], [0.6, 0.9], baseline=0.85, title="t", count=9)
    assert figure.axes[0].lines[0].get_xdata().tolist() == [1, 3]
    assert figure.axes[0].lines[0].get_ydata().tolist() == [0.8, 0.5]


def test_the_largest_effects_at_the_end_are_named() -> None:
    delta_TV = [[0.0, 0.0, 0.0], [-0.3, np.nan, 0.01]]
    figure = effect_trajectory([5, 10], delta_TV, ["a", "b", "c"], title="t", count=9, named=1)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["a"]


def test_groups_carry_their_verdicts() -> None:
    groups = [
        SimilarGroup("0-1 0-2", [-0.01, 0.0], -0.2, [], [-0.01, 0.0, 0.01], "redundant"),
        SimilarGroup("1-1 1-2 1-3", [0.0, 0.0, 0.0], 0.0, [0.0, 0.0, 0.0], [], "dispensable"),
    ]
    assert {"redundant", "can be spared"} <= set(words(redundancy_chart(groups, title="t", count=9)))
    with pytest.raises(ValueError, match="at least one group"):
        redundancy_chart([], title="t", count=9)


@pytest.mark.parametrize("shape", [(12, 12), (6, 12), (24, 16), (24, 24)])
def test_every_number_of_a_heatmap_is_large_enough_and_alone(shape: tuple[int, int]) -> None:
    delta_LH = np.random.default_rng(0).normal(0, 0.08, shape)
    figure = disabling_heatmap(
        delta_LH, np.abs(delta_LH) > 0.1, delta_LH > 0, title="t", count=408, smallest_effect=0.02
    )
    figure.draw_without_rendering()
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())
    rows: dict[float, list[Text]] = {}
    for text in figure.axes[0].texts:
        rows.setdefault(text.get_position()[1], []).append(text)
    for row in rows.values():
        boxes = sorted((text.get_window_extent() for text in row), key=lambda box: box.x0)
        assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))


def test_a_score_that_is_undefined_hides_no_other() -> None:
    delta_V, names = [-0.2, np.nan, 0.01], ["a", "b", "c"]
    figure = volcano(names, delta_V, [1e-6, 1.0, 0.5], [True, False, False], title="t", count=9)
    low, high = figure.axes[0].get_xlim()
    assert low < -20 < 1 < high
    many = [f"v{i}" for i in range(50)]
    figure = sorted_effects(
        many, [np.nan, *[0.0] * 49], [0.0] * 50, [0.0] * 50, [False] * 50, [False] * 50, title="t", count=9
    )
    assert "nan" not in "".join(words(figure))
    assert "1 without a defined score" in figure._supxlabel.get_text().replace("\n", " ")  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(5))
def test_volcano_names_the_worst_and_no_name_lies_on_another(seed: int) -> None:
    rng = np.random.default_rng(seed)
    delta_V = np.round(rng.normal(0, 0.006, 144) * 408) / 408
    delta_V[:4] = [-0.02, -0.05, -0.055, -0.06]
    p_V = np.maximum(10.0 ** -np.abs(delta_V * 250), 1e-12)
    names = [f"l{i // 12:02d}h{i % 12:02d}" for i in range(144)]
    figure = volcano(names, delta_V, p_V, p_V < 1e-3, title="t", count=408)
    figure.draw_without_rendering()
    labels = [text for text in figure.axes[0].texts if text.get_text() in names]
    assert "l00h03" in [text.get_text() for text in labels]
    boxes = [Text.get_window_extent(text) for text in labels]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
