"""Contact sheets of attention maps for the tools that label and classify patterns."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from bertsecrets.present.figures.style import PAGE_WIDTH, footnote, house_style, new_figure

PALETTE: NDArray[np.uint8] = np.rint(255 * colormaps["viridis"](np.arange(256))[:, :3]).astype(np.uint8)
"""Colours of ink 0 to 255, ``[256, 3]``: viridis, from dark violet (weight 0) to yellow (the map's largest weight)."""

_ACROSS = 5


def ink(attention_QK: ArrayLike) -> NDArray[np.uint8]:
    """Weights in 0..1 divided by the map's largest, as 0 to 255."""
    weight_QK = np.asarray(attention_QK, np.float64)
    largest = float(weight_QK.max())
    return np.rint(255 * (weight_QK / largest if largest > 0 else weight_QK)).astype(np.uint8)


def map_sheet(maps: Sequence[tuple[str, ArrayLike]], *, title: str, note: str) -> Figure:
    """Draw maps, each with its title, in rows of five and the colours of ``PALETTE``: yellow is the map's largest weight."""
    rows = -(-len(maps) // _ACROSS)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 1.95 * rows + 1.1, title)
        grid = figure.subplots(rows, _ACROSS, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, (name, attention_QK) in zip(grid.flat, maps, strict=False):
            axes.imshow(PALETTE[ink(attention_QK)], interpolation="nearest")
            axes.set_axis_on()
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(True)
                spine.set_color("#969696")
            axes.set_title(name, fontsize=7.0, linespacing=1.1)
        footnote(figure, note)
    return figure
