"""Hold out a part of the training rows for evaluation."""

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import ALL, CHOOSING, HELD_OUT, TRAIN, Source
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

Key = tuple[str, ...] | int
"""What is held out as a whole: the rows of a group, else those with the same texts."""

_PURPOSES = {
    HELD_OUT: ("evaluation", "evaluation rows of your own (for a CSV, data.eval_path=<file>)"),
    ALL: ("evaluation", "rows of another file"),
    CHOOSING: ("choosing the checkpoint", "take the last one (checkpoint.report=last)"),
}
_FEW = 200
"""Rows whose accuracy has a standard error above three points."""


class HeldOutSource:
    """A source whose training rows are divided into the split ``train`` and one that is not trained on.

    Args:
        task: Named in messages.
        source: Has the training rows and any other splits.
        fraction: Share of the training rows that is held out, between 0 and 1.
        split: Name of their split: ``held_out``, which evaluates, ``choosing``, which chooses the checkpoint, or
            ``all``: every row is in both splits.
        by_text: Whether a row is held out by its text alone, see :func:`held_out_by_text`, or by :func:`held_out`.
    """

    def __init__(
        self, task: Task, source: Source, fraction: float, split: str = HELD_OUT, *, by_text: bool = False
    ) -> None:
        self.task = task
        self.source = source
        self.fraction = fraction
        self.split = split
        self.by_text = by_text
        self._splits: dict[str, list[Example]] = {}
        self._note: list[str] = []

    @property
    def notes(self) -> Sequence[str]:
        return [*self.source.notes, *self._note]

    def examples(self, split: str) -> list[Example]:
        """Examples of either part keep their ``index`` among all rows; raises UserError if a part would be empty."""
        if split not in (TRAIN, self.split):
            return self.source.examples(split)
        if not self._splits:
            rows = self.source.examples(TRAIN)
            # Neither training nor scores can use a row without a label.
            labelled = [row for row in rows if row.label is not None] if self.task.is_labelled else rows
            if self.split == ALL:
                parts = {TRAIN: labelled, ALL: labelled}
            else:
                choose = held_out_by_text if self.by_text else held_out
                held = choose(labelled, self.fraction, by_class=not self.task.is_regression)
                parts = {TRAIN: [row for row in labelled if key_of(row) not in held]}
                parts[self.split] = [row for row in labelled if key_of(row) in held]
            if not all(parts.values()):
                different = len({key_of(row) for row in labelled})
                what = "texts" if labelled[0].group is None else "groups"
                purpose, otherwise = _PURPOSES[self.split]
                how_many = f"are too few to hold some out for {purpose}"
                if different == 1 < len(labelled):
                    how_many = f"all have the same text, so that none can be held out for {purpose}"
                elif different < len(labelled):
                    how_many = f"have {different:,} different {what}, too few to hold some out for {purpose}"
                raise UserError(
                    f"The {len(labelled):,} training rows of task '{self.task.name}' {how_many}; give more {what}, or "
                    f"{otherwise}."
                )
            self._splits = parts
            without = len(rows) - len(labelled)
            self._note = [f"{without:,} training rows without a label were left out."] if without else []
            self._note.append(self._division(len(parts[self.split]), labelled))
        return self._splits[split]

    def has(self, split: str) -> bool:
        return split in (TRAIN, self.split) or self.source.has(split)

    def _division(self, held: int, labelled: Sequence[Example]) -> str:
        rows, grouped = len(labelled), labelled[0].group is not None
        if self.split == ALL:
            return f"All {rows:,} rows are evaluated; whether the model was trained on some of them is not known."
        if self.split == HELD_OUT:
            how = f", each by a hash of its {'group' if grouped else 'text'}" if self.by_text else ""
            return (
                f"The data have no evaluation rows: {held:,} of the {rows:,} training rows are held out, the same ones "
                f"in every run{how}."
            )
        few = "; so few hardly tell checkpoints apart: checkpoint.report=last chooses nothing" if held < _FEW else ""
        return (
            f"{held:,} of the {rows:,} training rows choose the checkpoint and are not trained on, the same ones "
            "in "
            f"every run{few}."
        )

    def prepare(self) -> None:
        self.source.prepare()


def key_of(example: Example) -> Key:
    """What tells whether an example is held out: its group, or its texts."""
    return example.texts if example.group is None else example.group


def held_out(examples: Sequence[Example], fraction: float, by_class: bool) -> set[Key]:
    """The texts, or groups, to hold out: a random share, of each class where there are classes; the same for the same
    examples.

    Equal texts, or rows of a group, stay together, with the class of the first of them, so that no evaluated text was
    seen in training.

    Args:
        examples: The rows.
        fraction: Share of the rows to hold out, between 0 and 1; rounded, at least one text of each class that has two.
        by_class: Whether the share is taken of each class.
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
    """The texts, or groups, to hold out: those whose hash, a number from 0 to 1, is below the share.

    A class whose texts would all be on one side gives one to the other: its lowest is held out, or its highest trained
    on. Only in such a class can an added row move another.

    Args:
        examples, fraction, by_class: As in :func:`held_out`; the number of rows held out varies about the share.
    """
    held: set[Key] = set()
    for members in _keys_by_class(examples, by_class):
        places = sorted((_place(key), key) for key in members)
        below = sum(place < fraction for place, _ in places)
        held.update(key for _, key in places[: min(max(below, 1), len(places) - 1)])
    return held


def _keys_by_class(examples: Sequence[Example], by_class: bool) -> list[list[Key]]:
    """The different texts, or groups, of each class, that of their first row, in the order of the rows."""
    first = {key_of(example): example.label for example in reversed(examples)}
    classes: dict[int | float | None, list[Key]] = defaultdict(list)
    for key in dict.fromkeys(key_of(example) for example in examples):
        classes[first[key] if by_class else None].append(key)
    return list(classes.values())


def _place(key: Key) -> float:
    # The representation tells ("ab", "c") from ("a", "bc").
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
