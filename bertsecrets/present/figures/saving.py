"""Save figures as PNG and SVG, to files and as bytes."""

import base64
import io
from collections.abc import Callable
from html import escape
from pathlib import Path
from weakref import WeakKeyDictionary

from matplotlib.figure import Figure

from bertsecrets.errors import UserError
from bertsecrets.present.figures.style import house_style
from bertsecrets.results.files import atomic_write

_DPI = 150
_NOTEBOOK_DPI = 100
_drawn: WeakKeyDictionary[Figure, dict[str, bytes]] = WeakKeyDictionary()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG (150 dpi) or an SVG, by suffix.

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
    return _rendered(figure, f"png {dpi:g}", lambda buffer: figure.savefig(buffer, format="png", dpi=dpi))


def svg(figure: Figure) -> bytes:
    """The figure as SVG, without a date: equal figures give equal bytes."""
    return _rendered(
        figure, "svg", lambda buffer: figure.savefig(buffer, format="svg", metadata={"Date": None}, dpi=_DPI)
    )


def html_image(figure: Figure, text: str) -> str:
    """The figure as an HTML element for a notebook, described by a text."""
    image = base64.b64encode(png(figure, _NOTEBOOK_DPI)).decode("ascii")
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{image}">'


def _rendered(figure: Figure, form: str, draw: Callable[[io.BytesIO], None]) -> bytes:
    """The bytes that ``draw`` writes, cached, because an unchanged figure goes to a file, the report and W&B."""
    drawn = _drawn.setdefault(figure, {})
    if form not in drawn:
        buffer = io.BytesIO()
        layout = figure.get_layout_engine()
        if drawn:
            # The first drawing has computed the layout, which takes as long as the drawing itself.
            figure.set_layout_engine("none")
        with house_style():
            draw(buffer)
        figure.set_layout_engine(layout)
        drawn[form] = buffer.getvalue()
    return drawn[form]
