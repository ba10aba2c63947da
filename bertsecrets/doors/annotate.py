"""Takes labels of attention maps back from annotators."""

import json
import math
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from bertsecrets.errors import UserError
from bertsecrets.patterns.agreement import Agreement
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.labels import (
    LABELS,
    Label,
    consensus,
    left_to_vote,
    merge_labels,
    of_pass,
    parse_labels,
    read_labels,
    write_labels,
)
from bertsecrets.patterns.maps import TABLE, MapSet
from bertsecrets.patterns.page import write_page
from bertsecrets.patterns.sheets import check_free, write_sheets
from bertsecrets.results.files import atomic_write


def take_labels(config: DictConfig) -> Agreement:
    """Merges the files named by ``labelling.labels`` into ``labels.csv`` of ``labelling.folder``; returns how the passes agree.

    Writes ``agreement.json`` and, for the maps on whose pattern the passes differ and further ones, up to
    ``labelling.votes``, could decide otherwise, ``adjudicate.html`` and ``sheets/pass<n>``. Nothing is written unless
    every file is valid.

    Raises:
        UserError: If there is no such folder, a file of labels is not valid, or fewer than two votes are wanted.
    """
    settings = config.labelling
    if settings.folder is None:
        raise UserError(
            "labelling.labels needs the annotation folder to take them into; give labelling.folder=<folder>."
        )
    folder = Path(settings.folder)
    if not (folder / TABLE).is_file():
        raise UserError(f"Folder '{folder}' holds no {TABLE}; give one that analysis=annotate_patterns made.")
    wanted = settings.votes
    if not isinstance(wanted, int) or wanted < 2:
        raise UserError(
            f"labelling.votes is {wanted!r}; expected a whole number from 2: how many labels a doubtful map gets."
        )
    maps = MapSet.read(folder)
    known = frozenset(maps.names)
    before = read_labels(folder)
    labels = list(before)
    for name in [settings.labels] if isinstance(settings.labels, str) else settings.labels:
        path = Path(name)
        new = parse_labels(path, known, settings.annotator)
        changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
        labels = merge_labels(labels, new, changed)
    check_free(folder / "sheets", labels)
    write_labels(folder, labels)
    agreement, left = Agreement.between(of_pass(labels, 1), of_pass(labels, 2)), left_to_vote(labels, wanted)
    with atomic_write(folder / "agreement.json") as temporary:
        temporary.write_text(json.dumps({**agreement.as_dict(), "differing": list(left)}, indent=1), "utf-8")
    adjudicate = folder / "adjudicate.html"
    # Where maps lack passes of different numbers, those of the first come first.
    number = min(left.values(), default=0)
    differing = [name for name, following in left.items() if following == number]
    if differing:
        write_page(adjudicate, maps, differing, [number])
        write_sheets(folder / "sheets" / f"pass{number}", maps, differing, number)
    else:
        adjudicate.unlink(missing_ok=True)
    _print(Console(), folder, maps, labels, len(labels) - len(before), agreement, number, differing)
    return agreement


def _print(
    console: Console,
    folder: Path,
    maps: MapSet,
    labels: Sequence[Label],
    taken: int,
    agreement: Agreement,
    number: int,
    differing: Sequence[str],
) -> None:
    console.print(
        f"Took in {taken} label{'' if taken == 1 else 's'}; {folder / LABELS} now holds {len(labels)}.", soft_wrap=True
    )
    for each in sorted({label.number for label in labels}):
        who = sorted({label.annotator for label in labels if label.number == each})
        console.print(f"Pass {each}: {len(of_pass(labels, each))} of {len(maps.rows)} maps, by {', '.join(who)}.")
    if not agreement.count:
        console.print("No map has a label in both pass 1 and pass 2 yet.")
        return
    console.print(
        f"Passes 1 and 2 agree on {agreement.raw:.1%} of {agreement.count} maps {_limits(agreement.raw_interval, '.1%')}; "
        f"Cohen's kappa {agreement.kappa:.3f} {_limits(agreement.kappa_interval, '.3f')}.",
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
    if differing:
        console.print(
            f"{len(differing)} maps are left to pass {number}: {folder / 'adjudicate.html'}, or "
            f"{folder / 'sheets' / f'pass{number}'}.",
            soft_wrap=True,
        )


def _limits(interval: tuple[float, float], form: str) -> str:
    return f"[{interval[0]:{form}}, {interval[1]:{form}}]"
