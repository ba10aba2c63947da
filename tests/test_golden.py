"""The pages of stored runs keep their numbers, verdicts and figures.

``golden.tar.xz`` holds run folders of every family of experiments, with four digits of each number; ``golden.json``
holds what each page says. A page may say more. If a change removes something on purpose, store what the pages now say:
``python tests/test_golden.py``.

A page is compared by its text: headings, sentences, cells, captions and labels, without scripts, styles, drawings and
commands. Signs, thousands separators and per cent signs are dropped, times are left out, and words up to twelve count
as numbers, so that "a loss of 3.4 points" may become "−3.4".
"""

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from bertsecrets.papers.page import find_page
from bertsecrets.present.report import page
from bertsecrets.present.report.content import FigureBlock
from bertsecrets.present.report.page import Image
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.run_report import report_run
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import Run

ARCHIVE, PAGES = (Path(__file__).with_name(name) for name in ("golden.tar.xz", "golden.json"))
SWEEPS = ("sweep", "removed")
PAPERS = ("kovaleva2019", "clark2019", "michel2019", "voita2019", "questions", "statements")
SMALLER = {"three_layers", "removed", "gated", "resampled"}
"""Runs of a model of three layers; a page of heads is of models of one size."""

VERDICTS = (
    "needed",
    "can be spared",
    "not enough examples to tell",
    "not enough seeds or examples to tell",
    "better without",
    "holds",
    "holds of this model",
    "does not hold",
    "does not hold of this model",
    "cannot be told",
    "depends",
    "differs between these models",
    "no run measured this",
)
"""The words of verdicts, as a cell of a table begins with them."""

_WORDS = {
    word: str(number)
    for number, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 2
    )
}
_NUMBER = re.compile(
    r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)(?!\w|\.\d)(?!\s?(?:m?s|min|minutes?|hours?|seconds?|[KMG]B)\b)"
    rf"|\b({'|'.join(_WORDS)})\b",
    re.IGNORECASE,
)
_SKIPPED = {"script", "style", "svg", "code", "pre", "title", "select", "noscript"}
_INLINE = {"a", "abbr", "b", "br", "button", "em", "i", "input", "kbd", "label", "small", "span", "strong"}


def test_pages_of_stored_runs_lose_no_number_no_verdict_and_no_figure(tmp_path: Path) -> None:
    now = said_by_pages(tmp_path)
    lost = []
    for name, content in json.loads(PAGES.read_text("utf-8")).items():
        lost += losses(name, Said(**content), now[name]) if name in now else [f"{name}: the page is missing"]
    assert not lost, "\n".join([f"{len(lost)} lost; if that is meant, run `python {Path(__file__).name}`:", *lost])


@dataclass
class Said:
    """What a page says.

    Args:
        numbers: Sentences, captions and rows outside the table of all heads -> the numbers that stand there first.
        heads: How often that table holds each number.
        verdicts: How many cells hold each verdict.
        figures: The names of its figures.
    """

    numbers: dict[str, str] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    figures: list[str] = field(default_factory=list)


def said(html: str) -> Said:
    """What an HTML page says.

    >>> found = said("<p>Without 1,024 of them accuracy is −3.4 points (two seeds, .5).</p><tr><td>needed</td></tr>")
    >>> list(found.numbers.values()), found.verdicts
    (['1024 3.4 2 0.5'], {'needed': 1})
    """
    text = _PageText()
    text.feed(html)
    text.close()
    found = Said(figures=text.figures)
    seen: set[str] = set()
    for block in text.blocks:
        first = [number for number in dict.fromkeys(_numbers_in(block)) if number not in seen]
        if first:
            seen.update(first)
            found.numbers[block[:100]] = " ".join([*found.numbers.get(block[:100], "").split(), *first])
    found.heads = dict(Counter(number for row in text.heads for number in _numbers_in(row)))
    verdicts = (max((word for word in VERDICTS if cell.startswith(word)), key=len, default="") for cell in text.cells)
    found.verdicts = dict(Counter(verdict for verdict in verdicts if verdict))
    return found


