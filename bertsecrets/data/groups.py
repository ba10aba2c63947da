"""Group examples that belong together, such as the sentences of one review, and detect likely groups."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertsecrets.data.example import Example
from bertsecrets.errors import UserError
from bertsecrets.settings import shown

_MANY = 0.05
"""Share of rows with a repeated text above which intervals are noticeably too narrow."""


def group_of(value: object) -> int:
    """The number of a group, from 0 to 2^63 - 1: a hash of its name, independent of other rows."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big") >> 1


def with_groups(examples: Sequence[Example], names: Sequence[Any], where: str) -> list[Example]:
    """The examples with their groups.

    Args:
        examples: The examples.
        names: The group name of each.
        where: The names' origin, for messages.

    Raises:
        UserError: If a name is missing, all names are the same, or a pair of texts is in two groups.
    """
    groups: dict[tuple[str, ...], Any] = {}
    for example, name in zip(examples, names, strict=True):
        # pandas.NA equals nothing and has no truth value.
        if name is None or type(name).__name__ == "NAType" or name == "" or name != name:
            raise UserError(f"{where} is empty in row {example.index}; give every row a group.")
        if len(example.texts) == 2 and groups.setdefault(example.texts, name) != name:
            raise UserError(
                f"{where} splits a pair: {shown(' / '.join(example.texts))} is in the groups "
                f"{shown(groups[example.texts])} and {shown(name)}; give equal pairs one group, or remove repeats."
            )
    if len(examples) > 1 and len(set(map(repr, names))) == 1:
        raise UserError(
            f"{where} contains {shown(names[0])} in all {len(examples):,} rows, so no two rows are independent; "
            "choose a column with several groups."
        )
    return [replace(example, group=group_of(name)) for example, name in zip(examples, names, strict=True)]


def judged_as_groups(rows: int, groups: int) -> str:
    """The sentence about rows that are resampled in groups."""
    return f"The {rows:,} evaluated rows form {groups:,} groups; rows of a group are resampled together."


def note_on(examples: Sequence[Example], columns: Sequence[str]) -> str | None:
    """A sentence about the groups of examples, or about a column of texts that many ungrouped rows share; else None.

    Args:
        examples: The evaluated examples.
        columns: The column of each of their texts; empty if they have none.
    """
    groups = {example.group for example in examples}
    if groups - {None}:
        return judged_as_groups(len(examples), len(groups))
    if not columns or not examples:
        return None
    shared: Mapping[str, int] = {
        column: sum(count for count in Counter(one.texts[place] for one in examples).values() if count > 1)
        for place, column in enumerate(columns)
    }
    column = max(shared, key=lambda name: shared[name])
    if shared[column] < _MANY * len(examples):
        return None
    return (
        f"Intervals may be too narrow: {shared[column]:,} of the {len(examples):,} rows share their '{column}' with "
        f"another row; set data.group={column} to treat such rows as one group."
    )
