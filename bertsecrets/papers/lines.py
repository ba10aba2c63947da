"""Tables of a page from lines of plain values by field, with cells formatted as in the page's file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import numpy as np

from bertsecrets.errors import UserError, choices
from bertsecrets.present.figures.style import sample_size, seeds_in_words
from bertsecrets.present.probes import state_label
from bertsecrets.present.report.content import Table
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import MISSING, head_label, heads_label, number, p_value

Line = Mapping[str, Any]
"""The values of a row by field; a field without a value is None, NaN or missing."""

Columns = Mapping[str, str | Sequence[str]]
"""Heading of each column -> the format of its cells, or several formats, of which the first with all values is used.

A format is a text with ``{field:how}``, as in ``str.format``; besides the plain value, ``how`` can be:

========== =========================================================
``+.2``    a number, or one with its interval, with sign and digits
``%``      the same in hundredths
``points`` the same with its unit
``p``      a p-value
``,``      a count
``yes|no`` words for a flag
``head``   a head ``[layer, head]``
``heads``  several heads
``at``     heads with a number each, ``[layer, head, number]``
``state``  a hidden state by its number
``layers`` a number for each layer; ``+layers`` with signs
========== =========================================================

Several values, for seeds, are written in sequence; named values follow their names.
"""


class _EmptyError(Exception):
    """A field without a value."""


@dataclass(frozen=True)
class _Value:
    value: Any

    def __getitem__(self, key: Any) -> "_Value":
        try:
            return _Value(self.value[key])
        except (KeyError, IndexError, TypeError):
            raise _EmptyError from None

    def __format__(self, how: str) -> str:
        value = self.value
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise _EmptyError
        if isinstance(value, Mapping) and "value" in value:
            value = Estimate(**value)
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {written(one, how)}" for name, one in value.items()) or MISSING
        if how == "at":
            return "; ".join(f"{head_label(*head)}: {number(one)}" for *head, one in value)
        if how == "state":
            return state_label(value)
        if how.endswith("layers"):
            return by_layer(value, signed=how.startswith("+"))
        if how == "head":
            return head_label(*map(int, value))
        if how == "heads":
            return heads_label((int(layer), int(head)) for layer, head in value) or MISSING
        if isinstance(value, str):
            return value
        if "|" in how:
            return how.split("|")[not value]
        if isinstance(value, Sequence | np.ndarray):
            return ", ".join(written(one, how) for one in value) or MISSING
        return written(value, how)


def written(value: float | Estimate, how: str) -> str:
    """A number in one of the formats of :data:`Columns`."""
    if isinstance(value, Estimate):
        return format(value, how)
    if how == "p":
        return p_value(value)
    if isinstance(value, int | np.integer):
        return number(value, 0, signed=True) if how == "+" else format(int(value), how if how == "," else "")
    return format(Estimate(float(value)), how)


def cell(formats: str | Sequence[str], line: Line) -> str:
    """A cell, or a dash if fields have no values; raises UserError for an unknown format."""
    for form in [formats] if isinstance(formats, str) else formats:
        try:
            return Formatter().vformat(form, (), {name: _Value(value) for name, value in line.items()})
        except (_EmptyError, KeyError):
            continue
        except ValueError as error:
            raise UserError(f"Invalid cell format '{form}' of a page: {error}.") from error
    return MISSING


def check_fields(lines: Sequence[Line], columns: Columns, more: Iterable[str] = ()) -> None:
    """Raise UserError if a column refers to a field that no line has."""
    known = {name for line in lines for name in line} | set(more)
    for heading, formats in columns.items():
        for form in [formats] if isinstance(formats, str) else formats:
            for _, field, _, _ in Formatter().parse(form):
                name = (field or "").partition("[")[0].partition(".")[0]
                if field is not None and name not in known:
                    raise UserError(f"The column '{heading}' of a page shows '{name}'; {choices(name, known)}.")


def tables(lines: Sequence[Line], columns: Columns, caption: str, *, apart: bool = False) -> list[Table]:
    """Lines as one table, or one per model, without empty columns.

    Args:
        lines: At least one.
        columns: Its columns.
        caption: Its caption, in which ``{n}`` is replaced by the numbers of examples and ``{seeds}`` by the numbers of
            seeds.
        apart: Whether each model has a separate table. A single model is named in the caption instead.
    """
    counts = [line["examples"] for line in lines if line.get("examples") is not None]
    seeds = [line["seeds"] for line in lines if line.get("seeds") is not None]
    words = {"n": sample_size(counts) if counts else "", "seeds": seeds_in_words(seeds) if seeds else ""}
    caption = caption.format(**words)
    rows = [{heading: cell(formats, line) for heading, formats in columns.items()} for line in lines]
    if "model" not in columns:
        return [_filled(rows, caption)]
    by_model: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        without_name = {heading: text for heading, text in row.items() if heading != "model"}
        by_model.setdefault(row["model"], []).append(without_name)
    if not apart and len(by_model) > 1:
        return [_filled(rows, caption)]
    return [_filled(own_rows, f"{caption} ({name})") for name, own_rows in by_model.items()]


def _filled(rows: Sequence[Mapping[str, str]], caption: str) -> Table:
    """A table of cells by heading, without empty columns."""
    shown = [heading for heading in rows[0] if any(row[heading] != MISSING for row in rows)]
    return Table(shown, [[row[heading] for heading in shown] for row in rows], caption)


def by_layer(values: Iterable[float], *, signed: bool = False) -> str:
    """One number per layer for a table cell, without leading zeros: ``.90 .50 1.00``, or ``+.10 −.53`` with signs."""
    texts = (number(float(value), 2, signed=signed) for value in values)
    return " ".join(text.replace("0.", ".", 1) if text.lstrip("+−").startswith("0.") else text for text in texts)