def _numbers_in(text: str) -> Iterator[str]:
    for match in _NUMBER.finditer(text):
        number = _WORDS.get(match[0].lower()) or match[0].replace(",", "")
        yield f"0{number}" if number.startswith(".") else number


def losses(name: str, old: Said, new: Said) -> list[str]:
    """What a page has lost, a line for each number, verdict or figure.

    >>> losses("page", said("<p>A loss of 3.4 and of 2.1.</p>"), said("<p>It loses 3.4.</p>"))
    ['page: 2.1, of: A loss of 3.4 and of 2.1.']
    """
    still_said = " ".join(new.numbers.values()).split()
    lost = [
        f"{number}, of: {sentence}"
        for sentence, numbers in old.numbers.items()
        for number in numbers.split()
        if number not in still_said
    ]
    for verdict, count in old.verdicts.items():
        if (still := new.verdicts.get(verdict, 0)) < count:
            lost.append(f"{verdict}: {count} cells, now {still}")
    lost += [f"the figure {figure}" for figure in old.figures if figure not in new.figures]
    if missing := Counter(old.heads) - Counter(new.heads):
        lost.append(f"{missing.total()} cells of the table of all heads: {' '.join(missing)}")
    return [f"{name}: {what}" for what in lost]


class _PageText(HTMLParser):
    """The sentences, captions and rows of a page, the cells of its tables, and the rows of the table of all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.cells: list[str] = []
        self.heads: list[str] = []
        self.figures: list[str] = []
        self._in_heads = False
        self._skipping: list[str] = []
        self._parts: list[str] = []
        self._row: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping or tag in _SKIPPED:
            self._skipping += [tag] if tag in _SKIPPED else []
        elif tag == "img":
            self.blocks.append(dict(attrs).get("alt") or "")
        elif tag not in _INLINE:
            self._end()
            self._in_heads |= ("class", "joint") in attrs
            self.figures += [name for key, name in attrs if tag == "figure" and key == "id" and name]
            self._row = [] if tag == "tr" else self._row

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            if tag == self._skipping[-1]:
                self._skipping.pop()
        elif tag not in _INLINE:
            if tag in ("td", "th") and self._row is not None:
                self._row.append(" ".join("".join(self._parts).split()))
                self._parts = []
            self._end()
            if tag == "tr" and self._row is not None:
                self.cells += self._row
                (self.heads if self._in_heads else self.blocks).append(" | ".join(self._row))
                self._row = None
            self._in_heads &= tag != "table"

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._parts.append(data)

    def _end(self) -> None:
        text = " ".join("".join(self._parts).split())
        self._parts = []
        if text:
            self.blocks.append(text)


def said_by_pages(folder: Path) -> dict[str, Said]:
    """What the pages of the stored runs say: of each run, of the comparisons of sweeps, and of papers.

    No figure is drawn; its description stands in its place.
    """
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    finished = [path.parent for path in sorted(folder.rglob("scores.json"))]
    with (
        patch.object(FigureBlock, "figure", None),
        patch.object(page, "save_figure", lambda *_: None),
        patch.object(page, "encode", lambda figures, _: ([Image("", 1, 1, ()) for _ in figures], None)),
    ):
        for path in finished:
            run = Run.open(str(path))
            report_run(run, 6).write(run)
        for name in SWEEPS:
            swept = find_runs([str(path) for path in finished if path.parent.name == name])[0]
            write_comparison(swept, [], folder / name / "comparison", heads=True)
        full = [str(path) for path in finished if not set(path.relative_to(folder).parts) & SMALLER]
        for name in PAPERS:
            find_page(name).write(find_runs(full)[0], folder / "pages")
    return {str(path.relative_to(folder)): said(path.read_text("utf-8")) for path in sorted(folder.rglob("*.html"))}


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        content = {name: asdict(found) for name, found in said_by_pages(Path(made)).items()}
    PAGES.write_text(f"{json.dumps(content, ensure_ascii=False, indent=0)}\n", "utf-8")
