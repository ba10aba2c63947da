"""The prose of the documentation: sentences short enough to read once."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(
        path for path in (ROOT / "docs").glob("*.md") if path.stem != "contributing" and "generated" not in path.stem
    ),
]
LONGEST = 35
"""Words of a sentence."""

_APART = (
    re.compile(r"^(`{3,}|~{3,}|:{3,}).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE),  # code and directives
    re.compile(r"\$\$.*?\$\$", re.DOTALL),
    re.compile(r"^[ \t]*\|.*$", re.MULTILINE),  # tables
    re.compile(r"^#+ .*$", re.MULTILINE),
    re.compile(r"^\([\w-]+\)=$", re.MULTILINE),  # targets of links
)
_PARAGRAPH = re.compile(r"\n\s*\n|\n[ \t]*(?:[-*]|\d+\.)[ \t]+")
_SENTENCE = re.compile(r"(?<=[.!?])[*_\"”’)\]]*\s+(?=[*_\"“‘(\[`]*[A-Z0-9$])")


def long_sentences(text: str) -> list[str]:
    """The sentences of Markdown that have more than `LONGEST` words, outside code, tables, headings and formulas."""
    for pattern in _APART:
        text = pattern.sub("\n\n", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"\{\{.*?\}\}", "X", text)  # numbers that the build fills in
    text = re.sub(r"`[^`]*`(?:,\s+`[^`]*`)*", "X", text)  # names in code, a list of them too, count as one word
    sentences = (
        " ".join(sentence.split()) for paragraph in _PARAGRAPH.split(text) for sentence in _SENTENCE.split(paragraph)
    )
    return [sentence for sentence in sentences if len(sentence.split()) > LONGEST]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_sentence_has_at_most_35_words(path: Path) -> None:
    sentences = long_sentences(path.read_text("utf-8"))
    assert not sentences, "\n".join(f"{len(sentence.split())} words: {sentence}" for sentence in sentences)


def test_a_long_sentence_is_seen_and_code_tables_and_lists_are_not() -> None:
    long = " ".join(["Word", *["word"] * 35]) + "."
    assert long_sentences(f"Short. {long} Short.") == [long]
    assert long_sentences(f"- a list\n- {long}") == [long]
    assert not long_sentences(f"```\n{long}\n```\n\n| {long} |\n\n{' '.join(['word'] * 35)}.")
    assert not long_sentences("\n".join(f"- {'word ' * 20}" for _ in range(3)))
