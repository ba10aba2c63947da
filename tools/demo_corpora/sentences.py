"""From an event to an annotated sentence: tokens, noun phrases, clauses, and the text with its annotation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bertsecrets.data.example import Annotation, Frame, FrameElement, Word
from tools.demo_corpora.events import Companion, Event, Participant
from tools.demo_corpora.frames import Verb
from tools.demo_corpora.lexicon import NUMERALS

_NO_SPACE_BEFORE = frozenset({".", ",", "'s", "'"})
# Spelt with a vowel but pronounced with a consonant, and vice versa.
_CONSONANT_SOUND = ("uni", "uku", "use", "one")
_VOWEL_SOUND = ("hono", "hones", "hour")


@dataclass(eq=False, slots=True)
class Token:
    """A word before its position is known: heads are tokens, not positions."""

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
    """Consecutive tokens and their head."""

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
    """A sentence before spelling."""

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
    """The spelt words of a sentence: articles agree, and the first letter is upper case."""
    spelt = [token.form for token in draft.tokens]
    for position, form in enumerate(spelt):
        if form == "a":
            spelt[position] = article_before(spelt[position + 1])
    spelt[0] = spelt[0][0].upper() + spelt[0][1:]
    return spelt


def text_of(spelt: Sequence[str]) -> str:
    """The words joined by single spaces; punctuation and possessive marks follow the previous word directly."""
    return "".join(form if form in _NO_SPACE_BEFORE else " " + form for form in spelt).lstrip()


def annotate(draft: Draft, spelt: Sequence[str], clusters: dict[int, int]) -> Annotation:
    """The annotation of one sentence; entities are renumbered by ``clusters``, others become -1."""
    position_of = {token: position for position, token in enumerate(draft.tokens)}
    words: list[Word] = []
    start = 0
    for token, form in zip(draft.tokens, spelt, strict=True):
        if words and form not in _NO_SPACE_BEFORE:
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


class Style(NamedTuple):
    """How an event is worded; no choice changes the meaning.

    ``verb``, ``noun`` and ``modifier`` choose the second of two synonyms.
    """

    passive: bool
    verb: bool
    noun: bool
    modifier: bool
    time_first: bool
    early_adverb: bool
    companion_first: bool
    negative_determiner: bool


def must_be_active(event: Event) -> bool:
    """Whether the passive would read badly: "her guitar was sold by Anna", "a guitar was not sold by Anna"."""
    owner = event.patient.owner
    owned_by_agent = owner is not None and owner.key == event.agent.key
    return owned_by_agent or (event.negation in ("not", "never") and not event.patient.definite)


def noun_phrase(
    participant: Participant, style: Style, subject: bool = False, known: frozenset[int] = frozenset(), denied: str = ""
) -> Phrase:
    """A noun phrase, or the pronoun of a participant in ``known``; ``denied`` is its determiner ("no" or "any")."""
    if participant.key in known:
        head = Token(participant.pronouns[0 if subject else 1], "PRON", entity=participant.key)
        return Phrase([head], head)
    noun = participant.noun
    plural = participant.count > 1 or (bool(denied) and noun.countable)
    head = Token(
        noun.form(style.noun, plural), "PROPN" if noun.proper else "NOUN", entity=-1 if denied else participant.key
    )
    tokens: list[Token] = []
    if denied:
        tokens.append(Token(denied, "DET", "det", head, negation=denied == "no"))
    elif participant.owner is not None:
        tokens += _possessor(participant.owner, head, style, known)
    elif participant.definite and not noun.proper:
        tokens.append(Token("the", "DET", "det", head))
    if participant.count > 1 and not denied:
        tokens.append(Token(NUMERALS[participant.count], "NUM", "nummod", head))
    if not (tokens or noun.proper):
        tokens.append(Token("a" if noun.countable else "some", "DET", "det", head))
    if participant.adjective is not None:
        tokens.append(Token(participant.adjective.form(style.modifier), "ADJ", "amod", head))
    return Phrase([*tokens, head], head)


def prepositional(preposition: str, phrase: Phrase) -> Phrase:
    """The phrase with a preposition in front."""
    return Phrase([Token(preposition, "ADP", "case", phrase.head), *phrase.tokens], phrase.head)


def sentence(event: Event, style: Style, pronouns: frozenset[int] = frozenset()) -> Draft:
    """The sentence for an event, its companion and its background, in one style.

    ``pronouns`` holds the keys of participants that another sentence has introduced: they become pronouns.
    """
    if event.companion is None:
        draft = _clause(event, style, pronouns)
    elif style.companion_first and event.companion.connective in ("before", "after"):
        draft = _companion_first(event, event.companion, style)
    else:
        draft = _companion_last(event, event.companion, style)
    root = next(token for token in draft.tokens if token.head is None)
    root.relation = "root"
    draft.tokens.append(Token(".", "PUNCT", "punct", root))
    return draft


def _possessor(owner: Participant, owned: Token, style: Style, known: frozenset[int]) -> list[Token]:
    if owner.key in known:
        return [Token(owner.pronouns[2], "PRON", "nmod:poss", owned, entity=owner.key)]
    phrase = noun_phrase(owner, style)
    phrase.head.under(owned, "nmod:poss")
    return [*phrase.tokens, Token("'s", "PART", "case", phrase.head)]


def _companion_first(event: Event, companion: Companion, style: Style) -> Draft:
    first = _clause(companion.event, style._replace(passive=False), frozenset())
    main = _clause(event, style, _introduced(companion.event))
    verb = first.frames[0].target.under(main.frames[0].target, "advcl")
    mark = Token(companion.connective, "SCONJ", "mark", verb)
    comma = Token(",", "PUNCT", "punct", verb)
    return Draft([mark, *first.tokens, comma, *main.tokens], first.frames + main.frames)


def _companion_last(event: Event, companion: Companion, style: Style) -> Draft:
    main = _clause(event, style, frozenset())
    last = _clause(companion.event, style._replace(passive=False), _introduced(event))
    subordinate = companion.connective in ("before", "after")
    verb = last.frames[0].target.under(main.frames[0].target, "advcl" if subordinate else "conj")
    if subordinate:
        joint = [Token(companion.connective, "SCONJ", "mark", verb)]
    else:
        joint = [Token(",", "PUNCT", "punct", verb), Token(companion.connective, "CCONJ", "cc", verb)]
    return Draft([*main.tokens, *joint, *last.tokens], main.frames + last.frames)


def _introduced(event: Event) -> frozenset[int]:
    """The participants that a following clause may replace with a pronoun."""
    return frozenset((event.agent.key,) if event.negation == "any" else (event.agent.key, event.patient.key))


def _clause(event: Event, style: Style, known: frozenset[int]) -> Draft:
    frame = event.frame
    passive = style.passive and not must_be_active(event)
    denied = ""
    if event.negation == "any":
        denied = "no" if passive or style.negative_determiner else "any"
    verb = Token("", "VERB")
    auxiliaries = _auxiliaries(event, passive, denied, verb)
    verb.form = _inflected(frame.verb(style.verb), passive, auxiliaries)

    known_after = known if passive else known | {event.agent.key}
    agent = noun_phrase(event.agent, style, subject=not passive, known=known)
    agent.head.under(verb, "obl:agent" if passive else "nsubj")
    frames = [] if event.background is None else [_append_relative(event.background, style, agent)]
    patient = noun_phrase(event.patient, style, subject=passive, known=known_after, denied=denied)
    patient.head.under(verb, "nsubj:pass" if passive else "obj")
    if passive:
        agent = prepositional("by", agent)
    third = _third(event, style, known_after, verb)
    manner, place, time = _manner(event, style, verb), _place(event, style, verb), _time(event, verb)

    subject, complement = (patient, agent) if passive else (agent, patient)
    # "was repaired by Anna with a drill", but "was sold to Peter by Anna".
    third_first = passive and frame.third is not None and frame.third.preposition != "with"
    complements = (third, complement) if third_first else (complement, third)
    early_manner = passive or style.early_adverb or third is not None or place is not None
    # After a relative clause the time would seem to belong to it.
    early_time = style.time_first or event.background is not None
    tokens = [
        *(_words(time, Token(",", "PUNCT", "punct", verb)) if early_time and time else ()),
        *_words(subject, *auxiliaries, manner if early_manner else None, verb, *complements),
        *_words(None if early_manner else manner, place, None if early_time else time),
    ]
    elements = [
        (frame.agent.name, agent, True),
        (frame.patient.name, patient, True),
        (frame.third.name if frame.third else "", third, False),
        ("Manner", manner, False),
        ("Place", place, False),
        ("Time", time, False),
    ]
    filled = [(name, phrase, core) for name, phrase, core in elements if phrase is not None]
    return Draft(tokens, [FrameDraft(frame.name, verb, filled), *frames])


def _words(*parts: Phrase | Token | None) -> list[Token]:
    """The tokens of the parts that are not None, in order."""
    return [token for part in parts if part for token in ([part] if isinstance(part, Token) else part.tokens)]


def _inflected(verb: Verb, passive: bool, auxiliaries: list[Token]) -> str:
    if passive:
        return verb.participle
    return verb.base if any(token.pos == "AUX" for token in auxiliaries) else verb.past


def _auxiliaries(event: Event, passive: bool, denied: str, verb: Token) -> list[Token]:
    negated = event.negation in ("not", "never") or denied == "any"
    never = Token("never", "ADV", "advmod", verb, negation=True) if event.negation == "never" else None
    negative = never or Token("not", "PART", "advmod", verb, negation=True)
    tokens: list[Token] = []
    if event.future:
        tokens.append(Token("will", "AUX", "aux", verb))
    elif passive:
        plural = event.patient.count > 1 or (bool(denied) and event.patient.noun.countable)
        tokens.append(Token("were" if plural else "was", "AUX", "aux:pass", verb))
    elif negated and never is None:
        tokens.append(Token("did", "AUX", "aux", verb))
    if negated:
        tokens.append(negative)
    if passive and event.future:
        tokens.append(Token("be", "AUX", "aux:pass", verb))
    return tokens


def _third(event: Event, style: Style, known: frozenset[int], verb: Token) -> Phrase | None:
    if event.frame.third is None or event.third is None:
        return None
    phrase = noun_phrase(event.third, style, known=known)
    phrase.head.under(verb, "obl")
    return prepositional(event.frame.third.preposition, phrase)


def _manner(event: Event, style: Style, verb: Token) -> Phrase | None:
    if event.manner is None:
        return None
    adverb = Token(event.manner.form(style.modifier), "ADV", "advmod", verb)
    return Phrase([adverb], adverb)


def _place(event: Event, style: Style, verb: Token) -> Phrase | None:
    if event.place is None:
        return None
    head = Token(event.place.form(style.noun), "NOUN", "obl", verb)
    return prepositional("in", Phrase([Token("the", "DET", "det", head), head], head))


def _time(event: Event, verb: Token) -> Phrase | None:
    if not event.time:
        return None
    if event.time[0].isupper():
        day = Token(event.time, "PROPN", "obl", verb)
        return prepositional("on", Phrase([day], day))
    word = Token(event.time, "NOUN", "obl:tmod", verb)
    return Phrase([word], word)


def _append_relative(event: Event, style: Style, antecedent: Phrase) -> FrameDraft:
    """Append "who ..." to the antecedent, and return the frame of that clause."""
    verb = Token(event.frame.verb(style.verb).past, "VERB", "acl:relcl", antecedent.head)
    pronoun = Token("who", "PRON", "nsubj", verb, entity=antecedent.head.entity)
    patient = noun_phrase(event.patient, style)
    patient.head.under(verb, "obj")
    antecedent.tokens += [pronoun, verb, *patient.tokens]
    subject = Phrase([pronoun], pronoun)
    return FrameDraft(
        event.frame.name,
        verb,
        [(event.frame.agent.name, subject, True), (event.frame.patient.name, patient, True)],
    )
