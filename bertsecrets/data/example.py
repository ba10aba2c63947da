"""An example from any source, and the linguistic annotation of its words."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Union

# A measure's module loads no task heads.
if TYPE_CHECKING:
    from bertsecrets.task_heads.labels import Answers

Matching = Literal["offsets", "kovaleva"]
"""How words are matched to tokens: by character offsets, or by spelling, as in the code of Kovaleva et al."""

MentionKind = Literal["pronoun", "proper", "nominal"]
"""Kinds of a mention's head word: a pronoun, a name or a common noun."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of an annotated sentence.

    ``start`` and ``end`` are character offsets into the sentence (end exclusive). ``head`` is the index of the
    governing word in the same sentence, or -1 for the root. ``pos`` is a Universal POS tag and ``relation`` a
    Universal Dependencies label. ``entity`` is the number of the word's coreference cluster, or -1; words of one
    example with the same number corefer, across its two sentences, too. ``tag`` is the language-specific tag (Penn
    Treebank in English), or empty.
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

    A target of several words extends from ``target`` to ``target_last`` (inclusive).
    """

    name: str
    target: int
    elements: tuple[FrameElement, ...]
    target_last: int | None = None


@dataclass(frozen=True, slots=True)
class Mention:
    """The words ``first`` to ``last`` (both inclusive), which refer to an entity; ``head`` is the head word among them.

    Mentions of one text with the same ``entity`` corefer. ``anaphoric`` is true if an antecedent is annotated in this
    text or earlier in the document. ``choices`` are the indices of the candidate antecedents, or None if the data set
    does not restrict them.
    """

    first: int
    last: int
    head: int
    kind: MentionKind
    entity: int
    anaphoric: bool
    choices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """The words of one sentence, the frames they evoke and the mentions among them, in the order of their first words.

    ``sentences`` is empty for a sentence; for a document it has the index of each sentence's first word.
    """

    words: tuple[Word, ...]
    frames: tuple[Frame, ...] = ()
    mentions: tuple[Mention, ...] = ()
    sentences: tuple[int, ...] = ()


Label = Union[int, float, tuple[int, ...], "Answers"]
"""A class index, a score, a number for each word, or the answers to a question."""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a task: one or two sentences, their label and their annotation, if any.

    ``index`` is the row's position in its split, from 0. ``label`` is None in a split without labels. ``annotations``
    has one entry per sentence, or is empty. A window of a longer document has the index of the ``document``, and then
    its own ``index`` is its position among all windows; the first window of a question's text keeps the question's
    index. Examples with the same ``group`` (a hash of the value in the group column) belong together, such as the
    sentences of one review; None without such a column.
    """

    index: int
    texts: tuple[str, ...]
    label: Label | None
    annotations: tuple[Annotation, ...] = ()
    document: int | None = None
    group: int | None = None
