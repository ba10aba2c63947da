"""Contact sheets of a set of maps for each pass, and the table to write their labels in."""

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from bertsecrets.errors import UserError
from bertsecrets.patterns.labels import LABELS, Label, numbered_labels
from bertsecrets.patterns.maps import MapRow, MapSet
from bertsecrets.results.figures.contact_sheet import COLUMNS, ROWS, SheetMap, contact_sheet
from bertsecrets.results.files import atomic_write

HEADER = ("sheet", "position", "map", "pattern", "annotator", "pass", "at")
_PLACES = COLUMNS * ROWS


def pass_order(names: Sequence[str], number: int) -> list[str]:
    """The maps in the order of a pass, which is no other pass's: the second must not be remembered from the first."""
    shuffled = sorted(names)
    random.Random(f"pass {number}").shuffle(shuffled)
    return shuffled


def check_free(folder: Path, labels: Sequence[Label]) -> None:
    """Raises UserError if a pass's table below this folder holds a label that was not taken in: new sheets replace it."""
    taken = {(label.map, label.pattern, label.number) for label in labels}
    for path in sorted(folder.glob(f"*/{LABELS}")):
        filled = [label for _, label in numbered_labels(path, annotator="someone")]
        if any((label.map, label.pattern, label.number) not in taken for label in filled):
            raise UserError(
                f"File '{path}' holds labels that are not taken in, and new sheets would replace it; take them in with "
                f"labelling.labels={path} first, or move the file away."
            )


def write_sheets(folder: Path, maps: MapSet, names: Sequence[str], number: int) -> None:
    """Writes ``sheet-01.png``, ... and ``labels.csv`` of one pass, replacing those of an earlier, smaller set.

    The table has a row for each map, sheet by sheet and row by row: fill in ``pattern`` and ``annotator``; ``at`` may
    stay empty.

    Args:
        folder: Of the pass; made if missing.
        maps: Holds them.
        names: The maps to show.
        number: Of the pass.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("sheet-*.png"):
        old.unlink()
    rows = {row.map: row for row in maps.rows}
    order = pass_order(names, number)
    table: list[tuple[object, ...]] = []
    sheets = [order[first : first + _PLACES] for first in range(0, len(order), _PLACES)]
    for sheet, shown in enumerate(sheets, start=1):
        panels = [SheetMap(place, maps[name].numpy(), boundary(rows[name])) for place, name in enumerate(shown, 1)]
        picture = contact_sheet(panels, f"pass {number} · sheet {sheet} of {len(sheets)}")
        with atomic_write(folder / f"sheet-{sheet:02d}.png") as temporary:
            picture.save(temporary, optimize=True)
        table += [(sheet, place, name, "", "", number, "") for place, name in enumerate(shown, 1)]
    with (
        atomic_write(folder / LABELS) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(table)


def boundary(row: MapRow) -> int | None:
    """Where the first of two segments ends; None for a map of one segment."""
    return row.first_segment - 1 if row.first_segment > 0 else None
