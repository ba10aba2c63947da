"""Sources around another one: hold out part of its training rows for evaluation; record a fingerprint of its rows."""

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


class HeldOutSource:
    """A source whose training rows are divided into the split ``train`` and a split that is not trained on.

    Args:
        task: Named in messages.
        source: The source of the training rows and any other splits.
        fraction: Share of the training rows to hold out, between 0 and 1.
        split: Name of their split: ``held_out`` for evaluation, ``choosing`` for choosing the checkpoint, or ``all``,
            with every row in both splits.
        by_text: Whether to use :func:`held_out_by_text` instead of :func:`held_out`.
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
        """Examples of both parts keep their ``index`` among all rows; raises UserError if a part would be empty."""
        if split not in (TRAIN, self.split):
            return self.source.examples(split)
        if not self._splits:
            rows = self.source.examples(TRAIN)
            # Neither training nor scores can use a row without a label.
            labelled = [row for row in rows if row.label is not None] if self.task.needs_labels else rows
            if self.split == ALL:
                parts = {TRAIN: labelled, ALL: labelled}
            else:
                choose = held_out_by_text if self.by_text else held_out
                by_class = not (self.task.is_regression or self.task.head.statistics)
                held = choose(labelled, self.fraction, by_class)
                parts = {TRAIN: [row for row in labelled if key_of(row) not in held]}
                parts[self.split] = [row for row in labelled if key_of(row) in held]
            if not all(parts.values()):
                different = len({key_of(row) for row in labelled})
                what = "texts" if labelled[0].group is None else "groups"
                purpose, otherwise = _PURPOSES[self.split]
                how_many = f"are too few to hold some out for {purpose}"
                if different == 1 < len(labelled):
                    how_many = f"all have the same text, so none can be held out for {purpose}"
                elif different < len(labelled):
                    how_many = f"have {different:,} distinct {what}, too few to hold some out for {purpose}"
                raise UserError(
                    f"The {len(labelled):,} training rows of task '{self.task.name}' {how_many}; give more {what}, or "
                    f"{otherwise}."
                )
            self._splits = parts
            without = len(rows) - len(labelled)
            self._note = [f"{without:,} training rows without a label were skipped."] if without else []
            self._note.append(self._division(len(parts[self.split]), labelled))
        return self._splits[split]

    def has(self, split: str) -> bool:
        return split in (TRAIN, self.split) or self.source.has(split)

    def _division(self, held: int, labelled: Sequence[Example]) -> str:
        rows, grouped = len(labelled), labelled[0].group is not None
        if self.split == ALL:
            return f"All {rows:,} rows are used for evaluation; the model may have been trained on some of them."
        if self.split == HELD_OUT:
            how = f", chosen by a hash of the {'group' if grouped else 'text'}" if self.by_text else ""
            return (
                f"The data have no evaluation rows, so {held:,} of the {rows:,} training rows are held out, the same "
                f"in every run{how}."
            )
        few = "; that is too few to choose reliably: checkpoint.report=last avoids the choice" if held < _FEW else ""
        return (
            f"{held:,} of the {rows:,} training rows, the same in every run, are held out to choose the "
            f"checkpoint{few}."
        )

    def prepare(self) -> None:
        self.source.prepare()


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


class RecordedSource:
    """A source that records a fingerprint of its rows.

    Args:
        source: The source of the rows.
        place: Their origin, by split.
        rows: Receives the fingerprint of each split that is read.
        with_texts: Whether to record the training texts as well.
    """

    def __init__(
        self, source: Source, place: Callable[[str], str], rows: dict[str, Rows], with_texts: bool = False
    ) -> None:
        self.source = source
        self.place = place
        self.rows = rows
        self.with_texts = with_texts

    @property
    def notes(self) -> Sequence[str]:
        return self.source.notes

    def examples(self, split: str) -> list[Example]:
        examples = self.source.examples(split)
        texts: set[str] = set()
        if self.with_texts and split == TRAIN:
            texts = {hashlib.blake2b(repr(one.texts).encode(), digest_size=6).hexdigest() for one in examples}
        digest = hashlib.sha256()
        for example in examples:
            # repr() escapes lone surrogates, which cannot be encoded.
            digest.update(f"{example.texts!r}{example.label!r}\n".encode())
        self.rows[split] = Rows(self.place(split), len(examples), digest.hexdigest(), sorted(texts))
        return examples

    def has(self, split: str) -> bool:
        return self.source.has(split)

    def prepare(self) -> None:
        self.source.prepare()
