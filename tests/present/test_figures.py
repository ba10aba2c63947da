import io
import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image
from scipy.ndimage import generic_filter

from bertsecrets.errors import UserError
from bertsecrets.present.figures.curves import gradient_flow, running_median, trajectory
from bertsecrets.present.figures.grids import HeadPanel, head_cells, head_panels, heatmap
from bertsecrets.present.figures.maps import MapPanel, gallery, labelled_positions
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.scatters import head_space
from bertsecrets.present.figures.style import drawn, effect_scale, save_figure, scale, seeds_in_words

RNG = np.random.default_rng(0)
SMALLEST_FONT = 8.0


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def assert_legible(figure: Figure) -> None:
    """Every text is at least 8 pt and lies within the page."""
    figure.draw_without_rendering()
    page = figure.bbox
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            assert text.get_fontsize() >= SMALLEST_FONT, text
    for axes in figure.axes:
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts):
            if text.get_text():
                box = text.get_window_extent()
                assert box.x0 >= page.x0 - 3, text
                assert box.x1 <= page.x1 + 3, text
                assert box.y0 >= page.y0 - 3, text
                assert box.y1 <= page.y1 + 3, text


@pytest.mark.parametrize("shape", [(6, 12), (12, 12), (24, 16), (2, 2), (12, 1), (1, 1)])
def test_heatmap_shows_every_value_in_its_place(shape: tuple[int, int]) -> None:
    value_LH = RNG.uniform(0.1, 0.9, shape)
    figure = heatmap(value_LH, title="Drift", unit="cosine similarity", count=408)
    assert_legible(figure)
    axes, bar = figure.axes
    mesh = next(c for c in axes.collections if isinstance(c, QuadMesh))
    np.testing.assert_array_equal(mesh.get_array().reshape(shape), value_LH)
    assert [t.get_text() for t in axes.get_xticklabels()] == [str(h) for h in range(shape[1])]
    assert [t.get_text() for t in axes.get_yticklabels()] == [str(layer) for layer in range(shape[0])]
    bottom, top = axes.get_ylim()
    assert top < bottom, "layer 0 belongs at the top"
    assert bar.get_ylabel() == "cosine similarity"
    assert any("n = 408 examples" in word for word in words(figure))
    printed = {(int(t.get_position()[1]), int(t.get_position()[0])): float(t.get_text()) for t in axes.texts}
    assert len(printed) == value_LH.size
    for place, value in printed.items():
        assert value == pytest.approx(value_LH[place], abs=0.0051)


def test_heatmap_leaves_values_out_where_they_would_touch() -> None:
    figure = heatmap(RNG.uniform(0, 1, (12, 40)), title="t", unit="u", count=1)
    assert not figure.axes[0].texts


def test_heatmap_scale_is_diverging_only_for_signed_values() -> None:
    signed = heatmap([[-0.1, 0.3]], title="t", unit="u", count=1).axes[0].collections[0]
    assert signed.get_cmap().name == "RdBu_r"
    assert signed.get_clim() == (-0.3, 0.3)
    positive = heatmap([[0.1, 0.3]], title="t", unit="u", count=1).axes[0].collections[0]
    assert positive.get_cmap().name == "viridis"
    assert positive.get_clim() == (0.1, 0.3)


@pytest.mark.parametrize(("value", "ends"), [(0.2, (0.0, 0.2)), (-0.1, (-0.1, 0.0)), (0.0, (0.0, 1.0))])
def test_the_scale_of_one_value_reaches_to_zero(value: float, ends: tuple[float, float]) -> None:
    norm, _ = scale(np.full((2, 3), value), None)
    assert (norm.vmin, norm.vmax) == ends


def test_heatmap_obeys_limits_and_flags_what_lies_outside() -> None:
    figure = heatmap([[0.1, 0.9]], title="t", unit="u", count=1, limits=(0.5, 1.0))
    assert figure.axes[0].collections[0].get_clim() == (0.5, 1.0)
    assert figure.axes[0].collections[0].colorbar.extend == "min"


def test_heatmap_hatches_missing_and_outlines_marked_cells() -> None:
    value_LH = np.array([[0.1, np.nan], [0.3, 0.4]])
    figure = heatmap(value_LH, title="t", unit="u", count=[[3, 0], [4, 5]], marked=[(1, 0)], stderr_LH=value_LH / 10)
    axes = figure.axes[0]
    rectangles = [p for p in axes.patches if isinstance(p, Rectangle)]
    assert [r.get_xy() for r in rectangles if r.get_hatch()] == [(1, 0)]
    outlines = [r for r in rectangles if not r.get_fill()]
    assert {(math.floor(r.get_y()), math.floor(r.get_x())) for r in outlines} == {(1, 0)}
    assert len(axes.texts) == 3
    note = next(word for word in words(figure) if "n = " in word).replace("\n", " ")
    assert "n = 0 to 5 examples" in note
    assert "hatched: no value" in note
    assert "median 0.03, largest 0.04" in note


