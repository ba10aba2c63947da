"""Read documents with coreference in CoNLL-2012 format, such as OntoNotes and LitBank."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bertsecrets.data.example import Annotation, Word
from bertsecrets.data.sources.base import numbered_lines
from bertsecrets.data.sources.conllu import ESCAPED
from bertsecrets.data.sources.coreference.mentions import Span, annotated, word_set
from bertsecrets.errors import UserError
from bertsecrets.settings import shown

_FORM, _TAG = 3, 4
_LEAST_COLUMNS = 5
_BRACKET = re.compile(r"(\(?)(\d+)(\)?)")
_NONE = ("", "-", "_")

_NO_SPACE_BEFORE = word_set(". , ; : ? ! ) ] } % ' ’ ” 's ’s n't n’t 'll ’ll 're ’re 've ’ve 'd ’d 'm ’m")
_NO_SPACE_AFTER = frozenset(["(", "[", "{", "$", "“", "‘"])


@dataclass
class _Draft:
    """A partly read document.

    Args:
        line: The number of its first line, from 1.
        open: Entity -> word number and line number of each of its open brackets.
    """

    line: int
    words: list[tuple[str, str]] = field(default_factory=list)
    sentences: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    open: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    in_sentence: bool = False


class Document(NamedTuple):
    """A document's text and annotation, or the reason why it is invalid."""

    text: str
    annotation: Annotation | None
    error: UserError | None = None


def read_conll(path: Path, advice: str = "give the path of a CoNLL-2012 file") -> Iterator[Document]:
    """The documents of a file, in file order; invalid ones have an error instead of an annotation.

    Fields are separated by tabs or spaces: document, part, word number, word, Penn Treebank tag (``_`` or ``-`` for
    none), any number of further fields, and finally coreference, such as ``(12|(3)`` or ``12)``. A blank line ends a
    sentence; ``#begin document`` and ``#end document`` enclose a document.

    Args:
        path: The file.
        advice: What to do if the file is missing, as the end of a sentence.

    Raises:
        UserError: If the file is not text, or a line is too long.
    """
    draft: _Draft | None = None
    error: UserError | None = None
    begun = False
    for number, line in numbered_lines(path, advice, "the line"):
        if line.startswith(("#begin document", "#end document")):
            if line.startswith("#begin"):
                error = error or _endless(draft, begun, path)
            if draft is not None:
                yield from _finished(draft, error, path)
            begun = line.startswith("#begin")
            draft, error = (_Draft(number), None) if line.startswith("#begin") else (None, None)
        elif not line.strip():
            error = error or (None if draft is None else _unclosed(draft, path))
            if draft is not None:
                draft.in_sentence = False
        elif not line.startswith("#") and error is None:
            draft = draft or _Draft(number)
            error = _add(draft, line.rstrip("\r\n"), f"{path}:{number}", number)
    if draft is not None:
        yield from _finished(draft, error or _endless(draft, begun, path), path)


def _endless(draft: _Draft | None, begun: bool, path: Path) -> UserError | None:
    """The error for a document without an end; a document without ``#begin document`` ends with the file."""
    if draft is None or not begun:
        return None
    return UserError(
        f"{path}:{draft.line}: the document that starts here has no '#end document'; the file may be truncated: "
        "restore it, or set data.skip_bad_rows=true to skip the document."
    )


def _add(draft: _Draft, line: str, where: str, number: int) -> UserError | None:
    """Add a row to a document; return the error of an invalid row."""
    fields = line.split("\t") if "\t" in line else line.split()
    if len(fields) < _LEAST_COLUMNS:
        return UserError(
            f"{where}: {len(fields)} columns, expected at least {_LEAST_COLUMNS} (document, part, number, word, ..., "
            "coreference); fix the row, or set data.skip_bad_rows=true to skip its document."
        )
    form, tag = fields[_FORM].strip(), fields[_TAG] if len(fields) > _LEAST_COLUMNS else ""
    if not form:
        return UserError(
            f"{where}: the word, column {_FORM + 1}, is empty; fix the row, or set data.skip_bad_rows=true."
        )
    word = len(draft.words)
    if not draft.in_sentence:
        draft.sentences.append(word)
        draft.in_sentence = True
    draft.words.append((ESCAPED.get(form, form), "" if tag in _NONE else tag))
    cell = fields[-1].strip()
    for part in [] if cell in _NONE else cell.split("|"):
        bracket = _BRACKET.fullmatch(part)
        if bracket is None or not (bracket[1] or bracket[3]):
            return UserError(
                f"{where}: coreference {shown(cell)}; expected brackets such as (12, 12) or (12), with | between "
                "several."
            )
        entity = int(bracket[2])
        if bracket[1]:
            draft.open.setdefault(entity, []).append((word, number))
        if bracket[3]:
            if not draft.open.get(entity):
                return UserError(
                    f"{where}: {part} closes a mention that is not open; fix the brackets, or set "
                    "data.skip_bad_rows=true to skip the document."
                )
            first, _ = draft.open[entity].pop()
            draft.spans.append(Span(first, word, entity))
    return None


def _unclosed(draft: _Draft, path: Path) -> UserError | None:
    """The error for a sentence that ends inside a mention."""
    for entity, starts in draft.open.items():
        if starts:
            return UserError(
                f"{path}:{starts[-1][1]}: mention ({entity} is not closed in its sentence; fix the brackets, or set "
                "data.skip_bad_rows=true to skip the document."
            )
    return None


def _finished(draft: _Draft, error: UserError | None, path: Path) -> Iterator[Document]:
    error = error or _unclosed(draft, path)
    if error is not None:
        yield Document("", None, error)
    elif draft.words:
        text, words = _spelt(draft.words)
        yield Document(text, annotated(words, draft.sentences, draft.spans))


def _spelt(tokens: list[tuple[str, str]]) -> tuple[str, list[Word]]:
    """A text with spaces between words (except around punctuation and clitics), and the words with their offsets."""
    parts: list[str] = []
    words: list[Word] = []
    end, joined = 0, True
    for form, tag in tokens:
        if not joined and form.lower() not in _NO_SPACE_BEFORE:
            parts.append(" ")
            end += 1
        parts.append(form)
        words.append(Word(form, end, end + len(form), "", -1, "", tag=tag))
        end += len(form)
        joined = form in _NO_SPACE_AFTER
    return "".join(parts), words
