"""The ``framenet`` section of the configuration: the annotated sentences on which a relation is measured."""

import ast
import re
from pathlib import Path

from pydantic import Field, model_validator
from typing_extensions import Self

from bertsecrets.data.example import Example
from bertsecrets.data.framenet.corpus import Exemplar, FrameNetCorpus, FrameNetFiles, Span
from bertsecrets.data.framenet.selection import Filters, Selection, select
from bertsecrets.errors import UserError
from bertsecrets.settings import shown

_LINE = re.compile(r"(?P<text>.*) (?P<target>\S+) (?P<links>\[.*\])")


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
