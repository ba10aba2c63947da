"""What every source yields: an example, and the linguistic annotation of its words."""

from dataclasses import dataclass
from typing import Literal

Matching = Literal["offsets", "kovaleva"]
"""How words are found among tokens: by their characters' offsets, or by spelling, as the original code of Kovaleva et al.
does."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of an annotated sentence.

    ``start`` and ``end`` are character offsets into the sentence (end exclusive). ``head`` is the index of the
    governing word in the same sentence, or -1 for the root. ``pos`` is a Universal POS tag and ``relation`` a
    Universal Dependencies label. ``entity`` numbers the coreference cluster the word belongs to (words of one
    example that share a number corefer, across its two sentences as well), or -1. ``tag`` is the annotator's own finer
    tag (of the Penn Treebank in English), empty where there is none.
    """

    form: str
    start: int
    end: int
    pos: str
    head: int
    relation: str
    negation: bool = False
    entity: int = -1
    tag: str = ""


@dataclass(frozen=True, slots=True)
class FrameElement:
    """A role of a frame, filled by the words ``first`` to ``last`` (both inclusive)."""

    name: str
    first: int
    last: int
    core: bool = True


@dataclass(frozen=True, slots=True)
class Frame:
    """A semantic frame evoked by the word ``target``, with the elements that fill its roles.

    A target of several words stretches from ``target`` to ``target_last`` (inclusive).
    """

    name: str
    target: int
    elements: tuple[FrameElement, ...]
    target_last: int | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """The words of one sentence and the frames they evoke."""

    words: tuple[Word, ...]
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a task: one or two sentences, its label and, where there is one, its annotation.

    ``index`` is the row's position in its split, from 0. ``label`` is a class index, a score, or None in a split
    without labels. ``annotations`` has one entry for each sentence, or is empty.
    """

    index: int
    texts: tuple[str, ...]
    label: int | float | None
    annotations: tuple[Annotation, ...] = ()
