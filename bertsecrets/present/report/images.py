"""Figures as images embedded in the page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from PIL import Image as Picture

from bertsecrets.present.figures.grids import HeadCells, head_cells
from bertsecrets.present.figures.saving import png, svg

_CRISP = 150
_COARSER = (110, 80, 60)
_CSS_PIXELS = 96
"""CSS pixels of an inch."""


@dataclass(frozen=True)
class Image:
    """A figure as a ``data:`` address, with its natural size in CSS pixels and the places of its heatmaps of heads."""

    source: str
    width: int
    height: int
    cells: Sequence[HeadCells]


def encode(figures: Sequence[Figure], most: int) -> tuple[list[Image | None], int | None]:
    """The figures as images whose addresses together take at most ``most`` characters.

    Each is SVG or lossless WebP at 150 dpi, whichever is smaller; if they take too much, all are WebP at the highest of
    the coarser resolutions that fits; if none does, the last figures become None.

    Returns:
        The images and, where they had to be coarsened, their dots per inch.
    """
    images = [
        min(_image(figure, "svg+xml", svg(figure)), _raster(figure, _CRISP), key=lambda image: len(image.source))
        for figure in figures
    ]
    if _total(images) <= most:
        return [*images], None
    for dpi in _COARSER:
        images = [_raster(figure, dpi) for figure in figures]
        if _total(images) <= most:
            return [*images], dpi
    fitting: list[Image | None] = [*images]
    for index in reversed(range(len(fitting))):
        fitting[index] = None
        if _total([image for image in fitting if image is not None]) <= most:
            break
    return fitting, _COARSER[-1]


def _total(images: Sequence[Image]) -> int:
    return sum(len(image.source) for image in images)


def _raster(figure: Figure, dpi: int) -> Image:
    """The figure drawn at the finest resolution and scaled down from there, as drawing takes seconds."""
    picture = Picture.open(io.BytesIO(png(figure, _CRISP))).convert("RGB")
    if dpi < _CRISP:
        size = round(picture.width * dpi / _CRISP), round(picture.height * dpi / _CRISP)
        picture = picture.resize(size, Picture.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", lossless=True, quality=50, method=3)
    return _image(figure, "webp", buffer.getvalue())


def _image(figure: Figure, kind: str, content: bytes) -> Image:
    width, height = (round(inches * _CSS_PIXELS) for inches in figure.get_size_inches())
    return Image(
        f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}", width, height, head_cells(figure)
    )
