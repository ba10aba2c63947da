"""Hold out part of a source's training rows for evaluation, and record a fingerprint of its rows."""

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bertsecrets.data.example import Example, Label
from bertsecrets.data.sources.base import ALL, CHOOSING, HELD_OUT, TRAIN, Source
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

Key = tuple[str, ...] | int
"""Units that are held out as a whole: the rows of a group, else rows with the same texts."""

_PURPOSES = {
    HELD_OUT: ("evaluation", "your own evaluation rows (for a CSV, data.eval_path=<file>)"),
    ALL: ("evaluation", "rows from another file"),
    CHOOSING: ("choosing the checkpoint", "use the last one (checkpoint.report=last)"),
}
_FEW = 200
"""Number of rows below which the standard error of an accuracy exceeds three points."""


@dataclass(frozen=True)
class Rows:
    """The rows of a split as its source provides them, before holding out or sampling.

    Args:
        place: The file, folder or data set.
        count: The number of rows.
        sha256: Digest of their texts and labels in order, 64 hexadecimal digits.
        texts: Sorted short hashes of the distinct texts if training rows may be held out; else empty.
    """

    place: str
    count: int
    sha256: str
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class Division:
    """A split that is taken from the training rows, which are not trained on.

    Args:
        split: ``held_out`` for evaluation, ``all`` for evaluation on every row, which stays a training row too, or
            ``choosing`` for choosing the checkpoint.
        fraction: Share of the training rows, between 0 and 1.
        by_text: Whether to use :func:`held_out_by_text` instead of :func:`held_out`.
    """

    split: str
    fraction: float
    by_text: bool = False


class DividedSource:
    """A source whose training rows may be divided into several splits, and which records what it reads.

    Args:
        task: Named in messages.
        source: The source of the training rows and any other splits.
        divisions: The splits to take from the training rows, one after the other.
        place: The origin of a split's rows.

    Attributes:
        rows: A fingerprint of the rows of each split that was read.
    """

    def __init__(self, task: Task, source: Source, divisions: Sequence[Division], place: Callable[[str], str]) -> None:
        self.task = task
        self.source = source
        self.divisions = {division.split: division for division in divisions}
        self.place = place
        self.rows: dict[str, Rows] = {}
        self._parts: dict[str, list[Example]] = {}
        self._notes: list[str] = []

    @property
    def notes(self) -> Sequence[str]:
        return [*self.source.notes, *self._notes]

    def examples(self, split: str) -> list[Example]:
        """Examples of all parts keep their ``index`` among all rows; raises UserError if a part would be empty."""
        if not self.divisions or split not in (TRAIN, *self.divisions):
            return self._read(split)
        if not self._parts:
            self._parts, self._notes = self._divided()
        return self._parts[split]

    def has(self, split: str) -> bool:
        return (bool(self.divisions) and split in (TRAIN, *self.divisions)) or self.source.has(split)

    def prepare(self) -> None:
        self.source.prepare()

    def _read(self, split: str) -> list[Example]:
        examples = self.source.examples(split)
        texts: set[str] = set()
        if split == TRAIN and not self.divisions.keys().isdisjoint((HELD_OUT, ALL)):
            texts = {hashlib.blake2b(repr(one.texts).encode(), digest_size=6).hexdigest() for one in examples}
        digest = hashlib.sha256()
        for example in examples:
            # repr() escapes lone surrogates, which cannot be encoded.
            digest.update(f"{example.texts!r}{example.label!r}\n".encode())
        self.rows[split] = Rows(self.place(split), len(examples), digest.hexdigest(), sorted(texts))
        return examples

    def _divided(self) -> tuple[dict[str, list[Example]], list[str]]:
        """All parts of the training rows, and sentences about them."""
        rows = self._read(TRAIN)
        # Neither training nor scores can use a row without a label.
        left = [row for row in rows if row.label is not None] if self.task.needs_labels else rows
        without = len(rows) - len(left)
        notes = [f"{without:,} training rows without a label were skipped."] if without else []
        parts: dict[str, list[Example]] = {}
        for division in self.divisions.values():
            if division.split == ALL:
                trained, part = left, left
            else:
                choose = held_out_by_text if division.by_text else held_out
                by_class = not (self.task.is_regression or self.task.head.statistics)
                held = choose(left, division.fraction, by_class)
                trained = [row for row in left if key_of(row) not in held]
                part = [row for row in left if key_of(row) in held]
            if not (trained and part):
                raise UserError(self._too_few(left, division.split))
            notes.append(_note_on(division, len(part), left))
            left = parts[TRAIN] = trained
            parts[division.split] = part
        return parts, notes

    def _too_few(self, labelled: Sequence[Example], split: str) -> str:
        different = len({key_of(row) for row in labelled})
        what = "texts" if labelled[0].group is None else "groups"
        purpose, otherwise = _PURPOSES[split]
        how_many = f"are too few to hold some out for {purpose}"
        if different == 1 < len(labelled):
            how_many = f"all have the same text, so none can be held out for {purpose}"
        elif different < len(labelled):
            how_many = f"have {different:,} distinct {what}, too few to hold some out for {purpose}"
        return (
            f"The {len(labelled):,} training rows of task '{self.task.name}' {how_many}; give more {what}, or "
            f"{otherwise}."
        )


