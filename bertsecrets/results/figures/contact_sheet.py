"""Contact sheets: many attention maps on one picture, told apart by a number alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps, font_manager
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

PALETTE: NDArray[np.uint8] = np.rint(255 * colormaps["viridis"](np.arange(256))[:, :3]).astype(np.uint8)
"""Colours of ink 0 to 255, ``[256, 3]``: viridis, from dark violet (weight 0) to yellow (the map's largest weight)."""

COLUMNS, ROWS = 4, 3
_SIDE, _CELL_WIDTH, _CELL_HEIGHT, _TITLE = 280, 304, 322, 38
_TICK, _FINER = 7, 8


@dataclass(frozen=True)
class SheetMap:
    """One map of a sheet.

    Args:
        number: What it is called on the sheet.
        attention_QK: Weights in 0..1, ``[L, L]``.
        separator: Position of the token that ends the first of two segments; None for one segment.
    """

    number: int
    attention_QK: ArrayLike
    separator: int | None = None


def ink(attention_QK: ArrayLike) -> NDArray[np.uint8]:
    """Each weight over the map's largest, 0 to 255.

    Args:
        attention_QK: Weights in 0..1.
    """
    weight_QK = np.asarray(attention_QK, np.float64)
    largest = float(weight_QK.max())
    return np.rint(255 * (weight_QK / largest if largest > 0 else weight_QK)).astype(np.uint8)


def contact_sheet(maps: Sequence[SheetMap], title: str) -> Image.Image:
    """A picture of 1216 x 1004 pixels of up to 4 x 3 maps, queries downward and keys to the right, position 0 at the top left.

    Beside its number stands whether a map has two segments, and small triangles at its top and left edge mark the
    separator between them.

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
    for place, each in enumerate(maps):
        row, column = divmod(place, COLUMNS)
        x, y = column * _CELL_WIDTH + _TICK + 3, _TITLE + row * _CELL_HEIGHT + 34
        draw.text((x + 2, y - 34), str(each.number), fill=0, font=large)
        sheet.paste(_picture(each.attention_QK), (x, y))
        if each.separator is not None:
            draw.text((x + 40, y - 32), "two segments", fill="#505050", font=small)
            at = (each.separator + 0.5) / np.shape(each.attention_QK)[0] * _SIDE
            _triangle(draw, (x + at, y - 2), (4, -_TICK + 1))
            _triangle(draw, (x - 2, y + at), (-_TICK + 1, 4))
    return sheet


def _picture(attention_QK: ArrayLike) -> Image.Image:
    """Every weight takes the same area: enlarged to whole pixels far beyond the size wanted, then averaged down to it."""
    picture = Image.fromarray(PALETTE[ink(attention_QK)])
    side = picture.width * -(-_FINER * _SIDE // picture.width)
    return picture.resize((side, side), Image.Resampling.NEAREST).resize((_SIDE, _SIDE), Image.Resampling.BOX)


def _triangle(draw: ImageDraw.ImageDraw, tip: tuple[float, float], size: tuple[float, float]) -> None:
    (x, y), (dx, dy) = tip, size
    corners = [(x - dx, y + dy), (x + dx, y + dy)] if abs(dy) > abs(dx) else [(x + dx, y - dy), (x + dx, y + dy)]
    draw.polygon([tip, *corners], fill=0)
