"""Candidates for the sentiment task: one sentence of a review; its main clause decides the label."""

from collections.abc import Callable
from dataclasses import dataclass

from tools.demo_corpora.events import Sampler
from tools.demo_corpora.frames import Verb, inflect
from tools.demo_corpora.lexicon import ADJECTIVES_FOR, PRONOUNS
from tools.demo_corpora.sentences import Draft, FrameDraft, Phrase, Token

SENTIMENT_LABELS = ("negative", "positive")
_INTENSIFIERS = ("really", "truly")
_JUDGES = ("guests", "tourists", "critics", "visitors", "customers", "reporters", "students", "neighbors")


@dataclass(frozen=True, slots=True)
class Aspect:
    """Something that a review judges: a noun, the class of its adjectives, its gender and whether it is plural."""

    noun: str
    kind: str
    gender: str = "n"
    plural: bool = False

    @property
    def pronouns(self) -> tuple[str, str, str]:
        """The nominative, accusative and possessive pronoun that agree with the noun."""
        return PRONOUNS["plural" if self.plural else self.gender]


@dataclass(frozen=True, slots=True)
class Opinion:
    """A verb that judges its object, with its frame and the names of its two roles."""

    verb: Verb
    frame: str
    roles: tuple[str, str]
    polarity: int


# The thing reviewed (several nouns for it) and its class; then its aspects by class. "*" marks a plural.
_REVIEWED = (
    ("film movie comedy thriller documentary musical", "show", {"show": "story plot ending dialogue scenes*"}),
    ("book novel biography memoir", "show", {"show": "story plot ending chapters* style"}),
    ("concert opera festival", "show", {"show": "program music songs*", "staff/f": "soprano", "staff/m": "tenor"}),
    (
        "restaurant cafe bistro diner",
        "room",
        {
            "meal": "soup salad dessert bread pasta pizza sandwiches* cakes*",
            "staff/m": "waiter",
            "staff/f": "waitress",
            "staff": "cooks*",
        },
    ),
    (
        "hotel hostel inn resort",
        "room",
        {"room": "bed lobby lounge rooms* bathroom", "meal": "breakfast", "staff": "porters* receptionists*"},
    ),
)
_OPINIONS = tuple(
    Opinion(inflect(verb), frame, roles, polarity)
    for verb, frame, roles, polarity in (
        ("love", "Experiencer_focus", ("Experiencer", "Content"), 1),
        ("enjoy", "Experiencer_focus", ("Experiencer", "Content"), 1),
        ("like", "Experiencer_focus", ("Experiencer", "Content"), 1),
        ("admire", "Judgment", ("Cognizer", "Evaluee"), 1),
        ("praise", "Judgment_communication", ("Communicator", "Evaluee"), 1),
        ("recommend", "Judgment_communication", ("Communicator", "Evaluee"), 1),
        ("hate", "Experiencer_focus", ("Experiencer", "Content"), -1),
        ("dislike", "Experiencer_focus", ("Experiencer", "Content"), -1),
        ("detest", "Experiencer_focus", ("Experiencer", "Content"), -1),
        ("despise", "Judgment", ("Cognizer", "Evaluee"), -1),
        ("criticize", "Judgment_communication", ("Communicator", "Evaluee"), -1),
        ("condemn", "Judgment_communication", ("Communicator", "Evaluee"), -1),
    )
)


def _aspects(nouns: str, kind: str) -> tuple[Aspect, ...]:
    name, _, gender = kind.partition("/")
    return tuple(Aspect(noun.rstrip("*"), name, gender or "n", noun.endswith("*")) for noun in nouns.split())


_REVIEWS: tuple[tuple[tuple[Aspect, ...], tuple[Aspect, ...]], ...] = tuple(
    (
        _aspects(wholes, kind),
        tuple(aspect for part, nouns in parts.items() for aspect in _aspects(nouns, part)),
    )
    for wholes, kind, parts in _REVIEWED
)


