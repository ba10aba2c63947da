"""Read GAP: snippets with a pronoun and two names, zero, one or both of which are its antecedents (Webster et al.
2018).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from bertsecrets.data.example import Word
from bertsecrets.data.sources.base import numbered_lines
from bertsecrets.data.sources.coreference.conll import Document
from bertsecrets.data.sources.coreference.mentions import Span, annotated
from bertsecrets.errors import UserError, choices
from bertsecrets.settings import shown

COLUMNS = ("Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref")
_PIECE = re.compile(r"\w+|[^\w\s]")
_SENTENCE_END = frozenset(".!?")
_PRONOUN, _OTHER = 0, 1


def read_gap(path: Path, advice: str = "give the path of a GAP *.tsv file") -> Iterator[Document]:
    """The snippets of a file, in file order; invalid ones have an error instead of an annotation.

    Only the pronoun has an antecedent to find, among the two names; a name that is not its antecedent is a separate
    entity.

    Raises:
        UserError: If the file is not text, a column is missing, or a line is too long.
    """
    columns: dict[str, int] | None = None
    for number, line in numbered_lines(path, advice):
        row = line.rstrip("\r\n")
        if columns is None:
            columns = _columns(row.split("\t"), path)
        elif row:
            try:
                yield _snippet(row.split("\t"), columns, f"{path}:{number}")
            except UserError as error:
                yield Document("", None, error)


def _columns(header: list[str], path: Path) -> dict[str, int]:
    for name in COLUMNS:
        if name not in header:
            raise UserError(f"{path}:1: column '{name}' of GAP is missing; {choices(name, header)}.")
    return {name: header.index(name) for name in COLUMNS}


def _snippet(fields: list[str], columns: Mapping[str, int], where: str) -> Document:
    width = max(columns.values()) + 1
    if len(fields) < width:
        raise UserError(
            f"{where}: {len(fields)} fields, expected at least {width}; fix the row, or skip such rows with "
            "data.skip_bad_rows=true."
        )
    row = {name: fields[column] for name, column in columns.items()}
    text = row["Text"]
    characters = {name: _characters(row, name, where) for name in ("Pronoun", "A", "B")}
    corefers = {}
    for name in ("A", "B"):
        value = row[f"{name}-coref"]
        if value.upper() not in ("TRUE", "FALSE"):
            raise UserError(f"{where}: {name}-coref is {shown(value)}; expected TRUE or FALSE.")
        corefers[name] = value.upper() == "TRUE"
    words, sentences = _words(text, sorted({end for ends in characters.values() for end in ends}))
    span_of = {
        name: _span(words, *characters[name], _PRONOUN if corefers[name] else _OTHER + number)
        for number, name in enumerate(("A", "B"))
    }
    pronoun = _span(words, *characters["Pronoun"], _PRONOUN)._replace(choices=tuple(span_of.values()))
    annotation = annotated(words, sentences, [pronoun, *span_of.values()])
    # Only the pronoun has candidate antecedents.
    mentions = (
        mention if mention.choices is not None else replace(mention, anaphoric=False) for mention in annotation.mentions
    )
    return Document(text, replace(annotation, mentions=tuple(mentions)))


def _characters(row: Mapping[str, str], name: str, where: str) -> tuple[int, int]:
    """The characters of the pronoun or a name."""
    form, offset = row[name], row[f"{name}-offset"]
    start = int(offset) if offset.isdecimal() else -1
    if not form.strip() or start < 0 or row["Text"][start : start + len(form)] != form:
        seen = row["Text"][start : start + len(form)] if start >= 0 else ""
        raise UserError(
            f"{where}: {name} {shown(form)} is not at offset {shown(offset)} of the text (there: {shown(seen)}); fix "
            "the row, or skip such rows with data.skip_bad_rows=true."
        )
    return start, start + len(form)


def _words(text: str, borders: list[int]) -> tuple[list[Word], list[int]]:
    """Runs of letters and single other characters, split at the given borders, and the first word of each sentence."""
    words: list[Word] = []
    sentences: list[int] = []
    ended = True
    for start, end in zip([0, *borders], [*borders, len(text)], strict=True):
        for piece in _PIECE.finditer(text, start, end):
            spaced = piece.start() > 0 and text[piece.start() - 1].isspace()
            if not words or (ended and spaced and piece[0][0].isupper()):
                sentences.append(len(words))
            words.append(Word(piece[0], piece.start(), piece.end(), "", -1, ""))
            ended = piece[0] in _SENTENCE_END
    return words, sentences


def _span(words: list[Word], start: int, end: int, entity: int) -> Span:
    inside = [number for number, word in enumerate(words) if start <= word.start and word.end <= end]
    return Span(inside[0], inside[-1], entity)
