"""Words under construction, and the step that turns them into text with its annotation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bertsecrets.data.example import Annotation, Frame, FrameElement, Word

_GLUED_TO_THE_LEFT = frozenset({".", ",", "'s", "'"})
# Spelt with a vowel but spoken with a consonant, and the other way round.
_CONSONANT_SOUND = ("uni", "uku", "use", "one")
_VOWEL_SOUND = ("hono", "hones", "hour")


@dataclass(eq=False, slots=True)
class Token:
    """A word whose place in the sentence is not known yet: heads are tokens, not positions."""

    form: str
    pos: str
    relation: str = ""
    head: "Token | None" = None
    negation: bool = False
    entity: int = -1

    def under(self, head: "Token", relation: str) -> "Token":
        """Make this token a dependent of ``head``, and return it."""
        self.head, self.relation = head, relation
        return self


@dataclass(slots=True)
class Phrase:
    """Consecutive tokens, and the one that heads them."""

    tokens: list[Token]
    head: Token


@dataclass(slots=True)
class FrameDraft:
    """A frame whose elements are still phrases: (role name, phrase, whether the role is core)."""

    name: str
    target: Token
    elements: list[tuple[str, Phrase, bool]]


@dataclass(slots=True)
class Draft:
    """A sentence before it is spelt out."""

    tokens: list[Token]
    frames: list[FrameDraft] = field(default_factory=list)


def article_before(word: str) -> str:
    """The indefinite article that agrees with the word that follows it.

    >>> [article_before(word) for word in ("apple", "uniform", "honest", "car")]
    ['an', 'a', 'an', 'a']
    """
    if word.startswith(_VOWEL_SOUND):
        return "an"
    return "an" if word[0] in "aeiou" and not word.startswith(_CONSONANT_SOUND) else "a"


def forms(draft: Draft) -> list[str]:
    """The spelt words of a sentence: articles agree and the first letter is a capital."""
    spelt = [token.form for token in draft.tokens]
    for position, form in enumerate(spelt):
        if form == "a":
            spelt[position] = article_before(spelt[position + 1])
    spelt[0] = spelt[0][0].upper() + spelt[0][1:]
    return spelt


def text_of(spelt: Sequence[str]) -> str:
    """The words joined by single spaces; punctuation and possessive marks cling to the word before."""
    return "".join(form if form in _GLUED_TO_THE_LEFT else " " + form for form in spelt).lstrip()


def annotate(draft: Draft, spelt: Sequence[str], clusters: dict[int, int]) -> Annotation:
    """The annotation of one sentence, entities renumbered by ``clusters``; those missing there become -1."""
    position_of = {token: position for position, token in enumerate(draft.tokens)}
    words: list[Word] = []
    start = 0
    for token, form in zip(draft.tokens, spelt, strict=True):
        if words and form not in _GLUED_TO_THE_LEFT:
            start += 1
        words.append(
            Word(
                form,
                start,
                start + len(form),
                token.pos,
                -1 if token.head is None else position_of[token.head],
                token.relation,
                token.negation,
                clusters.get(token.entity, -1),
            )
        )
        start += len(form)
    frames = tuple(
        Frame(
            frame.name,
            position_of[frame.target],
            tuple(
                FrameElement(name, position_of[phrase.tokens[0]], position_of[phrase.tokens[-1]], core)
                for name, phrase, core in frame.elements
            ),
        )
        for frame in draft.frames
    )
    return Annotation(tuple(words), frames)


def coreference_clusters(drafts: Sequence[Draft]) -> dict[int, int]:
    """Entity -> cluster number from 0, for the entities that the sentences mention more than once."""
    mentions = Counter(token.entity for draft in drafts for token in draft.tokens if token.entity >= 0)
    return {entity: number for number, entity in enumerate(entity for entity, n in mentions.items() if n > 1)}
