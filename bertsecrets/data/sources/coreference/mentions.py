"""Turn spans of words into mentions with a head word and a kind."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from bertsecrets.data.example import Annotation, Mention, MentionKind, Word

Number = Literal["singular", "plural"]
Gender = Literal["masculine", "feminine", "neuter"]


class Agreement(NamedTuple):
    """Person (1 to 3), number and gender; None where a word leaves it open."""

    person: int | None
    number: Number | None
    gender: Gender | None


_FORMS: dict[Agreement, str] = {
    Agreement(1, "singular", None): "i me my mine myself",
    Agreement(1, "plural", None): "we us our ours ourselves",
    Agreement(2, None, None): "you your yours ye thou thee thy thine",
    Agreement(2, "singular", None): "yourself thyself",
    Agreement(2, "plural", None): "yourselves",
    Agreement(3, "singular", "masculine"): "he him his himself",
    Agreement(3, "singular", "feminine"): "she her hers herself",
    Agreement(3, "singular", "neuter"): "it its itself",
    Agreement(3, "plural", None): "they them their theirs themselves 'em these those",
    Agreement(3, "singular", None): "this that one oneself",
    Agreement(3, None, None): "who whom whose which what someone anyone everyone somebody anybody everybody",
}

PRONOUNS = {form: agreement for agreement, forms in _FORMS.items() for form in forms.split()}
"""Pronoun, in lower case -> its agreement."""


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_ENDS_A_HEAD = word_set(
    "about above across after against along amid among amongst around as at before behind below beneath beside "
    "between beyond by down during else for from in inside into like near of off on out outside over round since "
    "than that through throughout till to toward towards under unlike until up upon when where which who whom whose "
    "with within without worth"
)
"""Words that start a postmodifier: prepositions, particles and relative pronouns."""

_AFTER_A_HEAD = word_set(
    "i you he she it we they myself yourself himself herself itself ourselves yourselves themselves"
)
"""Pronouns that start a relative clause without a relative pronoun ("the reason he refused"), or emphasise ("the king
himself").
"""

_BEFORE_A_PRONOUN = word_set("and or nor but both either neither all , -")
"""Words after which such a pronoun belongs to the head, as in "you and I"."""

_INDEFINITE = word_set("a an my your his her its our their this that these those some any no")
_DETERMINERS = _INDEFINITE | {"the"}
_ARTICLES = frozenset(["a", "an", "the"])

_BEFORE_A_DETERMINER = _BEFORE_A_PRONOUN | word_set(
    "half such many what quite nearly only even not twice rather too so as most double about almost also far just "
    "later maybe perhaps still than then a an the"
)
"""Words after which a determiner does not start a clause or an apposition, as in "all the king's men", "just some guy".
"""

_CONJUNCTIONS = frozenset(["and", "or", "nor", "but"])

_AFTER_COMMA = word_set("a an the his her its their my your our one who whom whose which of in at")
"""Words that start an apposition or a relative clause after a comma, rather than another adjective."""

_POSSESSIVE = frozenset({"'s", "’s", "'", "’", "s'"})
_SUFFIXES = word_set("jr jr. sr sr. esq esq. ii iii iv m.d. ph.d.")
_NOT_PARTICIPLES = word_set("being building evening hatred hundred kindred morning something thing wedding")
_CLAUSE_TAGS = ("IN", "TO", "WDT", "WP", "WRB")
_BEFORE_A_PARTICIPLE = ("HYPH", "POS", "CC", "CD")
"""Tags after which, adverbs aside, a participle modifies what follows: "a tree - lined road", "the king 's beloved
son", "two armed men"."""
_POSTMODIFIER_TAGS = (*_CLAUSE_TAGS, "V", "MD", ":", "-LRB-", ".")
_NOMINAL_TAGS = ("NN", "PRP", "CD", "EX", "WP")


class Span(NamedTuple):
    """The words ``first`` to ``last`` (both inclusive) that mention an entity, and the spans offered as antecedents."""

    first: int
    last: int
    entity: int
    choices: tuple["Span", ...] | None = None


def annotated(words: Sequence[Word], sentences: Sequence[int], spans: Iterable[Span]) -> Annotation:
    """A document with its mentions, ordered by first word, then longest first.

    Head words have the number of their entity if the document mentions it more than once.

    Args:
        words: The words; ``tag`` is empty or a tag of the Penn Treebank.
        sentences: Index of the first word of each sentence.
        spans: The mentions; duplicates count once.
    """
    ordered = sorted(dict.fromkeys(spans), key=lambda span: (span.first, -span.last, span.entity))
    number_of = {(span.first, span.last, span.entity): number for number, span in enumerate(ordered)}
    lower = {word.form for word in words if word.form.islower()}
    times = Counter(span.entity for span in ordered)
    mentioned: set[int] = set()
    mentions: list[Mention] = []
    entity_of: dict[int, int] = {}
    for span in ordered:
        inside = words[span.first : span.last + 1]
        head = span.first + head_word([word.form for word in inside], [word.tag for word in inside])
        kind = _kind(words, span.first, span.last, head, lower)
        choices, anaphoric = None, span.entity in mentioned
        if span.choices is not None:
            choices = tuple(sorted(number_of[choice.first, choice.last, choice.entity] for choice in span.choices))
            anaphoric = any(choice.entity == span.entity for choice in span.choices)
        mentions.append(Mention(span.first, span.last, head, kind, span.entity, anaphoric, choices))
        mentioned.add(span.entity)
        if times[span.entity] > 1:
            entity_of.setdefault(head, span.entity)
    marked = (replace(word, entity=entity_of.get(number, -1)) for number, word in enumerate(words))
    return Annotation(tuple(marked), mentions=tuple(mentions), sentences=tuple(sentences))


def head_word(forms: Sequence[str], tags: Sequence[str]) -> int:
    """The position of a mention's head: the last noun, pronoun or number before any postmodifier.

    Without tags, the last word before a preposition, a relative clause, a bracket, or a comma that begins an
    apposition. A final 's, a conjunction and a name's suffix are never heads. The head of a coordination is in its last
    part.

    >>> words = "a single man in possession of a good fortune", "Jim Jones , Jr."
    >>> head_word(words[0].split(), [""] * 9), head_word(words[1].split(), [""] * 4)
    (2, 1)
    """
    end = _end_of_core(forms, tags)
    if end < len(forms) and not tags[0] and _ends_in_participle(forms[:end], forms[end].lower()):
        end -= 1
    while end > 1 and (
        forms[end - 1].lower() in _POSSESSIVE | _SUFFIXES | _CONJUNCTIONS or not _has_letter(forms[end - 1])
    ):
        end -= 1
    nominal = [word for word in range(end) if _is_nominal(tags[word])]
    return nominal[-1] if nominal else end - 1


def _end_of_core(forms: Sequence[str], tags: Sequence[str]) -> int:
    """Number of words before the first postmodifier."""
    lower = [form.lower() for form in forms]
    noun = _is_nominal(tags[0])
    for word in range(1, len(forms)):
        form, tag, before = lower[word], tags[word], lower[word - 1]
        after = forms[word + 1] if word + 1 < len(forms) else ""
        if (before == "-") != (after == "-"):
            # At the end of a compound that was split, as in "an on - line shop", not inside as in "daughter - in -
            # law".
            noun = noun or _is_nominal(tag)
            continue
        if form in _AFTER_A_HEAD and before not in _BEFORE_A_PRONOUN:
            return word
        if (
            form in _DETERMINERS
            and (noun or not tag)
            and _has_letter(before)
            and not before.endswith("ly")
            and before not in _BEFORE_A_DETERMINER
        ):
            return word
        if tag:
            comma = form == "," and tags[word + 1 : word + 2] != ["JJ"]
            nearest = next((other for other in reversed(tags[:word]) if not other.startswith("RB")), "")
            premodifies = tag in ("VBN", "VBG") and nearest in _BEFORE_A_PARTICIPLE
            if (noun and (comma or (tag.startswith(_POSTMODIFIER_TAGS) and not premodifies))) or (
                tag.startswith(_CLAUSE_TAGS) and form != "than"
            ):
                return word
            noun = noun or _is_nominal(tag)
        elif (
            (
                form in _ENDS_A_HEAD
                and before not in (_ARTICLES if form != "than" else {"more", "less", "fewer"})
                and after.lower() not in _POSSESSIVE
            )
            or form in "([{;:"
            or form.startswith("--")
            or (form == "," and (after.lower() in _AFTER_COMMA or after[:1].isupper() or not after))
        ):
            return word
    return len(forms)


def _ends_in_participle(core: Sequence[str], after: str) -> bool:
    """Whether the last word of a core begins a clause, as in "the throng passing the windows", judged by its spelling.

    Args:
        core: The words before the first postmodifier.
        after: The postmodifier's first word, in lower case.
    """
    last = core[-1].lower()
    if (
        len(core) < 3
        or last in _NOT_PARTICIPLES
        or core[-2].lower() in _DETERMINERS | _BEFORE_A_PRONOUN | {"very", "more", "most"}
    ):
        return False
    if last.endswith("ing"):
        return after in _DETERMINERS or after in ("to", "into", "up", "down", "out")
    return len(last) > 4 and last.endswith("ed") and not last.endswith("eed") and after != "of"


def _is_nominal(tag: str) -> bool:
    """Whether a word of this tag may be a head; a possessive pronoun (``PRP$``, ``WP$``) is not."""
    return tag.startswith(_NOMINAL_TAGS) and not tag.endswith("$")


def _has_letter(form: str) -> bool:
    return any(character.isalnum() for character in form)


def _kind(words: Sequence[Word], first: int, last: int, head: int, lower: set[str]) -> MentionKind:
    """Pronoun, proper or nominal, by the tag of the head word, or else by its spelling.

    Without tags, a capitalised head is a name unless the document has it in lower case as well, or an indefinite
    article or a possessive comes first.
    """
    form, tag = words[head].form, words[head].tag
    if tag:
        return "pronoun" if tag.startswith(("PRP", "WP")) else "proper" if tag.startswith("NNP") else "nominal"
    if first == last and form.lower() in PRONOUNS:
        return "pronoun"
    determined = head > first and words[first].form.lower() in _INDEFINITE
    return "proper" if form[:1].isupper() and form.lower() not in lower and not determined else "nominal"
