"""Style of all figures: fonts, colours, colour scales, sample sizes and axes of layers; and their files."""

import base64
import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from numpy.typing import ArrayLike, NDArray

from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write
from bertsecrets.task_heads import unit_of

DPI = 150
_NOTEBOOK_DPI = 100
_drawn: WeakKeyDictionary[Figure, dict[tuple[str, float], bytes]] = WeakKeyDictionary()

SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"
_SHADES = 257
"""Odd, so that the middle of a scale is white."""

_LOSSES = ("#ffffff", "#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f")
_GAINS = ("#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac", "#053061")
PAGE_WIDTH = 7.0
"""Width of a printed page's text, in inches."""

_NAME_WIDTH, _NAME_LINES = 36, 3

ACCENTS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, safe for colour-blind readers, without yellow, which is too pale for lines on white."""

QUIET = "#6b6b6b"

SMALL = 8.0
"""Size of labels and notes, in points, the smallest that is legible in print."""


def score_change(metric: str = "") -> str:
    """What an axis of changes of a score shows, with the unit of a hundredth of the metric; points without one."""
    return f"change of score ({unit_of(metric)})"


_MOST_ACROSS = 3

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "bertsecrets",
    # Names of tasks and tokens may contain dollar signs, which are not mathematics here.
    "text.parse_math": False,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the settings for drawing and saving figures; the caller's settings are restored afterwards."""
    with mpl.rc_context(_SETTINGS):
        yield


