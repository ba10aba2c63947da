"""Select the exemplars to measure a relation on: the filters of Kovaleva et al. 2019, section 4.2."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bertsecrets.data.example import Example, Matching
from bertsecrets.data.framenet.corpus import Exemplar, FrameRoles, Span
from bertsecrets.errors import UserError
from bertsecrets.settings import Settings

Core = Literal["core_set", "core_type", "any"]

_Limit = Annotated[int | None, Field(ge=1, description="a whole number from 1, or null for no limit")]
_CORE = {"core_set": "core set", "core_type": "core element"}

_log = logging.getLogger(__name__)


class Filters(Settings):
    """Conditions that an exemplar must meet; None (or False) disables a filter.

    Words are those of nltk's Treebank tokenizer.

    Attributes:
        core: Which frame elements are linked to their target: members of a core set of the frame (the authors' code),
            elements of type Core, or any.
        max_words: Longest sentence.
        single_target: Whether the target must be contiguous; otherwise its first part is used.
        max_element_words: Longest frame element, linked or not.
        min_words_between: Least number of words between the target and every frame element, linked or not.
        matching: How this distance is measured. ``offsets``: from the character offsets of target and element.
            ``kovaleva``: from strings, as in the authors' code: no word that equals one of an element's words may be
            within ``min_words_between`` of the first word that equals the target.
    """

    conf = ("framenet/default",)

    core: Core = Field(description="the name of a rule")
    max_words: _Limit
    single_target: bool = Field(description="true or false")
    max_element_words: _Limit
    min_words_between: _Limit
    matching: Matching = Field(description="the name of a rule")

    def steps(self) -> dict[str, Callable[[Exemplar, FrameRoles], bool]]:
        """Description of each active filter -> the filter, in the order of the authors' code."""
        words = _tokenizer()
        steps: dict[str, Callable[[Exemplar, FrameRoles], bool]] = {}
        if self.core != "any":
            steps[f"frame has a {_CORE[self.core]}"] = lambda _, roles: bool(self._core(roles))
        if self.max_words is not None:
            limit = self.max_words
            # The tokenizer only splits further: most long sentences are recognised without it.
            steps[f"at most {limit} words"] = lambda exemplar, _: (
                len(exemplar.text.split()) <= limit and len(words(exemplar.text)) <= limit
            )
        if self.single_target:
            steps["target in one piece"] = lambda exemplar, _: len(exemplar.targets) == 1
        else:
            steps["has a target"] = lambda exemplar, _: bool(exemplar.targets)
        if self.max_element_words is not None:
            longest = self.max_element_words
            steps[f"elements of at most {longest} words"] = lambda exemplar, _: all(
                len(words(exemplar.text[span.start : span.end])) <= longest for span in exemplar.elements
            )
        if self.min_words_between is not None:
            near = _near_by_strings if self.matching == "kovaleva" else _near
            least = self.min_words_between
            steps[f"at least {least} words between target and elements"] = lambda exemplar, _: (
                not near(exemplar, least, words)
            )
        steps["has a linked element"] = lambda exemplar, roles: bool(self.linked(exemplar, roles))
        return steps

    def linked(self, exemplar: Exemplar, roles: FrameRoles) -> tuple[Span, ...]:
        """The frame elements that are linked to the target."""
        if self.core == "any":
            return exemplar.elements
        core = self._core(roles)
        return tuple(span for span in exemplar.elements if span.name in core)

    def _core(self, roles: FrameRoles) -> frozenset[str]:
        return roles.core_set if self.core == "core_set" else roles.core_type


@dataclass(frozen=True)
class Selection:
    """The selected exemplars as examples, and the number left after each filter, starting with all exemplars."""

    examples: list[Example]
    remaining: dict[str, int]


def select(
    exemplars: Iterable[Exemplar], roles: Callable[[str], FrameRoles], filters: Filters, name: str = "FrameNet"
) -> Selection:
    """Apply the filters in order and log how many exemplars remain after each.

    Args:
        exemplars: Streamed; only selected ones are kept in memory.
        roles: Frame name -> its core elements.
        filters: The filters.
        name: Name of the corpus in the log, e.g. "FrameNet 1.5".

    Raises:
        UserError: If no exemplar passes; the message names the last filter.
    """
    steps = filters.steps()
    remaining = {"all": 0, **dict.fromkeys(steps, 0)}
    examples: list[Example] = []
    for exemplar in exemplars:
        remaining["all"] += 1
        frame_roles = roles(exemplar.frame)
        for step, passes in steps.items():
            if not passes(exemplar, frame_roles):
                break
            remaining[step] += 1
        else:
            linked = filters.linked(exemplar, frame_roles)
            examples.append(exemplar.as_example(len(examples), linked))
    counts = "; ".join(f"{step}: {count:,}" for step, count in remaining.items())
    _log.info(f"{name}, exemplars left after each filter: {counts}.")
    if not examples:
        last = next((step for step, count in remaining.items() if not count), "all")
        raise UserError(
            f"No FrameNet sentence passes the filters (none left after '{last}'); relax framenet.{{core, max_words, "
            "max_element_words, min_words_between}."
        )
    return Selection(examples, remaining)


def _near(exemplar: Exemplar, least: int, words: Callable[[str], list[str]]) -> bool:
    """Whether fewer than ``least`` words lie between the target and some element, by offsets."""
    target = exemplar.targets[0]
    for span in exemplar.elements:
        first, second = sorted((target, span), key=lambda span: (span.start, span.end))
        if second.start < first.end or len(words(exemplar.text[first.end : second.start])) < least:
            return True
    return False


def _near_by_strings(exemplar: Exemplar, least: int, words: Callable[[str], list[str]]) -> bool:
    """The same by equal strings, as in the authors' code."""
    target = exemplar.targets[0]
    sentence = words(exemplar.text)
    form = exemplar.text[target.start : target.end]
    if form not in sentence:
        return True
    position = sentence.index(form)
    window = set(sentence[max(0, position - least) : position + least + 1])
    return any(not window.isdisjoint(words(exemplar.text[span.start : span.end])) for span in exemplar.elements)


def _tokenizer() -> Callable[[str], list[str]]:
    """nltk's Treebank tokenizer, without the sentence splitter that ``word_tokenize`` runs first.

    The splitter is a model to download. It matters only where a full stop follows a word in mid-sentence without a
    space, and FrameNet puts spaces around its own.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError as error:
        raise UserError(
            "The filters of FrameNet count words with nltk, which is not installed; run pip install "
            "'bertsecrets[annotate]'."
        ) from error
    tokenize: Callable[[str], list[str]] = NLTKWordTokenizer().tokenize
    return tokenize
