"""The annotation page: one HTML file in which maps are labelled with the keyboard, without network or server."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from bertsecrets.patterns.classes import Pattern
from bertsecrets.patterns.maps import MapSet
from bertsecrets.patterns.sheets import boundary, pass_order
from bertsecrets.results.figures.contact_sheet import PALETTE, ink
from bertsecrets.results.files import atomic_write

RULES = {
    Pattern.VERTICAL: "Attention mainly to a few tokens, such as [CLS] and [SEP]: vertical lines.",
    Pattern.DIAGONAL: "Attention to the previous, the same or the following tokens.",
    Pattern.VERTICAL_DIAGONAL: "A mix of the two.",
    Pattern.BLOCK: "Attention within each of two segments (marked by triangles).",
    Pattern.HETEROGENEOUS: "Highly variable, with no distinct structure.",
}
"""Each class in a sentence, as docs/patterns.md defines it."""


def write_page(path: Path, maps: MapSet, names: Sequence[str], passes: Sequence[int]) -> None:
    """Writes the page. It shows no task, layer or head, and keeps its labels in the browser until they are downloaded.

    Args:
        path: Of the page.
        maps: Holds them.
        names: The maps to show, in a new order for each pass.
        passes: The passes to choose from.
    """
    rows = {row.map: row for row in maps.rows}
    shown = sorted(names)
    place = {name: position for position, name in enumerate(shown)}
    content = {
        "set": _identity(maps),
        "palette": [f"rgb({red},{green},{blue})" for red, green, blue in PALETTE.tolist()],
        "patterns": [{"name": pattern.value, "rule": RULES[pattern]} for pattern in Pattern],
        "maps": [
            {
                "id": name,
                "length": rows[name].length,
                "separator": boundary(rows[name]),
                "ink": base64.b64encode(ink(maps[name].numpy()).tobytes()).decode(),
            }
            for name in shown
        ],
        "orders": {str(number): [place[name] for name in pass_order(names, number)] for number in passes},
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    folder = files("bertsecrets.patterns")
    parts = {name: (folder / f"annotate.{name}").read_text("utf-8") for name in ("html.jinja", "css", "js")}
    page = environment.from_string(parts["html.jinja"]).render(css=parts["css"], js=parts["js"], content=content)
    with atomic_write(path) as temporary:
        temporary.write_text(page, "utf-8")


def _identity(maps: MapSet) -> str:
    """What the browser keeps a folder's labels under; it stays the same when maps are added or fewer are shown."""
    first = maps.names[0]
    return hashlib.sha256(first.encode() + maps[first].numpy().tobytes()).hexdigest()[:12]
