"""Labels of attention maps: reading, merging without loss, and the pattern that most passes name."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path

from bertsecrets.errors import UserError, choices
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.results.files import atomic_write

LABELS = "labels.csv"
CLEAR = 0.8
"""Least share of a map's passes that name one pattern, for the map to count as clear: four of five."""


@dataclass(frozen=True)
class Label:
    """One annotator's answer for one map.

    Args:
        map: Id of the map.
        pattern: One of :data:`~bertsecrets.patterns.classes.PATTERNS`.
        annotator: Name of the annotator.
        number: Number of the pass, from 1 (column ``pass``).
        at: Time, ISO 8601 in UTC.
    """

    map: str
    pattern: str
    annotator: str
    number: int
    at: str


HEADER = tuple("pass" if field.name == "number" else field.name for field in fields(Label))


def read_labels(folder: Path) -> tuple[Label, ...]:
    """Every label in an annotation folder, in the order of import; empty if there is no ``labels.csv`` yet.

    Raises:
        UserError: If the table is not valid.
    """
    path = folder / LABELS
    return tuple(label for _, label in numbered_labels(path)) if path.is_file() else ()


def write_labels(folder: Path, labels: Sequence[Label]) -> None:
    """Write ``labels.csv``."""
    write_csv(folder / LABELS, HEADER, map(astuple, labels))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table atomically."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def parse_labels(path: Path, valid_maps: Collection[str], annotator: str | None = None) -> list[Label]:
    """Read the labels of a file that an annotator filled in.

    Rows without a pattern are skipped; ``at`` is empty in labels without a time.

    Args:
        path: A CSV file with the columns map, pattern, annotator, pass and at (others are ignored), from the page or
            a sheet's table.
        valid_maps: The ids of the maps.
        annotator: Annotator of the rows that name none.

    Raises:
        UserError: If the file cannot be read, or a line has an unknown map or pattern, no annotator, or no pass.
    """
    labels = []
    for line, label in numbered_labels(path, annotator):
        if label.map not in valid_maps:
            raise UserError(
                f"Unknown map '{label.map}' in '{path}', line {line}; the annotation folder holds {len(valid_maps)} "
                "other maps: import labels into the folder that holds their sheets and page."
            )
        labels.append(label)
    return labels


def numbered_labels(path: Path, annotator: str | None = None) -> Iterator[tuple[int, Label]]:
    """Pairs of line and label of a table, as :func:`parse_labels`, but for any map ids."""
    try:
        # Spreadsheet programs write a byte order mark.
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"File '{path}' cannot be read ({reason}); give a CSV file of labels in UTF-8.") from error
    head = text.split("\n", 1)[0]
    # They write semicolons in locales with a decimal comma.
    reader = csv.DictReader(io.StringIO(text, ""), delimiter=";" if head.count(";") > head.count(",") else ",")
    for column in ("map", "pattern"):
        if column not in (reader.fieldnames or ()):
            raise UserError(f"File '{path}' has no column '{column}'; expected the columns {', '.join(HEADER)}.")
    for row in reader:
        values = {key: (row.get(key) or "").strip() for key in HEADER}
        if values["pattern"]:
            yield reader.line_num, _label(values, f"'{path}', line {reader.line_num}", annotator)


def merge_labels(earlier: Sequence[Label], new: Iterable[Label], changed: str) -> list[Label]:
    """All labels of both. A repeated label is added once; a changed one is added after the older.

    Args:
        earlier: Labels imported earlier.
        new: Labels to import.
        changed: Time of the labels in ``new`` that have none: the last change of their file.
    """
    merged = dict.fromkeys(earlier)
    last: dict[tuple[str, str, int], Label] = {}
    for label in [*earlier, *new]:
        key = (label.map, label.annotator, label.number)
        if not label.at:
            if key in last and last[key].pattern == label.pattern:
                continue
            label = replace(label, at=changed)
        merged[label] = None
        if key not in last or _time(last[key].at) <= _time(label.at):
            last[key] = label
    return list(merged)


def of_pass(labels: Iterable[Label], number: int) -> dict[str, str]:
    """Map -> pattern in one pass; the latest answer counts."""
    return {name: answers[number] for name, answers in votes(labels).items() if number in answers}


def votes(labels: Iterable[Label]) -> dict[str, dict[int, str]]:
    """Map -> pass -> pattern; the latest answer of a pass counts."""
    pattern_of: dict[str, dict[int, str]] = {}
    for label in sorted(labels, key=lambda label: _time(label.at)):
        pattern_of.setdefault(label.map, {})[label.number] = label.pattern
    return pattern_of


def consensus(labels: Iterable[Label]) -> dict[str, str]:
    """Map -> the pattern that most of its passes name, for maps with at least two passes.

    Of patterns named equally often, the one named in the last pass is taken; two passes that differ decide nothing.
    """
    decided = {}
    for name, answers in votes(labels).items():
        count = Counter(answers.values())
        most = max(count.values())
        if len(answers) > 2 or most == 2:
            last = max(number for number, pattern in answers.items() if count[pattern] == most)
            decided[name] = answers[last]
    return decided


def clear_maps(labels: Iterable[Label]) -> set[str]:
    """Maps on which at least ``CLEAR`` of the passes name one pattern."""
    return {
        name
        for name, answers in votes(labels).items()
        if max(Counter(answers.values()).values()) >= CLEAR * len(answers)
    }


def majority_of_others(labels: Iterable[Label], number: int) -> dict[str, str]:
    """Map -> the pattern that the other passes name most often, without ties and maps that lack this pass."""
    decided = {}
    for name, answers in votes(labels).items():
        most = Counter(pattern for other, pattern in answers.items() if other != number).most_common(2)
        if number in answers and most and (len(most) == 1 or most[0][1] > most[1][1]):
            decided[name] = most[0][0]
    return decided


def disputed(labels: Iterable[Label], wanted: int) -> dict[str, int]:
    """Map -> its next pass, for maps with at least two passes and no pattern that has over half of the ``wanted``
    votes.
    """
    return {
        name: max(answers) + 1
        for name, answers in sorted(votes(labels).items())
        if 2 <= len(answers) < wanted and 2 * max(Counter(answers.values()).values()) <= wanted
    }


def _label(values: Mapping[str, str], where: str, annotator: str | None) -> Label:
    pattern, name, number, at = values["pattern"], values["annotator"] or annotator, values["pass"], values["at"]
    if pattern not in PATTERNS:
        raise UserError(f"Unknown pattern '{pattern}' in {where}; {choices(pattern, PATTERNS)}.")
    if not name:
        raise UserError(f"No annotator is named in {where}; fill in the column, or give --annotator <name>.")
    if not number.isdecimal() or int(number) < 1:
        raise UserError(f"pass is '{number}' in {where}; expected a whole number from 1.")
    try:
        if at:
            _time(at)
    except ValueError as error:
        raise UserError(f"at is '{at}' in {where}; expected a time in ISO 8601, e.g. 2026-01-31T12:00:00Z.") from error
    return Label(values["map"], pattern, name, int(number), at)


def _time(at: str) -> datetime:
    # Python 3.10 cannot parse the Z that browsers write.
    time = datetime.fromisoformat(at.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
