"""Import the labels that annotators filled in, and say how far the passes agree."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.results.files import write_text
from tools.pattern_labels.agreement import Agreement
from tools.pattern_labels.labels import (
    LABELS,
    Label,
    consensus,
    disputed,
    merge_labels,
    of_pass,
    parse_labels,
    read_labels,
    write_labels,
)
from tools.pattern_labels.map_set import TABLE, MapSet
from tools.pattern_labels.page_and_sheets import check_imported, write_page, write_sheets


@dataclass(frozen=True)
class LabelImport:
    """Labels of an annotation folder after an import.

    Args:
        folder: The annotation folder.
        maps: Number of maps in the folder.
        labels: All labels in the folder.
        added: Number of labels that this import added.
        agreement: Agreement of passes 1 and 2.
        next_pass: Number of the next pass over disputed maps; 0 without disputed maps.
        disputed: Ids of the maps in that pass.
    """

    folder: Path
    maps: int
    labels: list[Label]
    added: int
    agreement: Agreement
    next_pass: int
    disputed: list[str]


def import_labels(
    folder: Path, files: Sequence[Path], annotator: str | None = None, wanted_votes: int = 3
) -> LabelImport:
    """Merge files of labels into ``labels.csv`` of an annotation folder, and print how the passes agree.

    Writes ``agreement.json`` and, for the maps that more labels could still decide otherwise, ``adjudicate.html`` and
    ``sheets/pass<n>``. Nothing is written unless every file is valid.

    Args:
        folder: The annotation folder.
        files: CSV files of labels.
        annotator: Annotator of the rows that name none.
        wanted_votes: Labels of a map on which the passes disagree, before the pattern named most often is taken; from
            2.

    Raises:
        UserError: If the folder holds no maps, a file of labels is not valid, or ``wanted_votes`` is below 2.
    """
    if wanted_votes < 2:
        raise UserError(f"--votes is {wanted_votes}; expected a whole number from 2: the labels of a disputed map.")
    if not (folder / TABLE).is_file():
        raise UserError(
            f"Folder '{folder}' holds no {TABLE}; give one that python -m tools.pattern_labels sample wrote."
        )
    maps = MapSet.read(folder)
    valid_names = frozenset(maps.names)
    before = read_labels(folder)
    labels = list(before)
    for path in files:
        new = parse_labels(path, valid_names, annotator)
        changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
        labels = merge_labels(labels, new, changed)
    check_imported(folder / "sheets", labels)
    write_labels(folder, labels)
    agreement = Agreement.between(of_pass(labels, 1), of_pass(labels, 2))
    next_passes = disputed(labels, wanted_votes)
    content = {**agreement.as_dict(), "differing": list(next_passes)}
    write_text(folder / "agreement.json", json.dumps(content, indent=1))
    # Maps with fewer passes come first.
    number = min(next_passes.values(), default=0)
    names = [name for name, next_pass in next_passes.items() if next_pass == number]
    adjudicate = folder / "adjudicate.html"
    if names:
        write_page(adjudicate, maps, names, [number])
        write_sheets(folder / "sheets" / f"pass{number}", maps, names, number)
    else:
        adjudicate.unlink(missing_ok=True)
    imported = LabelImport(folder, len(maps.rows), labels, len(labels) - len(before), agreement, number, names)
    _print(imported, Console())
    return imported


def _print(imported: LabelImport, console: Console) -> None:
    labels, agreement, folder = imported.labels, imported.agreement, imported.folder
    console.print(
        f"Imported {imported.added} label{'' if imported.added == 1 else 's'}; {folder / LABELS} now holds "
        f"{len(labels)}.",
        soft_wrap=True,
    )
    for number in sorted({label.number for label in labels}):
        annotators = sorted({label.annotator for label in labels if label.number == number})
        count = len(of_pass(labels, number))
        console.print(f"Pass {number}: {count} of {imported.maps} maps, by {', '.join(annotators)}.")
    if not agreement.count:
        console.print("No map has a label in both pass 1 and pass 2 yet.")
        return
    console.print(
        f"Passes 1 and 2 agree on {agreement.raw:.1%} of {agreement.count} maps "
        f"{_limits(agreement.raw_interval, '.1%')}; Cohen's kappa {agreement.kappa:.3f} "
        f"{_limits(agreement.kappa_interval, '.3f')}.",
        soft_wrap=True,
    )
    table = Table(
        "pass 1 \\ pass 2", title="Maps by pattern in each pass", title_justify="left", box=None, pad_edge=False
    )
    for heading in (*map(str, range(1, len(PATTERNS) + 1)), "agreement"):
        table.add_column(heading, justify="right")
    for key, (pattern, counts) in enumerate(zip(PATTERNS, agreement.confusion_PP.tolist(), strict=True), start=1):
        specific = agreement.of_pattern(pattern)
        table.add_row(f"{key} {pattern}", *map(str, counts), "–" if math.isnan(specific) else f"{specific:.1%}")
    console.print(table)
    console.print(f"Consensus: {len(consensus(labels))} maps.")
    if imported.disputed:
        sheets = folder / "sheets" / f"pass{imported.next_pass}"
        console.print(
            f"{len(imported.disputed)} disputed maps go to pass {imported.next_pass}: {folder / 'adjudicate.html'}, or "
            f"{sheets}.",
            soft_wrap=True,
        )


def _limits(interval: tuple[float, float], form: str) -> str:
    return f"[{interval[0]:{form}}, {interval[1]:{form}}]"
