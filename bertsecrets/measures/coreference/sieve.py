"""Rules that choose an antecedent without a model: the baselines of table 2 of Clark et al. 2019."""

from collections.abc import Callable, Sequence

from bertsecrets.data.example import Mention, Word
from bertsecrets.data.sources.coreference.mentions import PRONOUNS, Agreement, Gender, Number

_GENDERED_FORMS: dict[Gender, str] = {
    "feminine": (
        "mrs mrs. ms ms. miss lady madame queen princess duchess baroness woman girl mother daughter sister aunt "
        "niece wife grandmother granddaughter women girls ladies"
    ),
    "masculine": (
        "mr mr. sir lord monsieur king prince duke baron man boy gentleman father son brother uncle nephew husband "
        "grandfather grandson men boys gentlemen"
    ),
}
_GENDERED = {gender: frozenset(forms.split()) for gender, forms in _GENDERED_FORMS.items()}
_PLURALS = frozenset(["men", "women", "children", "people", "folk", "police", "ladies", "gentlemen", "twins"])
_MANY_FORMS = "these those many several few both all two three four five six seven eight nine ten some"
_MANY = frozenset(_MANY_FORMS.split())
_NOT_PLURAL = ("ss", "us", "is")


def nearest(anaphor: Mention, candidates: Sequence[Mention]) -> Mention | None:
    """The candidate with the nearest head word; in a tie, the earlier."""
    return min(
        candidates, key=lambda mention: (abs(mention.head - anaphor.head), mention.head, mention.first), default=None
    )


def head_match(anaphor: Mention, candidates: Sequence[Mention], words: Sequence[Word]) -> Mention | None:
    """The nearest candidate with the same head word, ignoring case; None if there is none."""
    form = words[anaphor.head].form.lower()
    return nearest(anaphor, [mention for mention in candidates if words[mention.head].form.lower() == form])


def rule_based(anaphor: Mention, candidates: Sequence[Mention], words: Sequence[Word]) -> Mention | None:
    """The nearest candidate in the first sieve that passes any.

    The sieves are: the same words; the same head word; agreement in person, number and gender as far as both are known;
    any.
    """
    text = _text(anaphor, words)
    agreement = agreement_of(anaphor, words)
    sieves: tuple[Callable[[Mention], bool], ...] = (
        lambda mention: _text(mention, words) == text,
        lambda mention: words[mention.head].form.lower() == words[anaphor.head].form.lower(),
        lambda mention: agree(agreement_of(mention, words), agreement),
        lambda mention: True,
    )
    for sieve in sieves:
        antecedent = nearest(anaphor, [mention for mention in candidates if sieve(mention)])
        if antecedent is not None:
            return antecedent
    return None


def agree(first: Agreement, second: Agreement) -> bool:
    """Whether person, number and gender are the same wherever both are known."""
    return all(one is None or other is None or one == other for one, other in zip(first, second, strict=True))


def agreement_of(mention: Mention, words: Sequence[Word]) -> Agreement:
    """Person, number and gender: from a table for pronouns; otherwise from titles, words for men and women, and the
    ending.
    """
    head = words[mention.head]
    if mention.kind == "pronoun":
        return PRONOUNS.get(head.form.lower(), Agreement(None, None, None))
    forms = [word.form.lower() for word in words[mention.first : mention.head + 1]]
    gender = next((gender for gender, gendered in _GENDERED.items() if not gendered.isdisjoint(forms)), None)
    return Agreement(3, _number(mention, words, forms), gender)


def _number(mention: Mention, words: Sequence[Word], forms: Sequence[str]) -> Number:
    head = words[mention.head]
    joined = {word.form.lower() for word in words[mention.first : mention.last + 1]}
    if forms[0] in _MANY or "and" in joined or forms[-1] in _PLURALS:
        return "plural"
    if head.tag:
        return "plural" if head.tag in ("NNS", "NNPS") else "singular"
    ends_in_s = forms[-1].endswith("s") and not forms[-1].endswith(_NOT_PLURAL)
    return "plural" if ends_in_s and mention.kind == "nominal" else "singular"


def _text(mention: Mention, words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.form.lower() for word in words[mention.first : mention.last + 1])
