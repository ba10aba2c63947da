"""The anaphors of a text, their candidate antecedents, and the answers of the baselines."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from bertsecrets.data.example import Annotation, MentionKind
from bertsecrets.measures.coreference.sieve import head_match, nearest, rule_based

Candidates = Literal["earlier", "others", "words"]
BASELINES = ("nearest", "head_match", "rule_based", "random")
"""Baselines, in the order of ``Question.baselines``."""


@dataclass(frozen=True)
class Question:
    """An anaphor and its possible answers.

    Args:
        asks: Index of its head word.
        kind: Its kind.
        candidates: Indices of the words to choose from, ascending.
        right: The candidates that are head words of an antecedent.
        baselines: For each of ``BASELINES``, whether its choice is correct, 0 or 1; for the random baseline, the
            probability.
    """

    asks: int
    kind: MentionKind
    candidates: tuple[int, ...]
    right: frozenset[int]
    baselines: tuple[float, ...]


@dataclass(frozen=True)
class TextQuestions:
    """The questions of a text, and counts of excluded mentions.

    Args:
        questions: One per anaphor that counts.
        outside: Anaphors with all antecedents outside the text.
        vanished: Anaphors without tokens, or without an antecedent with tokens.
        unanswered: Mentions without a correct choice (GAP).
    """

    questions: tuple[Question, ...]
    outside: int = 0
    vanished: int = 0
    unanswered: int = 0


def ask(annotation: Annotation, present: Collection[int], candidates: Candidates = "earlier") -> TextQuestions:
    """The questions of a text.

    An anaphor is a mention with an antecedent: an earlier mention of its entity, or one of the data set's choices.
    Mentions with the same head word as the anaphor are not candidates.

    Args:
        annotation: The words and mentions.
        present: Indices of the words that have tokens.
        candidates: Without choices: head words of ``earlier`` mentions, of all ``others``, or all other ``words``.
    """
    questions = []
    outside = vanished = unanswered = 0
    for mention in annotation.mentions:
        if not mention.anaphoric:
            unanswered += bool(mention.choices)
            continue
        # The mentions that may be antecedents.
        if mention.choices is None:
            options = [option for option in annotation.mentions if option.head < mention.head]
        else:
            options = [annotation.mentions[index] for index in mention.choices]
            options = [option for option in options if option.head != mention.head]
        antecedents = [option for option in options if option.entity == mention.entity]
        if not antecedents:
            outside += 1
        elif mention.head not in present or not any(option.head in present for option in antecedents):
            vanished += 1
        else:
            options = [option for option in options if option.head in present]
            right = frozenset(option.head for option in options if option.entity == mention.entity)
            words = {option.head for option in options}
            if mention.choices is None and candidates == "words":
                words = set(present)
            elif mention.choices is None and candidates == "others":
                words = {other.head for other in annotation.mentions if other.head in present}
            words.discard(mention.head)
            picked = (
                nearest(mention, options),
                head_match(mention, options, annotation.words),
                rule_based(mention, options, annotation.words),
            )
            found = (float(answer is not None and answer.head in right) for answer in picked)
            questions.append(
                Question(mention.head, mention.kind, tuple(sorted(words)), right, (*found, len(right) / len(words)))
            )
    return TextQuestions(tuple(questions), outside, vanished, unanswered)
