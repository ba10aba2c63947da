"""Many attention maps on one picture: contact sheets for annotators, and titled maps for reports."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from bertsecrets.results.figures.style import PAGE_WIDTH, footnote, house_style, new_figure

PALETTE: NDArray[np.uint8] = np.rint(255 * colormaps["viridis"](np.arange(256))[:, :3]).astype(np.uint8)
"""Colours of ink 0 to 255, ``[256, 3]``: viridis, from dark violet (weight 0) to yellow (the map's largest weight)."""

COLUMNS, ROWS = 4, 3
_SIDE, _CELL_WIDTH, _CELL_HEIGHT, _TITLE = 280, 304, 322, 38
_TICK, _FINER = 7, 8
_ACROSS = 5


@dataclass(frozen=True)
class SheetMap:
    """One map of a sheet.

    Args:
        number: Number next to the map.
        attention_QK: Weights in 0..1, ``[L, L]``.
        separator: Position of the token that ends the first of two segments, from 0; None for one segment.
    """

    number: int
    attention_QK: ArrayLike
    separator: int | None = None


def ink(attention_QK: ArrayLike) -> NDArray[np.uint8]:
    """Weights in 0..1 divided by the map's largest, as 0 to 255."""
    weight_QK = np.asarray(attention_QK, np.float64)
    largest = float(weight_QK.max())
    return np.rint(255 * (weight_QK / largest if largest > 0 else weight_QK)).astype(np.uint8)


def contact_sheet(maps: Sequence[SheetMap], title: str) -> Image.Image:
    """Draw up to 4 x 3 maps on 1216 x 1004 pixels, queries downward and keys to the right, position 0 at the top left.

    Maps of two segments say so next to their number; small triangles at the top and left edge mark the separator.

    Raises:
        ValueError: If there are more maps than places.
    """
    if len(maps) > COLUMNS * ROWS:
        raise ValueError(f"A contact sheet has {COLUMNS * ROWS} places, not {len(maps)}")
    sheet = Image.new("RGB", (COLUMNS * _CELL_WIDTH, _TITLE + ROWS * _CELL_HEIGHT), "white")
    draw = ImageDraw.Draw(sheet)
    path = font_manager.findfont("DejaVu Sans")
    large, small = ImageFont.truetype(path, 19), ImageFont.truetype(path, 16)
    draw.text((10, 8), title, fill=0, font=small)
    for place, panel in enumerate(maps):
        row, column = divmod(place, COLUMNS)
        x, y = column * _CELL_WIDTH + _TICK + 3, _TITLE + row * _CELL_HEIGHT + 34
        draw.text((x + 2, y - 34), str(panel.number), fill=0, font=large)
        sheet.paste(_picture(panel.attention_QK), (x, y))
        if panel.separator is not None:
            draw.text((x + 40, y - 32), "two segments", fill="#505050", font=small)
            at = (panel.separator + 0.5) / np.shape(panel.attention_QK)[0] * _SIDE
            _triangle(draw, (x + at, y - 2), (4, -_TICK + 1))
            _triangle(draw, (x - 2, y + at), (-_TICK + 1, 4))
    return sheet


def _picture(attention_QK: ArrayLike) -> Image.Image:
    """Give every weight the same area: enlarge it to whole pixels beyond the final size, then average down."""
    picture = Image.fromarray(PALETTE[ink(attention_QK)])
    side = picture.width * -(-_FINER * _SIDE // picture.width)
    return picture.resize((side, side), Image.Resampling.NEAREST).resize((_SIDE, _SIDE), Image.Resampling.BOX)


def _triangle(draw: ImageDraw.ImageDraw, tip: tuple[float, float], size: tuple[float, float]) -> None:
    (x, y), (dx, dy) = tip, size
    corners = [(x - dx, y + dy), (x + dx, y + dy)] if abs(dy) > abs(dx) else [(x + dx, y - dy), (x + dx, y + dy)]
    draw.polygon([tip, *corners], fill=0)


@dataclass(frozen=True)
class TitledMap:
    """A map with its title, one or more lines."""

    title: str
    attention_QK: ArrayLike


def map_sheet(maps: Sequence[TitledMap], *, title: str, note: str) -> Figure:
    """Draw maps in rows of five, in the colours of the contact sheets: yellow is the map's largest weight."""
    rows = -(-len(maps) // _ACROSS)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 1.95 * rows + 1.1, title)
        grid = figure.subplots(rows, _ACROSS, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, titled in zip(grid.flat, maps, strict=False):
            axes.imshow(PALETTE[ink(titled.attention_QK)], interpolation="nearest")
            axes.set_axis_on()
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(True)
                spine.set_color("#969696")
            axes.set_title(titled.title, fontsize=7.0, linespacing=1.1)
        footnote(figure, note)
    return figure
