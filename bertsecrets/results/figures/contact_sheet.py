"""Contact sheets: many attention maps on one picture, told apart by a number alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import font_manager
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

LINEAR, ROOT = 1.0, 0.5
"""Darkness is (weight / the map's largest weight) to this power: ink is weight, or a quarter of the weight is half as dark."""

COLUMNS, ROWS = 4, 4
_SIDE, _GAP, _CELL_WIDTH, _CELL_HEIGHT, _TITLE = 182, 8, 392, 222, 30
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


def darkness(attention_QK: ArrayLike, power: float) -> NDArray[np.uint8]:
    """How dark each weight is drawn, 0 (white, weight 0) to 255 (black, the map's largest weight).

    Args:
        attention_QK: Weights in 0..1.
        power: ``LINEAR`` or ``ROOT``.
    """
    weight_QK = np.asarray(attention_QK, np.float64)
    largest = float(weight_QK.max())
    scaled_QK = weight_QK / largest if largest > 0 else weight_QK
    return np.rint(255 * scaled_QK**power).astype(np.uint8)


def contact_sheet(maps: Sequence[SheetMap], title: str) -> Image.Image:
    """A picture of 1568 x 928 pixels of up to 4 x 4 maps, queries downward and keys to the right, position 0 at the top left.

    Each map is drawn twice, on a linear scale and, to its right, by the root, which shows what is pale. Small triangles
    at the top and left edge stand at the separator between two segments; a map of one segment has none.

    Raises:
        ValueError: If there are more maps than places.
    """
    if len(maps) > COLUMNS * ROWS:
        raise ValueError(f"A contact sheet has {COLUMNS * ROWS} places, not {len(maps)}")
    sheet = Image.new("L", (COLUMNS * _CELL_WIDTH, _TITLE + 10 + ROWS * _CELL_HEIGHT), 255)
    draw = ImageDraw.Draw(sheet)
    path = font_manager.findfont("DejaVu Sans")
    large, small = ImageFont.truetype(path, 19), ImageFont.truetype(path, 16)
    draw.text((10, 8), title, fill=0, font=small)
    for place, each in enumerate(maps):
        row, column = divmod(place, COLUMNS)
        left, top = column * _CELL_WIDTH + _TICK, _TITLE + 10 + row * _CELL_HEIGHT
        draw.text((left + 2, top), str(each.number), fill=0, font=large)
        for side, power in enumerate((LINEAR, ROOT)):
            x, y = left + side * (_SIDE + _GAP), top + 24 + _TICK
            draw.rectangle((x - 1, y - 1, x + _SIDE, y + _SIDE), outline=150)
            sheet.paste(_picture(each.attention_QK, power), (x, y))
            if each.separator is not None:
                at = (each.separator + 0.5) / np.shape(each.attention_QK)[0] * _SIDE
                _triangle(draw, (x + at, y - 2), (4, -_TICK + 1))
                _triangle(draw, (x - 2, y + at), (-_TICK + 1, 4))
    return sheet


def _picture(attention_QK: ArrayLike, power: float) -> Image.Image:
    """Every weight takes the same area: enlarged to whole pixels far beyond the size wanted, then averaged down to it."""
    picture = Image.fromarray(255 - darkness(attention_QK, power))
    side = picture.width * -(-_FINER * _SIDE // picture.width)
    return picture.resize((side, side), Image.Resampling.NEAREST).resize((_SIDE, _SIDE), Image.Resampling.BOX)


def _triangle(draw: ImageDraw.ImageDraw, tip: tuple[float, float], size: tuple[float, float]) -> None:
    (x, y), (dx, dy) = tip, size
    corners = [(x - dx, y + dy), (x + dx, y + dy)] if abs(dy) > abs(dx) else [(x + dx, y - dy), (x + dx, y + dy)]
    draw.polygon([tip, *corners], fill=0)
