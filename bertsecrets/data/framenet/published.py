"""Sentences that were selected before: a line each, as the notebook of Kovaleva et al. prints its 473."""

import ast
import re
from pathlib import Path

from bertsecrets.data.example import Example
from bertsecrets.data.framenet.corpus import Exemplar, Span
from bertsecrets.data.framenet.sentences import annotated
from bertsecrets.errors import UserError

_LINE = re.compile(r"(?P<text>.*) (?P<target>\S+) (?P<links>\[.*\])")


def read_published(path: Path) -> list[Example]:
    """The sentences of a file with lines of ``<sentence> <target> [<linked element>, ...]``.

    Target and elements are looked for in the sentence from its beginning, at the edges of words first.

    Raises:
        UserError: If there is no such file, it has no lines, or one of them is not of that form.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The sentences of framenet.published='{path}' cannot be read; give a UTF-8 text file."
        ) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UserError(f"File '{path}' holds no sentences; give lines of <sentence> <target> [<element>, ...].")
    return [_read(line, index, f"Line {number} of '{path}'") for index, (number, line) in enumerate(numbered)]


def _read(line: str, index: int, where: str) -> Example:
    form = (
        f"{where} is not of the form <sentence> <target> ['<element>', ...], with target and elements in the sentence"
    )
    found = _LINE.fullmatch(line)
    if found is None:
        raise UserError(f"{form}: '{line}'.")
    text = found["text"]
    try:
        links = ast.literal_eval(found["links"])
    except (ValueError, SyntaxError) as error:
        raise UserError(f"{form}: '{line}'.") from error
    spans = [_find(form, text) for form in (found["target"], *map(str, links))]
    placed = [span for span in spans if span is not None]
    if not links or len(placed) < len(spans):
        raise UserError(f"{form}: '{line}'.")
    return annotated(index, Exemplar(text, "", "", (placed[0],), tuple(placed[1:])), placed[1:])


def _find(form: str, text: str) -> Span | None:
    edges = re.search(rf"(?<!\S){re.escape(form)}(?!\S)", text)
    start = edges.start() if edges else text.find(form)
    return None if start < 0 else Span(start, start + len(form), form)