def pixels(figure: Figure) -> np.ndarray:
    with Image.open(io.BytesIO(drawn(figure, "png", 100))) as image:
        return np.asarray(image.convert("RGB"))


def test_cells_of_heads_lie_where_their_colours_are() -> None:
    one_LH = np.zeros((3, 20))
    one_LH[2, 7] = 1
    other_LH = np.zeros((3, 20))
    other_LH[0, 19] = 1
    panels = [HeadPanel("a", one_LH), HeadPanel("b", other_LH), HeadPanel("c", one_LH)]
    for figure, places in (
        (heatmap(one_LH, title="t", unit="u", count=1, limits=(0, 1)), [(2, 7)]),
        (head_panels(panels, title="t", unit="u", note="n", limits=(0, 1)), [(2, 7), (0, 19), (2, 7)]),
    ):
        colour_YX = pixels(figure)
        height, width = colour_YX.shape[:2]
        grids = head_cells(figure)
        assert len(grids) == len(places)
        for grid, place in zip(grids, places, strict=True):
            assert (grid.layers, grid.heads) == (3, 20)
            for layer, head in np.ndindex(3, 20):
                # A quarter into the cell, off its number.
                x = width * (grid.left + (head + 0.25) / 20 * grid.width)
                y = height * (grid.top + (layer + 0.15) / 3 * grid.height)
                red, _, blue = colour_YX[int(y), int(x)].astype(int)
                # Yellow is the top of the scale, violet its bottom.
                assert (red > 200 > blue) == ((layer, head) == place), (layer, head)


def test_rows_that_are_no_layers_have_no_cells_of_heads() -> None:
    value = [[0.1, 0.2]]
    for figure in (
        heatmap(value, title="t", unit="u", count=1, rows=["subject"]),
        heatmap([[0.1], [0.2]], title="t", unit="u", count=1, whole_layers=True),
    ):
        assert head_cells(figure) == []


def test_an_empty_grid_is_a_sentence() -> None:
    nothing_LH = np.full((2, 3), np.nan)
    figure = heatmap(nothing_LH, title="t", unit="u", count=7)
    assert_legible(figure)
    assert not figure.axes
    assert "No head has a value; n = 7 examples" in words(figure)
    figure = head_panels([HeadPanel("a", nothing_LH), HeadPanel("b", nothing_LH)], title="t", unit="u", note="n = 7")
    assert not figure.axes
    assert "No head has a value: a, b; n = 7" in words(figure)
    figure = head_panels([HeadPanel("a", nothing_LH), HeadPanel("b", [[0.5, 0.6]])], title="t", unit="u", note="n = 7")
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["b"]
    assert any("no head has a value: a" in word.replace("\n", " ") for word in words(figure))


def brightness(colour: tuple[float, ...]) -> float:
    return float(np.dot(colour[:3], [0.299, 0.587, 0.114]))


@pytest.mark.parametrize("values", [[-4.0, -1.0, 0.0], [-4.0, -1.0, 2.0, np.nan]])
def test_effects_are_drawn_from_white_and_larger_losses_darker(values: list[float]) -> None:
    norm, colours = effect_scale(values)
    assert colours(norm(0.0)) == (1, 1, 1, 1)
    dark = [brightness(colours(norm(loss))) for loss in np.linspace(0, -4, 9)]
    assert all(later < earlier for earlier, later in pairwise(dark))
    red, green, blue, _ = colours(norm(-4.0))
    assert red > max(green, blue)
    if 2.0 in values:
        red, green, blue, _ = colours(norm(2.0))
        assert blue > red


def test_trajectory_draws_layer_means_and_names_heads() -> None:
    steps = [0, 50, 100]
    value_SLH = np.ones((3, 4, 5))
    value_SLH[1:, 2, 3] = [0.5, 0.1]
    value_SLH[1:, 0, 1] = [0.9, 0.6]
    figure = trajectory(steps, value_SLH, title="t", unit="cosine similarity", count=408, named=[(2, 3), (0, 1)])
    assert_legible(figure)
    top, bottom = figure.axes[:2]
    lines = {line.get_label(): line for line in top.lines}
    for layer in range(4):
        np.testing.assert_allclose(lines[f"layer {layer}"].get_ydata(), value_SLH[:, layer].mean(-1))
        np.testing.assert_array_equal(lines[f"layer {layer}"].get_xdata(), steps)
    assert [text.get_text() for text in bottom.get_legend().get_texts()] == ["layer 2 · head 3", "layer 0 · head 1"]
    named = {line.get_label(): line for line in bottom.lines}
    np.testing.assert_array_equal(named["layer 2 · head 3"].get_ydata(), value_SLH[:, 2, 3])
    assert len(top.collections) == 4, "a band for each layer"
    band = top.collections[2].get_paths()[0].vertices
    error = value_SLH[2, 2].std(ddof=1) / math.sqrt(5)
    assert band[:, 1].min() == pytest.approx(value_SLH[2, 2].mean() - error)


