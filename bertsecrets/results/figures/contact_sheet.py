"""Contact sheets: many attention maps on one picture, told apart by a number alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import font_manager
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

GAMMA = 0.5
"""Darkness is (weight / the map's largest weight) to this power: a weight of a quarter of the largest is half as dark."""

COLUMNS, ROWS = 5, 4
_CELL_WIDTH, _CELL_HEIGHT, _SIDE, _TITLE = 320, 325, 280, 30
_TICK = 9


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


def darkness(attention_QK: ArrayLike) -> NDArray[np.uint8]:
    """How dark each weight is drawn, 0 (white, weight 0) to 255 (black, the map's largest weight)."""
    weight_QK = np.asarray(attention_QK, np.float64)
    largest = float(weight_QK.max())
    scaled_QK = weight_QK / largest if largest > 0 else weight_QK
    return np.rint(255 * scaled_QK**GAMMA).astype(np.uint8)


def contact_sheet(maps: Sequence[SheetMap], title: str) -> Image.Image:
    """A picture of 1600 x 1340 pixels of up to 4 x 5 maps, queries downward and keys to the right, position 0 at the top left.

    Every weight is a square of whole pixels; longer maps than fit so are made smaller by averaging. Small triangles
    at the top and left edge stand at the separator between two segments; a map of one segment has none.

    Raises:
        ValueError: If there are more maps than places.
    """
    if len(maps) > COLUMNS * ROWS:
        raise ValueError(f"A contact sheet has {COLUMNS * ROWS} places, not {len(maps)}")
    sheet = Image.new("L", (COLUMNS * _CELL_WIDTH, _TITLE + 10 + ROWS * _CELL_HEIGHT), 255)
    draw = ImageDraw.Draw(sheet)
    path = font_manager.findfont("DejaVu Sans")
    large, small = ImageFont.truetype(path, 22), ImageFont.truetype(path, 17)
    draw.text((12, 8), title, fill=0, font=small)
    for place, each in enumerate(maps):
        row, column = divmod(place, COLUMNS)
        left, top = column * _CELL_WIDTH, _TITLE + 10 + row * _CELL_HEIGHT
        picture = _picture(each.attention_QK)
        x, y = left + (_CELL_WIDTH - picture.width) // 2, top + _TITLE + (_SIDE - picture.height) // 2 + _TICK
        draw.text((left + 22, top), str(each.number), fill=0, font=large)
        draw.rectangle((x - 1, y - 1, x + picture.width, y + picture.height), outline=150)
        sheet.paste(picture, (x, y))
        if each.separator is not None:
            at = (each.separator + 0.5) / np.shape(each.attention_QK)[0]
            _triangle(draw, (x + at * picture.width, y - 2), (4, -_TICK + 1))
            _triangle(draw, (x - 2, y + at * picture.height), (-_TICK + 1, 4))
    return sheet


def _picture(attention_QK: ArrayLike) -> Image.Image:
    picture = Image.fromarray(255 - darkness(attention_QK))
    length = picture.width
    if length > _SIDE:
        return picture.resize((_SIDE, _SIDE), Image.Resampling.BOX)
    side = length * (_SIDE // length)
    return picture.resize((side, side), Image.Resampling.NEAREST)


def _triangle(draw: ImageDraw.ImageDraw, tip: tuple[float, float], size: tuple[float, float]) -> None:
    (x, y), (dx, dy) = tip, size
    corners = [(x - dx, y + dy), (x + dx, y + dy)] if abs(dy) > abs(dx) else [(x + dx, y - dy), (x + dx, y + dy)]
    draw.polygon([tip, *corners], fill=0)