class _Review:
    """One review: the thing reviewed is entity 0; its aspects count from 1 in order of mention."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        wholes, self._parts = sampler.rng.choice(_REVIEWS)
        self.whole = sampler.rng.choice(wholes)
        self._used: list[Aspect] = []

    def aspect(self) -> Aspect:
        """An aspect that has not been mentioned yet."""
        aspect = self.sampler.rng.choice([part for part in self._parts if part not in self._used])
        self._used.append(aspect)
        return aspect

    def subject(self, aspect: Aspect, owned: str = "") -> Phrase:
        """The aspect as a noun phrase; ``owned`` is "", "name" (the hotel's bed) or "pronoun" (its bed)."""
        entity = 0 if aspect is self.whole else 1 + self._used.index(aspect)
        head = Token(aspect.noun, "NOUN", entity=entity)
        if owned == "pronoun":
            return Phrase([Token(self.whole.pronouns[2], "PRON", "nmod:poss", head, entity=0), head], head)
        if owned == "name":
            whole = Token(self.whole.noun, "NOUN", "nmod:poss", head, entity=0)
            return Phrase([Token("the", "DET", "det", whole), whole, Token("'s", "PART", "case", whole), head], head)
        return Phrase([Token("the", "DET", "det", head), head], head)

    def quality(self, aspect: Aspect, polarity: int) -> Token:
        """An adjective of the polarity that suits the aspect."""
        choices = ADJECTIVES_FOR["any"] if self.sampler.chance(0.5) else ADJECTIVES_FOR[aspect.kind]
        adjective = self.sampler.rng.choice([choice for choice in choices if choice.polarity == polarity])
        return Token(adjective.form(self.sampler.chance(0.5)), "ADJ")


def sentiment(sampler: Sampler) -> tuple[tuple[Draft], int]:
    """A sentence, and 1 if it is favourable, else 0."""
    polarity = sampler.rng.choice((-1, 1))
    draft = sampler.rng.choice(_PATTERNS)(_Review(sampler), polarity)
    root = next(token for token in draft.tokens if token.head is None)
    root.relation = "root"
    draft.tokens.append(Token(".", "PUNCT", "punct", root))
    return (draft,), int(polarity > 0)


def _negative(verb: Token, word: str) -> Token:
    return Token(word, "ADV" if word == "never" else "PART", "advmod", verb, negation=True)


def _judged(review: _Review, aspect: Aspect, subject: Phrase, polarity: int, negated: bool) -> Draft:
    """ "The soup was (not) awful": the clause has the polarity, its adjective the opposite one if negated."""
    adjective = review.quality(aspect, -polarity if negated else polarity)
    subject.head.under(adjective, "nsubj")
    tokens = [*subject.tokens, Token("were" if aspect.plural else "was", "AUX", "cop", adjective)]
    if negated:
        tokens.append(_negative(adjective, review.sampler.rng.choice(("not", "not", "never"))))
    elif review.sampler.chance(0.3):
        tokens.append(Token(review.sampler.rng.choice(_INTENSIFIERS), "ADV", "advmod", adjective))
    frame = FrameDraft("Desirability", adjective, [("Evaluee", subject, True)])
    return Draft([*tokens, adjective], [frame])


def _aspect_clause(review: _Review, polarity: int, owned: str = "") -> Draft:
    aspect = review.aspect()
    return _judged(review, aspect, review.subject(aspect, owned), polarity, review.sampler.chance(0.4))


def _plain(review: _Review, polarity: int) -> Draft:
    owned = review.sampler.rng.choice(("", "name"))
    return _aspect_clause(review, polarity, owned)


def _nominal(review: _Review, polarity: int) -> Draft:
    """ "It was never a dull film." """
    negated = review.sampler.chance(0.5)
    adjective = review.quality(review.whole, -polarity if negated else polarity)
    noun = Token(review.whole.noun, "NOUN", entity=0)
    adjective.under(noun, "amod")
    word = review.sampler.rng.choice(("it", "this"))
    subject = Token(word, "PRON", "nsubj", noun, entity=0)
    tokens = [subject, Token("was", "AUX", "cop", noun)]
    if negated:
        tokens.append(_negative(noun, review.sampler.rng.choice(("not", "never"))))
    tokens += [Token("a", "DET", "det", noun), adjective, noun]
    return Draft(tokens, [FrameDraft("Desirability", adjective, [("Evaluee", Phrase([subject], subject), True)])])


def _opinion(review: _Review, polarity: int) -> Draft:
    aspect = review.whole if review.sampler.chance(0.4) else review.aspect()
    owned = "name" if aspect is not review.whole and review.sampler.chance(0.5) else ""
    content = review.subject(aspect, owned)
    judge = Token(review.sampler.rng.choice(_JUDGES), "NOUN")
    judges = Phrase([Token("the", "DET", "det", judge), judge], judge)
    negated = review.sampler.chance(0.4)
    opinion = _drawn(review, -polarity if negated else polarity)
    verb = Token(opinion.verb.past, "VERB")
    judge.under(verb, "nsubj")
    content.head.under(verb, "obj")
    denial: list[Token] = []
    if negated and review.sampler.chance(0.5):
        denial = [_negative(verb, "never")]
    elif negated:
        verb.form = opinion.verb.base
        denial = [Token("did", "AUX", "aux", verb), _negative(verb, "not")]
    elements = [(opinion.roles[0], judges, True), (opinion.roles[1], content, True)]
    return Draft([*judges.tokens, *denial, verb, *content.tokens], [FrameDraft(opinion.frame, verb, elements)])


def _drawn(review: _Review, polarity: int) -> Opinion:
    return review.sampler.rng.choice([opinion for opinion in _OPINIONS if opinion.polarity == polarity])


def _although(review: _Review, polarity: int) -> Draft:
    concession_first = review.sampler.chance(0.6)
    if concession_first:
        concession, main = _plain(review, -polarity), _aspect_clause(review, polarity)
    else:
        main, concession = _plain(review, polarity), _aspect_clause(review, -polarity)
    verb = concession.frames[0].target.under(main.frames[0].target, "advcl")
    mark = Token("although", "SCONJ", "mark", verb)
    comma = Token(",", "PUNCT", "punct", verb)
    if concession_first:
        return Draft([mark, *concession.tokens, comma, *main.tokens], concession.frames + main.frames)
    return Draft([*main.tokens, comma, mark, *concession.tokens], main.frames + concession.frames)


def _coordinated(review: _Review, first: Draft, conjunction: str, second: Draft) -> Draft:
    verb = second.frames[0].target.under(first.frames[0].target, "conj")
    joint = [Token(",", "PUNCT", "punct", verb), Token(conjunction, "CCONJ", "cc", verb)]
    return Draft([*first.tokens, *joint, *second.tokens], first.frames + second.frames)


def _but(review: _Review, polarity: int) -> Draft:
    return _coordinated(review, _plain(review, -polarity), "but", _aspect_clause(review, polarity))


def _and(review: _Review, polarity: int) -> Draft:
    whole = _judged(review, review.whole, review.subject(review.whole), polarity, review.sampler.chance(0.4))
    return _coordinated(review, whole, "and", _aspect_clause(review, polarity, "pronoun"))


def _relative(review: _Review, polarity: int) -> Draft:
    """ "The film that the critics hated was wonderful." """
    aspect = review.whole if review.sampler.chance(0.5) else review.aspect()
    subject = review.subject(aspect)
    opinion = _drawn(review, -polarity)
    verb = Token(opinion.verb.past, "VERB", "acl:relcl", subject.head)
    that = Token("that", "PRON", "obj", verb, entity=subject.head.entity)
    judge = Token(review.sampler.rng.choice(_JUDGES), "NOUN", "nsubj", verb)
    judges = Phrase([Token("the", "DET", "det", judge), judge], judge)
    subject.tokens += [that, *judges.tokens, verb]
    main = _judged(review, aspect, subject, polarity, review.sampler.chance(0.4))
    elements = [(opinion.roles[0], judges, True), (opinion.roles[1], Phrase([that], that), True)]
    return Draft(main.tokens, [*main.frames, FrameDraft(opinion.frame, verb, elements)])


_PATTERNS: tuple[Callable[[_Review, int], Draft], ...] = (
    _plain,
    _nominal,
    _opinion,
    _although,
    _but,
    _and,
    _relative,
)
