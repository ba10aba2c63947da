"""Which exemplars a relation is looked for in: the filters of Kovaleva et al. 2019, section 4.2 (METHODS K3)."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from bertsecrets.data.example import Example, Matching
from bertsecrets.data.framenet.corpus import Exemplar, FrameRoles, Span
from bertsecrets.data.framenet.sentences import annotated
from bertsecrets.errors import UserError, choices

Core = Literal["core_set", "core_type", "any"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filters:
    """What an exemplar must be like; None (or False) switches a filter off.

    Words are those of nltk's Treebank tokenizer.

    Args:
        core: Which frame elements are linked to their target: members of a core set of the frame (the original code),
            elements of type Core, or any.
        max_words: Longest sentence.
        single_target: Only targets in one piece; otherwise the first piece of a target counts.
        max_element_words: Longest frame element, linked or not.
        min_words_between: Least number of words between the target and every frame element, linked or not.
        matching: How that distance is told. ``offsets``: from where target and element stand. ``kovaleva``: from
            strings, as the original code does: no word that equals one of an element's words may stand within
            ``min_words_between`` of the first word that equals the target.

    Raises:
        UserError: If a value is not valid.
    """

    core: Core = "core_set"
    max_words: int | None = 12
    single_target: bool = True
    max_element_words: int | None = 3
    min_words_between: int | None = 2
    matching: Matching = "offsets"

    def __post_init__(self) -> None:
        for name, valid in (("core", get_args(Core)), ("matching", get_args(Matching))):
            if getattr(self, name) not in valid:
                raise UserError(
                    f"Unknown framenet.{name} '{getattr(self, name)}'; {choices(str(getattr(self, name)), valid)}."
                )
        for name in ("max_words", "max_element_words", "min_words_between"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"framenet.{name} is {value!r}; expected a whole number from 1, or null for no limit.")

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> "Filters":
        """The filters of the ``framenet`` section; raises UserError at an unknown key."""
        known = [item.name for item in fields(cls)]
        for key in section:
            if key not in known:
                raise UserError(f"Unknown key 'framenet.{key}'; {choices(str(key), known)}.")
        return cls(**{str(key): value for key, value in section.items()})

    def steps(self) -> dict[str, Callable[[Exemplar, FrameRoles], bool]]:
        """The filters that are switched on, in the order of the original code, by what they ask for."""
        words = _tokenizer()
        found: dict[str, Callable[[Exemplar, FrameRoles], bool]] = {}
        if self.core != "any":
            found[f"frame has a {_CORE[self.core]}"] = lambda _, roles: bool(self._core(roles))
        if self.max_words is not None:
            limit = self.max_words
            # The tokenizer only ever splits further: most sentences are told to be too long without it.
            found[f"at most {limit} words"] = lambda exemplar, _: (
                len(exemplar.text.split()) <= limit and len(words(exemplar.text)) <= limit
            )
        if self.single_target:
            found["target in one piece"] = lambda exemplar, _: len(exemplar.targets) == 1
        else:
            found["has a target"] = lambda exemplar, _: bool(exemplar.targets)
        if self.max_element_words is not None:
            longest = self.max_element_words
            found[f"elements of at most {longest} words"] = lambda exemplar, _: all(
                len(words(exemplar.text[span.start : span.end])) <= longest for span in exemplar.elements
            )
        if self.min_words_between is not None:
            near = _near_by_strings if self.matching == "kovaleva" else _near
            least = self.min_words_between
            found[f"{least} words or more between target and elements"] = lambda exemplar, _: (
                not near(exemplar, least, words)
            )
        found["has an element to link"] = lambda exemplar, roles: bool(self.linked(exemplar, roles))
        return found

    def linked(self, exemplar: Exemplar, roles: FrameRoles) -> tuple[Span, ...]:
        """The frame elements that are linked to the target."""
        if self.core == "any":
            return exemplar.elements
        core = self._core(roles)
        return tuple(span for span in exemplar.elements if span.name in core)

    def _core(self, roles: FrameRoles) -> frozenset[str]:
        return roles.core_set if self.core == "core_set" else roles.core_type


_CORE = {"core_set": "core set", "core_type": "core element"}


@dataclass(frozen=True)
class Selection:
    """The exemplars that passed as examples, and how many remained after each filter, all exemplars first."""

    examples: list[Example]
    remaining: dict[str, int]


def select(
    exemplars: Iterable[Exemplar], roles: Callable[[str], FrameRoles], filters: Filters, what: str = "FrameNet"
) -> Selection:
    """Applies the filters one after the other and logs how many exemplars remain after each.

    Args:
        exemplars: Streamed; only those that pass are kept.
        roles: The core elements of a frame.
        filters: Which filters.
        what: Heads the log line, e.g. "FrameNet 1.5".

    Raises:
        UserError: If no exemplar passes; says where the last ones went.
    """
    steps = filters.steps()
    remaining = {"all": 0, **dict.fromkeys(steps, 0)}
    examples: list[Example] = []
    for exemplar in exemplars:
        remaining["all"] += 1
        its_roles = roles(exemplar.frame)
        for name, passes in steps.items():
            if not passes(exemplar, its_roles):
                break
            remaining[name] += 1
        else:
            linked = filters.linked(exemplar, its_roles)
            examples.append(annotated(len(examples), exemplar, linked))
    counts = "; ".join(f"{name}: {count:,}" for name, count in remaining.items())
    _log.info(f"{what}, exemplars left after each filter: {counts}.")
    if not examples:
        last = next((name for name, count in remaining.items() if not count), "all")
        raise UserError(
            f"No sentence of FrameNet passes the filters (none is left after '{last}'); loosen framenet.{{core, max_words, "
            "max_element_words, min_words_between}."
        )
    return Selection(examples, remaining)


def _near(exemplar: Exemplar, least: int, words: Callable[[str], list[str]]) -> bool:
    target = exemplar.targets[0]
    for span in exemplar.elements:
        first, second = sorted((target, span), key=lambda one: (one.start, one.end))
        if second.start < first.end or len(words(exemplar.text[first.end : second.start])) < least:
            return True
    return False


def _near_by_strings(exemplar: Exemplar, least: int, words: Callable[[str], list[str]]) -> bool:
    target = exemplar.targets[0]
    sentence = words(exemplar.text)
    form = exemplar.text[target.start : target.end]
    if form not in sentence:
        return True
    place = sentence.index(form)
    window = set(sentence[max(0, place - least) : place + least + 1])
    return any(not window.isdisjoint(words(exemplar.text[span.start : span.end])) for span in exemplar.elements)


def _tokenizer() -> Callable[[str], list[str]]:
    """nltk's Treebank tokenizer, without the sentence splitter that ``word_tokenize`` runs first.

    The splitter is a model to be downloaded. It matters only where a full stop sticks to a word in the middle of a
    sentence, and FrameNet's sentences have spaces around theirs.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError as error:
        raise UserError(
            "The filters of FrameNet count words with nltk, which is not installed; run pip install 'bertsecrets[annotate]'."
        ) from error
    tokenize: Callable[[str], list[str]] = NLTKWordTokenizer().tokenize
    return tokenize