class ShownFigure(Figure):
    """A figure that a notebook shows as a picture, although it was not created by pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with house_style():
            self.savefig(content, format="png", dpi=100)
        return content.getvalue()


def new_figure(
    width: float, height: float, title: str, layout: Literal["constrained", "compressed"] = "constrained"
) -> Figure:
    """An empty figure of the given size in inches, with its title wrapped to its width."""
    figure = ShownFigure(figsize=(width, height), layout=layout)
    # A 10 pt letter is about 0.085 inches wide.
    figure.suptitle(textwrap.fill(title, max(20, int(width / 0.085))), fontsize=10.0, x=0.02, ha="left")
    return figure


@contextmanager
def chart(
    width: float, height: float, title: str, x_label: str, y_label: str, note: str = "", *, grid: str = "both"
) -> Iterator[tuple[Figure, Axes]]:
    """A figure of the given size in inches with one pair of axes, their labels, a footnote, and a grid along one axis
    or both.
    """
    with house_style():
        figure = new_figure(width, height, title)
        axes = figure.add_subplot()
        axes.set(xlabel=x_label, ylabel=y_label)
        yield figure, axes
        if grid:
            axes.grid(axis=grid, linewidth=0.4, alpha=0.5)  # type: ignore[arg-type]
        if note:
            footnote(figure, note)


def panels_across(panels: int) -> int:
    """Number of panels in a row: four make a square."""
    return 2 if panels == 4 else min(_MOST_ACROSS, panels)


def titled_panels(
    titles: Sequence[str],
    columns: int,
    size: tuple[float, float],
    title: str,
    x_label: str = "",
    *,
    margin: float = 1.1,
    shared: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title, in rows.

    Args:
        titles: The panels' titles.
        columns: Panels in a row.
        size: Width of the figure and height of a row, in inches.
        title: What the figure shows.
        x_label: Label of the x axis; empty for none.
        margin: Height above and below the rows, in inches.
        shared: Whether all panels have the same axes.
    """
    rows = -(-len(titles) // columns)
    figure = new_figure(size[0], rows * size[1] + margin, title)
    grid: NDArray[np.object_] = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    for index, axes in enumerate(grid.flat):
        if index >= len(titles):
            axes.set_visible(False)
            continue
        axes.set_title(titles[index], fontsize=SMALL)
        # The lowest panel of a column has the labels, even above an empty corner.
        if index + columns >= len(titles):
            axes.set_xlabel(x_label)
            axes.tick_params(labelbottom=True)
    return figure, list(grid.flat)[: len(titles)]


def colour_bar(
    figure: Figure,
    mappable: ScalarMappable,
    axes: Axes | list[Axes],
    unit: str,
    *,
    aspect: float = 25,
    extend: str = "neither",
) -> Colorbar:
    """Add a colour bar right of ``axes``, labelled with its unit."""
    bar = figure.colorbar(mappable, ax=axes, extend=extend, aspect=aspect, pad=0.02)
    bar.set_label(unit)
    bar.outline.set_linewidth(0.4)
    return bar


def sentence(title: str, text: str) -> Figure:
    """A figure with only its title and a sentence, if there is nothing to draw."""
    with house_style():
        figure = new_figure(PAGE_WIDTH, 0.9, title)
        footnote(figure, text)
    return figure


def footnote(figure: Figure, text: str) -> None:
    """Add a grey note under the whole figure, wrapped to its width."""
    width = max(20, int(figure.get_size_inches()[0] / 0.066))
    # A sample size stays on one line.
    lines = textwrap.fill(text.replace("n = ", "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), width)
    figure.supxlabel(lines.replace("\N{NO-BREAK SPACE}", " "), fontsize=SMALL, color=QUIET, x=0.02, ha="left")


def row_names(names: Sequence[str]) -> tuple[list[str], int]:
    """Row names wrapped to leave room for the rows, and the largest number of lines; the rest is cut."""
    lines = [
        textwrap.wrap(name, _NAME_WIDTH, max_lines=_NAME_LINES, placeholder="\N{HORIZONTAL ELLIPSIS}") or [""]
        for name in names
    ]
    return ["\n".join(of_name) for of_name in lines], max(map(len, lines), default=1)


def sample_size(count: ArrayLike) -> str:
    """Number of examples per value: ``n = 408 examples``, or a range if counts differ."""
    counts = np.asarray(count, np.int64)
    low, high = int(counts.min()), int(counts.max())
    if low == high:
        return f"n = {low:,} example{'' if low == 1 else 's'}"
    return f"n = {low:,} to {high:,} examples"


def seeds_in_words(count: ArrayLike, pale: bool = False) -> str:
    """Description of values by their number of seeds: ``mean over 3 seeds``, or ``one seed``.

    Args:
        count: Number of seeds of each value.
        pale: Also explain that cells are pale if at most half of the seeds show an effect.
    """
    counts = np.asarray(count, np.int64)
    low, high = int(counts.min()), int(counts.max())
    if high == 1:
        return "one seed" + ("; pale: not significant" if pale else "")
    seeds = f"{high:,}" if low == high else f"{low:,} to {high:,}"
    return f"mean over {seeds} seeds" + ("; pale: significant in at most half of them" if pale else "")


def scale(values: ArrayLike, limits: tuple[float, float] | None, signed: bool | None = None) -> tuple[Normalize, str]:
    """A colour normalisation and the name of its colour map.

    Args:
        values: The values to draw; NaN is ignored.
        limits: Ends of the scale; None for the range of ``values``, starting at zero if they are all equal.
        signed: Whether zero is the middle; None to decide by the ends. A signed scale is symmetric, so that equal
            shades mean equal sizes.
    """
    finite = finite_of(values)
    if limits is None:
        limits = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low, high = limits
    if signed or (signed is None and low < 0 < high):
        reach = max(abs(low), abs(high)) or 1.0
        return Normalize(-reach, reach), DIVERGING
    if low == high:
        # A single value has no range, so zero is included.
        low, high = (min(low, 0.0), max(high, 0.0)) if low else (0.0, 1.0)
    return Normalize(low, high), SEQUENTIAL


def effect_scale(values: ArrayLike) -> tuple[Normalize, mpl.colors.Colormap]:
    """A scale for changes of a score: white for none, darker red for larger losses, and darker blue for larger gains.

    Args:
        values: The changes to draw, negative for losses; NaN is ignored. Without a gain the scale ends at white.
    """
    finite = finite_of(values)
    reach = float(np.abs(finite).max(initial=0.0)) or 1.0
    if not (finite > 0).any():
        return Normalize(-reach, 0.0), mpl.colors.LinearSegmentedColormap.from_list("losses", _LOSSES[::-1], _SHADES)
    both = (*_LOSSES[:0:-1], *_GAINS)
    return Normalize(-reach, reach), mpl.colors.LinearSegmentedColormap.from_list("effects", both, _SHADES)


def finite_of(values: ArrayLike) -> NDArray[np.float64]:
    """The finite values, flattened."""
    array = np.asarray(values, np.float64)
    return array[np.isfinite(array)]


def ink_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever has more contrast on ``colour`` (RGBA in 0..1)."""
    channels = np.asarray(colour[:3])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ np.array([0.2126, 0.7152, 0.0722]))
    return "black" if luminance > 0.179 else "white"


def step_axis(axes: Axes, steps: Sequence[int]) -> None:
    """Label the x axis as training steps, with whole numbers only."""
    axes.set_xlabel("training step (optimiser updates)")
    if len(steps) == 1:
        axes.set_xticks(list(steps))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))


def layer_colours(num_layers: int) -> tuple[Normalize, list[tuple[float, float, float, float]]]:
    """A normalisation of layer numbers and a colour per layer, darkest at layer 0, without very pale colours."""
    norm = Normalize(0, max(1, num_layers - 1))
    # The sequential map without its palest tenth.
    shades = mpl.colors.ListedColormap(mpl.colormaps[SEQUENTIAL](np.linspace(0, 0.9, 256)))
    return norm, [tuple(colour) for colour in shades(norm(np.arange(num_layers)))]


def layer_bar(figure: Figure, axes: list[Axes], num_layers: int) -> None:
    """Add a colour bar right of ``axes`` with the layer of each line."""
    norm = mpl.colors.BoundaryNorm(np.arange(num_layers + 1) - 0.5, num_layers)
    colours = mpl.colors.ListedColormap(layer_colours(num_layers)[1])
    mappable = ScalarMappable(norm, colours)
    if len(axes) == 1:
        # In the panel's margin, so that labels of a panel below do not move it.
        bar = figure.colorbar(mappable, cax=axes[0].inset_axes((1.03, 0.0, 0.02, 1.0)))
    else:
        bar = figure.colorbar(mappable, ax=axes, aspect=30, pad=0.02)
    bar.set_ticks(list(range(0, num_layers, 1 if num_layers <= 12 else 2)))
    bar.minorticks_off()
    bar.ax.invert_yaxis()
    bar.set_label("layer (0 next to the input)")
    bar.outline.set_linewidth(0.4)


def log_axis(axes: Axes, which: str) -> None:
    """Make the x or the y axis (``which``) logarithmic, with useful labels even on few decades."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    # Within two decades, powers of ten would give an axis at most one label.
    fine = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high / low < 10 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(10, subs=fine if high / low < 100 else (1.0,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG (150 dpi) or an SVG, by suffix.

    Raises:
        UserError: If the suffix is neither, or the disk is full.
    """
    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg"):
        raise UserError(f"Cannot save a figure as '{path.name}': the name must end in .png or .svg")
    with atomic_write(path) as temporary:
        temporary.write_bytes(drawn(figure, "png" if suffix == ".png" else "svg"))


def html_image(figure: Figure, text: str) -> str:
    """The figure as an HTML element for a notebook, described by a text."""
    image = base64.b64encode(drawn(figure, "png", _NOTEBOOK_DPI)).decode("ascii")
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{image}">'


def drawn(figure: Figure, form: Literal["png", "svg"], dpi: float = DPI) -> bytes:
    """The figure as PNG, or as SVG without a date: equal figures give equal bytes.

    Cached, because an unchanged figure goes to a file, the report and W&B.
    """
    known = _drawn.setdefault(figure, {})
    if (form, dpi) not in known:
        buffer = io.BytesIO()
        layout = figure.get_layout_engine()
        if known:
            # The first drawing has computed the layout, which takes as long as the drawing itself.
            figure.set_layout_engine("none")
        with house_style():
            figure.savefig(buffer, format=form, dpi=dpi, metadata={"Date": None} if form == "svg" else None)
        figure.set_layout_engine(layout)
        known[form, dpi] = buffer.getvalue()
    return known[form, dpi]
