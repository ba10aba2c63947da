"""Figures as files and as bytes."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from bertsecrets.errors import UserError
from bertsecrets.results.figures.style import house_style
from bertsecrets.results.files import atomic_write

_DPI = 150


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG (150 dpi) or an SVG, by suffix.

    Raises:
        UserError: If the suffix is neither, or the disk is full.
    """
    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg"):
        raise UserError(f"Cannot save a figure as '{path.name}': the name must end in .png or .svg")
    content = png(figure, _DPI) if suffix == ".png" else svg(figure)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def png(figure: Figure, dpi: float) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, without a date: figures made alike give the same bytes."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format="svg", metadata={"Date": None}, dpi=_DPI)
    return buffer.getvalue()
