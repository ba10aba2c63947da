"""Write a report as one HTML file of bounded size."""

import base64
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image as Picture

from bertsecrets.present.figures.grids import HeadCells, head_cells
from bertsecrets.present.figures.style import DPI, drawn, save_figure
from bertsecrets.present.report.content import FigureBlock, Report, Table
from bertsecrets.present.report.viewer import colour_stops, encode_prefix, head_columns, histories, overview_data
from bertsecrets.results.files import write_text
from bertsecrets.results.formatting import head_code, number, visible
from bertsecrets.results.verdicts import COLOURS, WORDS

MAX_BYTES = 3_000_000
"""Largest size of a page: small enough to mail."""

_FIGURES_SHARE = 0.6
"""Share of a page that its figures may take; the rest is for maps and text."""

_NUMBER = re.compile(r"(± ?)?[-−+]?\d[\d,]*(\.\d+)?(e[-−+]?\d+)?( ?%)?( ± \S+)?|–|")
_SHORT = 22
"""Characters of a cell that a table does not break."""
_NOTES_MARGIN = 2_000
"""Bytes for notes on what did not fit, which are written after it has been left out."""

_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f]")
"""Characters that would make the name of a file a path, or cannot be in one."""

_LONGEST_NAME = 100

_COARSER = (110, 80, 60)
_CSS_PIXELS = 96
"""CSS pixels of an inch."""

_SCRIPTS = ("joint_table.js", "cells.js", "frame.js", "overview.js", "scatter.js")
"""Files of a page's scripts, besides those of its viewer."""


@dataclass(frozen=True)
class Image:
    """A figure as a ``data:`` address, with its natural size in CSS pixels and the places of its heatmaps of heads."""

    source: str
    width: int
    height: int
    cells: Sequence[HeadCells]


def write_report(path: Path, report: Report) -> None:
    """Write the page, at most 3 MB unless its text and tables alone take more.

    To fit, figures become coarser (if that is not enough, the last ones are left out), then viewer examples are left
    out from the last. The page says so.

    Raises:
        UserError: If the disk is full.
    """
    write_text(path, report_page(report))


def report_page(report: Report) -> str:
    """The page that :func:`write_report` writes."""
    images, dpi = encode([block.figure for block in report.figures], int(MAX_BYTES * _FIGURES_SHARE))
    notes = []
    if dpi is not None:
        notes.append(
            f"To keep this page under {MAX_BYTES // 1_000_000} MB, its figures are drawn at {dpi} dots per inch."
        )
    if None in images:
        notes.append(f"{images.count(None)} of {len(images)} figures did not fit and are left out.")
    examples = report.viewer.examples if report.viewer else []
    bare = _render(report, images, [], notes)
    encoded_examples = encode_prefix(examples, MAX_BYTES - len(bare.encode("utf-8")) - _NOTES_MARGIN)
    if len(encoded_examples) < len(examples):
        notes.append(
            f"To keep this page under {MAX_BYTES // 1_000_000} MB, the head viewer holds "
            f"{len(encoded_examples)} of {len(examples)} examples."
        )
    return _render(report, images, encoded_examples, notes)


def content_policy(style: str, *scripts: str) -> str:
    """The content-security policy of a page that loads nothing, and applies and runs only these texts, by their hashes.

    Args:
        style: The whole content of its ``<style>``.
        scripts: The whole content of each ``<script>`` that runs.
    """
    style_source, *script_sources = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (style, *scripts)
    )
    return (
        f"default-src 'none'; img-src data:; style-src {style_source}; script-src {' '.join(script_sources)}; "
        "base-uri 'none'; form-action 'none'"
    )


def save_figures(blocks: Iterable[FigureBlock], folder: Path) -> None:
    """Write every figure of a page as PNG and SVG under its name, which may come from a stranger's run."""
    for block in blocks:
        name = _NOT_IN_NAMES.sub("_", block.name)[:_LONGEST_NAME]
        for suffix in (".png", ".svg"):
            save_figure(block.figure, folder / f"{name}{suffix}")


