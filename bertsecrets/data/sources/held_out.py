"""Hold out a part of the training rows for evaluation."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import ALL, CHOOSING, HELD_OUT, TRAIN, Source
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

Texts = tuple[str, ...]

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
                held_texts = choose(labelled, self.fraction, by_class=not self.task.is_regression)
                parts = {TRAIN: [row for row in labelled if row.texts not in held_texts]}
                parts[self.split] = [row for row in labelled if row.texts in held_texts]
            if not all(parts.values()):
                different = len({row.texts for row in labelled})
                purpose, otherwise = _PURPOSES[self.split]
                how_many = f"are too few to hold some out for {purpose}"
                if different == 1 < len(labelled):
                    how_many = f"all have the same text, so that none can be held out for {purpose}"
                elif different < len(labelled):
                    how_many = f"have {different:,} different texts, too few to hold some out for {purpose}"
                raise UserError(
                    f"The {len(labelled):,} training rows of task '{self.task.name}' {how_many}; give more texts, or "
                    f"{otherwise}."
                )
            self._splits = parts
            without = len(rows) - len(labelled)
            self._note = [f"{without:,} training rows without a label were left out."] if without else []
            self._note.append(self._division(len(parts[self.split]), len(labelled)))
        return self._splits[split]

    def has(self, split: str) -> bool:
        return split in (TRAIN, self.split) or self.source.has(split)

    def _division(self, held: int, rows: int) -> str:
        if self.split == ALL:
            return f"All {rows:,} rows are evaluated; whether the model was trained on some of them is not known."
        if self.split == HELD_OUT:
            return (
                f"The data have no evaluation rows: {held:,} of the {rows:,} training rows are held out, the same ones "
                f"in every run{', each by a hash of its text' if self.by_text else ''}."
            )
        few = "; so few hardly tell checkpoints apart: checkpoint.report=last chooses nothing" if held < _FEW else ""
        return (
            f"{held:,} of the {rows:,} training rows choose the checkpoint and are not trained on, the same ones "
            "in "
            f"every run{few}."
        )

    def prepare(self) -> None:
        self.source.prepare()


def held_out(examples: Sequence[Example], fraction: float, by_class: bool) -> set[Texts]:
    """The texts to hold out: a random share, of each class where there are classes; the same for the same examples.

    Equal texts stay together, with the class of the first of them, so that no evaluated text was seen in training.

    Args:
        examples: The rows.
        fraction: Share of the rows to hold out, between 0 and 1; rounded, at least one text of each class that has two.
        by_class: Whether the share is taken of each class.
    """
    rows: dict[Texts, list[Example]] = defaultdict(list)
    for example in examples:
        rows[example.texts].append(example)
    held_texts: set[Texts] = set()
    for members in _texts_by_class(examples, by_class):
        random.Random(0).shuffle(members)
        wanted = fraction * sum(len(rows[texts]) for texts in members)
        taken = 0
        # The last text of a class is never held out: the model has to see the class.
        for texts in members[:-1]:
            if taken and taken + len(rows[texts]) / 2 > wanted:
                break
            held_texts.add(texts)
            taken += len(rows[texts])
    return held_texts


def held_out_by_text(examples: Sequence[Example], fraction: float, by_class: bool) -> set[Texts]:
    """The texts to hold out: those whose hash, a number from 0 to 1, is below the share.

    A class whose texts would all be on one side gives one to the other: its lowest is held out, or its highest trained
    on. Only in such a class can an added row move another.

    Args:
        examples, fraction, by_class: As in :func:`held_out`; the number of rows held out varies about the share.
    """
    held_texts: set[Texts] = set()
    for members in _texts_by_class(examples, by_class):
        places = sorted((_place(texts), texts) for texts in members)
        below = sum(place < fraction for place, _ in places)
        held_texts.update(texts for _, texts in places[: min(max(below, 1), len(places) - 1)])
    return held_texts


def _texts_by_class(examples: Sequence[Example], by_class: bool) -> list[list[Texts]]:
    """The different texts of each class, that of their first row, in the order of the rows."""
    first = {example.texts: example.label for example in reversed(examples)}
    classes: dict[int | float | None, list[Texts]] = defaultdict(list)
    for texts in dict.fromkeys(example.texts for example in examples):
        classes[first[texts] if by_class else None].append(texts)
    return list(classes.values())


def _place(texts: Texts) -> float:
    # The representation tells ("ab", "c") from ("a", "bc").
    digest = hashlib.blake2b(repr(texts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