@pytest.mark.parametrize("layers", [2, 12, 24])
def test_trajectory_of_one_step_and_of_gaps(layers: int) -> None:
    value_SLH = RNG.uniform(0, 1, (1, layers, 12))
    named = [(1, head) for head in range(5)]
    figure = trajectory([63], value_SLH, title="t", unit="u", count=1, named=named)
    assert_legible(figure)
    assert len(figure.axes[1].get_legend().get_texts()) == 5
    value_SLH[0, 0] = np.nan
    assert_legible(trajectory([63], value_SLH, title="t", unit="u", count=1, named=()))


def map_of(size: int) -> np.ndarray:
    weight_QK = RNG.uniform(0, 1, (size, size))
    return weight_QK / weight_QK.sum(-1, keepdims=True)


def test_gallery_places_maps_and_scales() -> None:
    # Read as mathematics, the second token would be an error.
    tokens = ["[CLS]", r"$\undefined$", "$", "[SEP]"]
    before, after = map_of(4), map_of(4)
    panels = [
        MapPanel("layer 5 · head 3", "pre-trained", before, tokens),
        MapPanel("layer 5 · head 3", "step 63", after, tokens),
        MapPanel("layer 5 · head 3", "change", after - before, tokens, signed=True),
        MapPanel("layer 7 · head 0", "pre-trained", before, tokens),
    ]
    figure = gallery(panels, title="t")
    assert_legible(figure)
    maps = np.array(figure.axes[:6], dtype=object).reshape(2, 3)
    np.testing.assert_array_equal(maps[0, 1].images[0].get_array(), after)
    assert [axes.get_title() for axes in maps[0]] == ["pre-trained", "step 63", "change"]
    assert maps[0, 0].get_ylabel().startswith("layer 5 · head 3")
    assert maps[1, 0].get_ylabel().startswith("layer 7 · head 0")
    assert [t.get_text() for t in maps[1, 0].get_xticklabels()] == tokens
    assert maps[0, 0].images[0].get_clim() == maps[0, 1].images[0].get_clim() == (0, max(before.max(), after.max()))
    low, high = maps[0, 2].images[0].get_clim()
    assert low == -high
    assert high == pytest.approx(np.abs(after - before).max())
    assert maps[0, 2].images[0].get_cmap().name == "RdBu_r"
    assert [t.get_text() for t in maps[1, 1].texts] == ["no map"]
    bold = {t.get_text() for t in maps[0, 0].get_yticklabels() if t.get_fontweight() == "bold"}
    assert bold == {"[CLS]", "[SEP]"}


@pytest.mark.parametrize("size", [2, 24, 30, 50, 128])
def test_gallery_labels_fit(size: int) -> None:
    tokens = ["[CLS]", *["word"] * (size - 2), "[SEP]"]
    figure = gallery([MapPanel("layer 0 · head 0", "before", map_of(size), tokens)], title="t")
    assert_legible(figure)
    axes = figure.axes[0]
    boxes = sorted((t.get_window_extent() for t in axes.get_yticklabels()), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 2 for low, high in pairwise(boxes))


def test_which_tokens_are_labelled() -> None:
    assert labelled_positions(["a"] * 30) == list(range(30))
    fifty = ["[CLS]", *["a"] * 48, "[SEP]"]
    assert {0, 49} <= set(labelled_positions(fifty))
    assert 10 < len(labelled_positions(fifty)) <= 30
    assert labelled_positions(["<s>", *["a"] * 100, "</s>"]) == [0, 101]


def test_gradient_flow_draws_positive_values_on_log_scales() -> None:
    steps = list(range(10))
    norm_SL = RNG.uniform(0.5, 2, (10, 4))
    norm_SL[:, 0] = 0
    norm_SL[3, 2] = np.nan
    figure = gradient_flow(steps, norm_SL, norm_SL / 1000, title="t", batch_size=32)
    assert_legible(figure)
    top, bottom = figure.axes[:2]
    assert top.get_yscale() == bottom.get_yscale() == "log"
    lines = {line.get_label(): line for line in top.lines}
    assert "layer 0" not in lines
    np.testing.assert_array_equal(lines["layer 1"].get_ydata(), norm_SL[:, 1])
    note = next(word for word in words(figure) if "n = 32" in word).replace("\n", " ")
    assert "no gradient in layers 0" in note


@pytest.mark.parametrize("norm", [0.0, 1.0])
def test_gradient_flow_of_one_step_and_of_none_that_learns(norm: float) -> None:
    norm_SL = np.full((1, 3), norm)
    assert_legible(gradient_flow([5], norm_SL, norm_SL, title="t", batch_size=8))