def _note_on(division: Division, held: int, labelled: Sequence[Example]) -> str:
    rows, what = len(labelled), "text" if labelled[0].group is None else "group"
    if division.split == ALL:
        return f"All {rows:,} rows are used for evaluation; the model may have been trained on some of them."
    if division.split == HELD_OUT:
        how = f", chosen by a hash of the {what}" if division.by_text else ""
        return (
            f"The data have no evaluation rows, so {held:,} of the {rows:,} training rows are held out, the same in "
            f"every run{how}."
        )
    few = "; that is too few to choose reliably: checkpoint.report=last avoids the choice" if held < _FEW else ""
    return f"{held:,} of the {rows:,} training rows, the same in every run, are held out to choose the checkpoint{few}."


def key_of(example: Example) -> Key:
    """The key by which an example is held out: its group, or its texts."""
    return example.texts if example.group is None else example.group


def held_out(examples: Sequence[Example], fraction: float, by_class: bool) -> set[Key]:
    """The texts, or groups, to hold out: a random share, stratified by class if there are classes; deterministic.

    Equal texts, or rows of a group, stay together under the class of the first, so that no evaluated text was seen in
    training.

    Args:
        examples: The rows.
        fraction: Share of the rows to hold out, between 0 and 1; rounded, but at least one text of each class with two
            or more.
        by_class: Whether to stratify by class.
    """
    rows = Counter(key_of(example) for example in examples)
    held: set[Key] = set()
    for members in _keys_by_class(examples, by_class):
        random.Random(0).shuffle(members)
        wanted = fraction * sum(rows[key] for key in members)
        taken = 0
        # The last text of a class is never held out: the model has to see the class.
        for key in members[:-1]:
            if taken and taken + rows[key] / 2 > wanted:
                break
            held.add(key)
            taken += rows[key]
    return held


def held_out_by_text(examples: Sequence[Example], fraction: float, by_class: bool) -> set[Key]:
    """The texts, or groups, to hold out: those with a hash, a number from 0 to 1, below the share.

    If all texts of a class would be on one side, one is moved: the lowest hash is held out, or the highest is trained
    on. Only in such a class can adding a row move another row.

    Args:
        examples, fraction, by_class: As in :func:`held_out`; the number of rows held out varies around the share.
    """
    held: set[Key] = set()
    for members in _keys_by_class(examples, by_class):
        places = sorted((_place(key), key) for key in members)
        below = sum(place < fraction for place, _ in places)
        held.update(key for _, key in places[: min(max(below, 1), len(places) - 1)])
    return held


def _keys_by_class(examples: Sequence[Example], by_class: bool) -> list[list[Key]]:
    """The distinct texts, or groups, by the class of their first row, in the order of the rows."""
    first = {key_of(example): example.label for example in reversed(examples)}
    classes: dict[Label | None, list[Key]] = defaultdict(list)
    for key in dict.fromkeys(key_of(example) for example in examples):
        classes[first[key] if by_class else None].append(key)
    return list(classes.values())


def _place(key: Key) -> float:
    # repr() distinguishes ("ab", "c") from ("a", "bc").
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
