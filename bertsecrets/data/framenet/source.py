"""The ``framenet`` section: sentences to measure a relation on, by the filters of Kovaleva et al. 2019, section 4.2."""

import ast
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from bertsecrets.data.example import Example, Matching
from bertsecrets.data.framenet.corpus import Exemplar, FrameNetCorpus, FrameNetFiles, FrameRoles, Span
from bertsecrets.errors import UserError
from bertsecrets.settings import Settings, shown

Core = Literal["core_set", "core_type", "any"]

_Limit = Annotated[int | None, Field(ge=1, description="a whole number from 1, or null for no limit")]
_CORE = {"core_set": "core set", "core_type": "core element"}

_LINE = re.compile(r"(?P<text>.*) (?P<target>\S+) (?P<links>\[.*\])")

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


class FrameNetSource(Filters):
    """Annotated sentences: filtered exemplars of a FrameNet release, or a published selection.

    Attributes:
        root: Folder or zip of a FrameNet release; its exemplars are filtered.
        published: A text file of selected sentences, which are not filtered; see :func:`read_published`.

    Raises:
        UserError: If both are given, or the given one does not exist or is not valid.
    """

    root: str | None = Field(min_length=1, description="a folder or zip of FrameNet, or null")
    published: str | None = Field(min_length=1, description="a text file of sentences, or null")

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        if self.root and self.published:
            raise UserError("framenet.root and framenet.published are both given; give one of them.")
        if self.root:
            FrameNetFiles(_path(self.root))
        if self.published and not _path(self.published).is_file():
            raise UserError(
                f"File framenet.published='{self.published}' does not exist; give a text file of sentences."
            )
        return self

    @property
    def is_named(self) -> bool:
        """Whether the section has a source; otherwise the task's own annotation is used."""
        return bool(self.root or self.published)

    @property
    def name(self) -> str:
        """The name of the sentences in reports."""
        if self.root:
            version = FrameNetFiles(_path(self.root)).version
            return f"FrameNet {version}" if version else "FrameNet"
        return Path(self.published).name if self.published else ""

    def load(self, progress: bool = False) -> Selection:
        """The sentences and, for a release, how many remained after each filter.

        Args:
            progress: Whether to show a progress bar.

        Raises:
            UserError: If no sentence remains or a file is damaged.
        """
        if self.root:
            corpus = FrameNetCorpus(FrameNetFiles(_path(self.root)))
            return select(corpus.exemplars(progress), corpus.roles, self, self.name)
        assert self.published
        return Selection(read_published(_path(self.published)), {})


def read_published(path: Path) -> list[Example]:
    """The sentences of a file with lines ``<sentence> <target> [<linked element>, ...]``.

    The notebook of Kovaleva et al. prints its 473 sentences in this form. Target and elements are located by their
    first occurrence in the sentence, preferably as whole words.

    Raises:
        UserError: If the file cannot be read, is empty, or has a line in another format.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The sentences of framenet.published='{path}' cannot be read; give a UTF-8 text file."
        ) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UserError(f"File '{path}' has no sentences; give lines of <sentence> <target> [<element>, ...].")
    return [_published(line, index, f"Line {number} of '{path}'") for index, (number, line) in enumerate(numbered)]


def _published(line: str, index: int, where: str) -> Example:
    problem = UserError(
        f"{where} does not have the format <sentence> <target> ['<element>', ...], with target and elements in the "
        f"sentence: {shown(line)}."
    )
    match = _LINE.fullmatch(line)
    if match is None:
        raise problem
    text = match["text"]
    try:
        links = ast.literal_eval(match["links"])
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise problem from error
    spans = []
    for form in (match["target"], *map(str, links)):
        whole_word = re.search(rf"(?<!\S){re.escape(form)}(?!\S)", text)
        start = whole_word.start() if whole_word else text.find(form)
        spans.append(Span(start, start + len(form), form))
    if not links or any(span.start < 0 for span in spans):
        raise problem
    target, *elements = spans
    return Exemplar(text, "", "", (target,), tuple(elements)).as_example(index, elements)


def _path(text: str) -> Path:
    return Path(text).expanduser()