def test_running_median_agrees_with_scipy() -> None:
    value_S = RNG.uniform(0, 1, 40)
    inner = slice(3, -3)
    np.testing.assert_allclose(running_median(value_S, 7)[inner], generic_filter(value_S, np.median, 7)[inner])
    assert running_median(np.array([1.0, np.nan, 3.0]), 3).tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(running_median(np.full(3, np.nan), 1)).all()


def test_rows_show_value_interval_baseline_and_seeds() -> None:
    rows = [
        IntervalRow("accuracy", 0.86, 0.82, 0.89, 0.68, seeds=[0.84, 0.88]),
        IntervalRow("Matthews", -0.2, baseline=0.0),
        IntervalRow("Pearson", math.nan),
    ]
    figure = interval_rows(
        rows, title="t", unit="score", note="n = 408", reference=None, value="model", baseline="constant"
    )
    assert_legible(figure)
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["accuracy", "Matthews", "Pearson"]
    low, high = axes.get_xlim()
    assert low < -0.2 < 0.89 < high
    marks = {
        (line.get_marker(), float(x), float(y))
        for line in axes.lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert {("o", 0.86, 0), ("s", 0.68, 0), ("o", 0.84, 0), ("o", 0.88, 0), ("o", -0.2, 1), ("s", 0.0, 1)} <= marks
    assert any(list(line.get_xdata()) == [0.82, 0.89] for line in axes.lines), "the interval"
    assert [text.get_text() for text in axes.texts] == ["undefined"]
    legend = axes.get_legend()
    assert [t.get_text() for t in legend.get_texts()] == ["model", "constant"]


def test_a_panel_in_which_no_head_is_coloured_says_so() -> None:
    value_LH = np.arange(6.0).reshape(2, 3)
    certain_LH = value_LH > 4
    panels = [HeadPanel("some", value_LH, certain_LH), HeadPanel("none", value_LH, np.zeros((2, 3), bool))]
    figure = head_panels(panels, title="Effects", unit="points", note="pale: may be chance")
    told = [[text.get_text() for text in axes.texts] for axes in figure.axes[:2]]
    assert told == [[], ["no head"]]


def test_groups_without_a_colour_are_counted_together() -> None:
    groups = ["a", "a", *"bcdefghi", "–"]
    figure = head_space(np.arange(22.0).reshape(11, 2), {"by group": groups}, title="Heads", note="", heads=11)
    assert [axes.get_title() for axes in figure.axes][:2] == ["by layer", "by group"]
    (legend,) = [legend for axes in figure.axes if (legend := axes.get_legend())]
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["others (3)", "a (2)", *(f"{letter} (1)" for letter in "bcdefg")]


def test_figures_leave_global_settings_alone() -> None:
    before = dict(mpl.rcParams)
    heatmap([[0.1]], title="t", unit="u", count=1)
    assert dict(mpl.rcParams) == before


def test_save_figure_writes_both_formats_the_same_each_time(tmp_path: Path) -> None:
    figure, *again = (heatmap([[0.1, 0.2]], title="t", unit="u", count=1) for _ in range(3))
    save_figure(figure, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        width, height = figure.get_size_inches() * 150
        assert image.size == (int(width), int(height))
    for name, same in zip(("a.svg", "b.svg"), again, strict=True):
        save_figure(same, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    root = ElementTree.parse(io.BytesIO((tmp_path / "a.svg").read_bytes())).getroot()
    assert root.tag.endswith("svg")
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        save_figure(figure, tmp_path / "a.jpg")


@pytest.mark.parametrize(
    ("count", "pale", "expected"),
    [
        ([1, 1], False, "one seed"),
        (3, False, "mean over 3 seeds"),
        ([1, 3, 2], True, "mean over 1 to 3 seeds; pale: significant in at most half of them"),
        ([1], True, "one seed; pale: not significant"),
    ],
)
def test_seeds_of_a_figure_are_told(count: int | list[int], pale: bool, expected: str) -> None:
    assert seeds_in_words(count, pale) == expected


def test_a_later_drawing_keeps_the_layout_of_the_first() -> None:
    def new() -> Figure:
        return heatmap(np.arange(72.0).reshape(6, 12), title="t", unit="u", count=1)

    twice, once = new(), new()
    layout = twice.get_layout_engine()
    drawn(twice, "png")
    drawn(twice, "svg")
    # An independent figure that is drawn as SVG alone computes a layout for itself.
    drawn(once, "svg")
    for again, alone in zip(twice.axes, once.axes, strict=True):
        np.testing.assert_allclose(again.get_position().bounds, alone.get_position().bounds, atol=0.01)
    assert twice.get_layout_engine() is layout
