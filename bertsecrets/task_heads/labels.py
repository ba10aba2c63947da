"""Labels of words and questions, which sources of rows read; without PyTorch."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

TOKENS, ANSWERS, CHOICE = "tokens", "answers", "choice"
"""Kinds of task head that take other rows than a class of each text."""

MASKED = "masked"
"""The kind whose labels are words of the texts."""

IGNORED = -100
"""Label of a token that is not scored, such as a special one or padding."""

PREFIXES = ("O", "B", "I", "E", "S")
_AS = {"L": "E", "U": "S"}
"""What the prefixes of BILOU are in BIOES."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """An answer as the official SQuAD scripts compare it: lower case, without punctuation, articles and extra spaces.

    >>> normalised("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(given: str, gold: Sequence[str]) -> float:
    """Whether an answer equals one of the gold answers, all normalised: 1 or 0."""
    return float(normalised(given) in map(normalised, gold))


def answer_f1(given: str, gold: Sequence[str], no_answer: bool) -> float:
    """The best F1 of the words of an answer and those of a gold answer.

    Args:
        given: The answer.
        gold: The gold answers.
        no_answer: Whether two empty answers agree, as in SQuAD 2.0; in SQuAD 1.1 they share no word.
    """
    words, scores = normalised(given).split(), []
    for one in gold:
        gold_words = normalised(one).split()
        shared = sum((Counter(words) & Counter(gold_words)).values())
        if no_answer and not (words and gold_words):
            scores.append(float(words == gold_words))
        else:
            scores.append(2 * shared / (len(words) + len(gold_words)) if shared else 0.0)
    return max(scores)


@dataclass(frozen=True, slots=True)
class Answers:
    """The gold answers to a question: each a part of its text.

    Args:
        texts: The answers, the one that is learnt first; empty where the text has none.
        start: The character at which the first one begins.
        optional: Whether the data have questions without an answer, so that a model may give none, as in SQuAD 2.0.
    """

    texts: tuple[str, ...]
    start: int = 0
    optional: bool = False

    @property
    def none(self) -> bool:
        """Whether no answer is right: there is none, or nothing but articles and punctuation."""
        return not any(map(normalised, self.texts))


def parts_of_tag(tag: str) -> tuple[str, str]:
    """The prefix of a tag, in BIOES, and the kind of entity; outside for a tag without prefix."""
    prefix, dash, kind = tag.partition("-")
    prefix = _AS.get(prefix, prefix)
    return (prefix, kind) if dash and prefix in PREFIXES[1:] else ("O", "")


def continues(before: str, tag: str) -> bool:
    """Whether a tag goes on with the entity of the tag before it."""
    (prefix_before, kind_before), (prefix, kind) = parts_of_tag(before), parts_of_tag(tag)
    return prefix in ("I", "E") and prefix_before in ("B", "I") and kind == kind_before


def starts_inside(tags: Sequence[str]) -> list[int]:
    """The words at which an entity starts with a tag that should continue one, such as ``I-PER`` after ``O``."""
    before = ("O", *tags)
    return [
        word for word, tag in enumerate(tags) if parts_of_tag(tag)[0] in ("I", "E") and not continues(before[word], tag)
    ]
