"""The annotation page (one HTML file, worked with the keyboard) and the contact sheets of a set of maps."""

import base64
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from matplotlib import font_manager
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import Pattern
from bertsecrets.present.report.page import content_policy
from bertsecrets.results.files import atomic_write, write_text
from tools.map_sheets import PALETTE, ink
from tools.pattern_labels.labels import LABELS, Label, numbered_labels, write_csv
from tools.pattern_labels.map_set import MapRow, MapSet

SHEET_HEADER = ("sheet", "position", "map", "pattern", "annotator", "pass", "at")
_ACROSS, _DOWN = 4, 3
_SIDE, _CELL_WIDTH, _CELL_HEIGHT, _TITLE = 280, 304, 322, 38
_TICK, _FINER = 7, 8

DEFINITIONS = {
    Pattern.VERTICAL: "Attention mainly to a few tokens, such as [CLS] and [SEP]: vertical lines.",
    Pattern.DIAGONAL: "Attention to the previous, the same or the following tokens.",
    Pattern.VERTICAL_DIAGONAL: "A mix of the two.",
    Pattern.BLOCK: "Attention within each of two segments (marked by triangles).",
    Pattern.HETEROGENEOUS: "Highly variable, with no distinct structure.",
}
"""Each pattern in a sentence, as the annotation page shows it."""


def pass_order(names: Sequence[str], number: int) -> list[str]:
    """The maps in the order of a pass; it differs between passes, against remembered answers."""
    shuffled = sorted(names)
    random.Random(f"pass {number}").shuffle(shuffled)
    return shuffled


def write_page(path: Path, maps: MapSet, names: Sequence[str], passes: Sequence[int]) -> None:
    """Write the annotation page.

    It needs no network or server, shows no task, layer or head, and keeps the labels in the browser until they are
    downloaded.

    Args:
        path: File to write.
        maps: Holds the maps.
        names: Ids of the maps to show, in another order for each pass.
        passes: Numbers of the passes to choose from.
    """
    rows = {row.map: row for row in maps.rows}
    shown = sorted(names)
    position_of = {name: position for position, name in enumerate(shown)}
    content = {
        "set": _identity(maps),
        "palette": [f"rgb({red},{green},{blue})" for red, green, blue in PALETTE.tolist()],
        "patterns": [{"name": pattern.value, "rule": DEFINITIONS[pattern]} for pattern in Pattern],
        "maps": [
            {
                "id": name,
                "length": rows[name].length,
                "separator": _boundary(rows[name]),
                "ink": base64.b64encode(ink(maps[name].numpy()).tobytes()).decode(),
            }
            for name in shown
        ],
        "orders": {str(number): [position_of[name] for name in pass_order(names, number)] for number in passes},
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    folder = files("tools.pattern_labels")
    parts = {name: (folder / f"annotation_page.{name}").read_text("utf-8") for name in ("html.jinja", "css", "js")}
    page = environment.from_string(parts["html.jinja"]).render(
        css=parts["css"], js=parts["js"], policy=content_policy(parts["css"], parts["js"]), content=content
    )
    write_text(path, page)


def write_sheets(folder: Path, maps: MapSet, names: Sequence[str], number: int) -> None:
    """Write ``sheet-01.png``, ... and ``labels.csv`` of one pass; replaces the sheets of an earlier set.

    The table has a row per map, sheet by sheet and row by row: annotators fill in ``pattern`` and ``annotator``; ``at``
    is optional.

    Args:
        folder: Folder of the pass; created if missing.
        maps: Holds the maps.
        names: Ids of the maps to show.
        number: Number of the pass.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("sheet-*.png"):
        old.unlink()
    rows = {row.map: row for row in maps.rows}
    order = pass_order(names, number)
    table: list[tuple[object, ...]] = []
    sheets = [order[first : first + _ACROSS * _DOWN] for first in range(0, len(order), _ACROSS * _DOWN)]
    for sheet, shown in enumerate(sheets, start=1):
        panels = [
            SheetMap(position, maps[name].numpy(), _boundary(rows[name])) for position, name in enumerate(shown, 1)
        ]
        picture = contact_sheet(panels, f"pass {number} · sheet {sheet} of {len(sheets)}")
        with atomic_write(folder / f"sheet-{sheet:02d}.png") as temporary:
            picture.save(temporary, optimize=True)
        table += [(sheet, position, name, "", "", number, "") for position, name in enumerate(shown, 1)]
    write_csv(folder / LABELS, SHEET_HEADER, table)


def check_imported(folder: Path, labels: Sequence[Label]) -> None:
    """Check that new sheets would not replace labels that were filled in but not imported.

    Args:
        folder: Holds a folder with a ``labels.csv`` per pass.
        labels: The imported labels.

    Raises:
        UserError: If a table holds a label that was not imported.
    """
    imported = {(label.map, label.pattern, label.number) for label in labels}
    for path in sorted(folder.glob(f"*/{LABELS}")):
        filled = [label for _, label in numbered_labels(path, annotator="someone")]
        if any((label.map, label.pattern, label.number) not in imported for label in filled):
            raise UserError(
                f"File '{path}' holds labels that are not imported, and new sheets would replace it; import them with "
                "python -m tools.pattern_labels import first, or move the file away."
            )


def _boundary(row: MapRow) -> int | None:
    """Position of the last token of the first segment; None for a map of one segment."""
    return row.first_segment - 1 if row.first_segment > 0 else None


def _identity(maps: MapSet) -> str:
    """Key of a folder's labels in the browser; it does not change when maps are added or fewer are shown."""
    first = maps.names[0]
    return hashlib.sha256(first.encode() + maps[first].numpy().tobytes()).hexdigest()[:12]


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


def contact_sheet(maps: Sequence[SheetMap], title: str) -> Image.Image:
    """Draw up to 4 x 3 maps on 1216 x 1004 pixels, queries downward and keys to the right, position 0 at the top left.

    Maps of two segments say so next to their number; small triangles at the top and left edge mark the separator.

    Raises:
        ValueError: If there are more maps than fit.
    """
    if len(maps) > _ACROSS * _DOWN:
        raise ValueError(f"A contact sheet has {_ACROSS * _DOWN} cells, not {len(maps)}")
    sheet = Image.new("RGB", (_ACROSS * _CELL_WIDTH, _TITLE + _DOWN * _CELL_HEIGHT), "white")
    draw = ImageDraw.Draw(sheet)
    path = font_manager.findfont("DejaVu Sans")
    large, small = ImageFont.truetype(path, 19), ImageFont.truetype(path, 16)
    draw.text((10, 8), title, fill=0, font=small)
    for index, panel in enumerate(maps):
        row, column = divmod(index, _ACROSS)
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