def _render(report: Report, images: list[Image | None], examples: list[str], notes: list[str]) -> str:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    folder, names = (
        files("bertsecrets.present.report"),
        ("report.html.jinja", "report.css", "viewer.js", "head_views.js"),
    )
    parts = {name: (folder / name).read_text("utf-8") for name in (*names, *_SCRIPTS)}
    light, dark = (" ".join(f"--{code}: {pair[theme]};" for code, pair in COLOURS.items()) for theme in (0, 1))
    css = f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n" + parts["report.css"]
    widths = sorted({image.width for image in images if image is not None})
    css += "".join(f".w{width} {{ --natural: {width}px; }}\n" for width in widths)
    drawn = {id(block): image for block, image in zip(report.figures, images, strict=True)}
    # The views listen for what the viewer, which starts at once, tells them.
    js = parts["head_views.js"] + parts["viewer.js"]
    return environment.from_string(parts["report.html.jinja"]).render(
        report=report,
        image_of=lambda block: drawn[id(block)],
        examples=examples,
        notes=notes,
        policy=content_policy(css, js, *(parts[name] for name in _SCRIPTS)),
        css=css,
        js=js,
        parts=parts,
        colours=colour_stops(),
        overview=None if report.overview is None else overview_data(report.overview),
        words={**WORDS, "": "not disabled"},
        layer_text=lambda view, layer: number(view.layers[layer][0], view.digits, signed=view.signed),
        head_columns=head_columns(report.heads) if examples else [],
        histories=histories(report.viewer.histories) if report.viewer and examples else [],
        answers={}
        if report.viewer is None
        else {f"{layer}.{head}": visible(text) for (layer, head), text in report.viewer.answers.items()},
        head_code=head_code,
        classes=_column_classes,
        is_number=lambda cells: all(_NUMBER.fullmatch(cell) for cell in cells),
    )


def _column_classes(table: Table) -> list[str]:
    """The class of each column: numbers stand to the right, short texts in one line; empty for others."""
    columns = [[row[column] for row in table.rows] for column in range(len(table.header))]
    return [
        "number" if all(map(_NUMBER.fullmatch, cells)) else "short" if max(map(len, cells)) <= _SHORT else ""
        for cells in columns
    ]


def encode(figures: Sequence[Figure], most: int) -> tuple[list[Image | None], int | None]:
    """The figures as images whose addresses together take at most ``most`` characters.

    Each is SVG or lossless WebP at 150 dpi, whichever is smaller; if they take too much, all are WebP at the highest of
    the coarser resolutions that fits; if none does, the last figures become None.

    Returns:
        The images and, where they had to be coarsened, their dots per inch.
    """
    images = [
        min(_image(figure, "svg+xml", drawn(figure, "svg")), _raster(figure, DPI), key=lambda image: len(image.source))
        for figure in figures
    ]
    if sum(len(image.source) for image in images) <= most:
        return [*images], None
    for dpi in _COARSER:
        images = [_raster(figure, dpi) for figure in figures]
        if sum(len(image.source) for image in images) <= most:
            return [*images], dpi
    fitting: list[Image | None] = [*images]
    for index in reversed(range(len(fitting))):
        fitting[index] = None
        if sum(len(image.source) for image in fitting if image is not None) <= most:
            break
    return fitting, _COARSER[-1]


def _raster(figure: Figure, dpi: int) -> Image:
    """The figure drawn at the finest resolution and scaled down from there, as drawing takes seconds."""
    picture = Picture.open(io.BytesIO(drawn(figure, "png"))).convert("RGB")
    if dpi < DPI:
        size = round(picture.width * dpi / DPI), round(picture.height * dpi / DPI)
        picture = picture.resize(size, Picture.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", lossless=True, quality=50, method=3)
    return _image(figure, "webp", buffer.getvalue())


def _image(figure: Figure, kind: str, content: bytes) -> Image:
    width, height = (round(inches * _CSS_PIXELS) for inches in figure.get_size_inches())
    return Image(
        f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}", width, height, head_cells(figure)
    )
