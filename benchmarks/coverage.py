"""What of the four papers can be run here, with which number: docs/coverage.md.

python -m benchmarks.coverage            # write the page from benchmarks/coverage.yaml and the stored results
python -m benchmarks.coverage --check    # fail where the page differs from them
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from itertools import chain
from statistics import median
from typing import Any

import jmespath
import yaml

from benchmarks.jobs import ROOT, write_page
from benchmarks.papers import PAGES
from bertsecrets.papers.statements.test import interval_in_words
from bertsecrets.results.formatting import MISSING, number

ROWS = ROOT / "benchmarks" / "coverage.yaml"
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENT = ROOT / "docs" / "coverage.md"
LEDGER = "statements.md#the-ledger"
"""Where the numbers of statements stand."""

INTRODUCTION = """# What of the papers can be run

Every table, figure and experiment of Kovaleva et al. 2019, Clark et al. 2019, Voita et al. 2019 and Michel et al. 2019, and what their
readers asked: the command, the page with more, one number from real data beside the published one, and what is missing.
Numbers are taken from stored results by `python -m benchmarks.coverage`. *MiniLM* is all-MiniLM-L6-v2 and *MPNet* all-mpnet-base-v2,
encoders tuned for sentence embeddings and not masked language models. The papers' numbers are of BERT-base or of translation
models. Several seeds are averaged, or stand one after the other; *a (b to c)* is a number with its 95 % interval. How long the runs take
is [at the end](#time).
"""

TIME = """## Time

Wall-clock minutes per run of `python -m benchmarks.papers ... --only <runs>` on one core: the median and, for several runs, the range. The
machine, with AVX512-BF16, did other work meanwhile. A resumed run counts from its resumption. Runs older than the stored times are missing.
"""

_HEADER = ("", "item", "command", "models, tasks, seeds", "here", "paper", "not done, or different")
_NUMBER = re.compile(r"\{\{ (.+?) \}\}")


class MissingNumberError(ValueError):
    """A number that a row names is not among the stored results."""


@cache
def stored(name: str) -> Any:
    """A file of stored results."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def rows() -> Iterator[tuple[str, dict[str, str]]]:
    """Each paper with each of its rows."""
    for part in yaml.safe_load(ROWS.read_text("utf-8")):
        for row in part["rows"]:
            yield part["paper"], row


def filled(text: str) -> str:
    """A text with its numbers.

    Raises:
        MissingNumberError: If there is no such number.
    """
    return _NUMBER.sub(lambda match: _number(match[1]), text)


def numbers(text: str) -> Iterator[tuple[str, str]]:
    """Each number of a text, with the kind of its source."""
    for match in _NUMBER.finditer(text):
        yield match[1].partition(" ~ ")[0], _number(match[1])


def _number(source: str) -> str:
    kind, *about = source.split(" ~ ")
    kinds: dict[str, Callable[..., str]] = {"stored": _stored, "statement": _statement, "page": _cell}
    return kinds[kind](*about)


def _stored(name: str, query: str, form: str) -> str:
    value = jmespath.search(query, stored(name))
    values = value if isinstance(value, list) and value else [value]
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        raise MissingNumberError(f"'{query}' gives {value!r} in {name}.json; expected a number, or a list of them.")
    return ", ".join(
        number(100 * one, 1) if form == "points" else format(one, form).replace("-", "−") for one in values
    )


def _statement(name: str, model: str) -> str:
    subjects: Mapping[str, Any] = stored("statements")["statements"].get(name, {}).get("subjects", {})
    matching = [cell for subject, cell in subjects.items() if subject.startswith(model)]
    if len(matching) != 1:
        raise MissingNumberError(f"'{name}' has {len(matching)} numbers of a model '{model}'; expected one.")
    value, low, high = (
        float("nan") if matching[0][key] is None else matching[0][key] for key in ("value", "low", "high")
    )
    return interval_in_words(value, low, high)


def _cell(page: str, caption: str, where: str, column: str) -> str:
    wanted = {name: value for name, _, value in (pair.partition("=") for pair in where.split("; "))}
    cells = [
        row[table["header"].index(column)]
        for table in stored("papers")["tables"]
        if table["page"] == page and table["caption"].startswith(caption)
        for row in table["rows"]
        if all(_fits(row[table["header"].index(key)], value) for key, value in wanted.items())
    ]
    if len(cells) != 1 or cells[0] == MISSING:
        raise MissingNumberError(f"'{column}' of '{caption}' on {page} where {where} is {cells}; expected one cell.")
    return str(cells[0])


def _fits(cell: str, wanted: str) -> bool:
    """Whether a cell begins with what is wanted, or is no more than that where a ``$`` ends it."""
    return cell == wanted[:-1] if wanted.endswith("$") else cell.startswith(wanted)


def rendered() -> str:
    """The page."""
    lines = [INTRODUCTION]
    before = ""
    counts = {"rows": 0, "command": 0, "number": 0}
    for paper, row in rows():
        if paper != before:
            lines += ["", f"## {paper}", "", f"| {' | '.join(_HEADER)} |", f"|{'---|' * len(_HEADER)}"]
            before = paper
        counts["rows"] += 1
        counts["command"] += bool(row["command"])
        counts["number"] += "{{" in row["ours"]
        item = f"[{row['item']}]({row['page']})" if row["page"] else row["item"]
        command = f"`{row['command']}`" if row["command"] else ""
        ours = filled(row["ours"])
        if any(kind == "statement" for kind, _ in numbers(row["ours"])) and not row["page"].startswith(LEDGER):
            ours += f" ([ledger]({LEDGER}))"
        cells = (row["id"], item, command, row["models"], ours, row["theirs"], filled(row["gap"]))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    total = f"Of {counts['rows']} rows {counts['command']} have a command and {counts['number']} a stored number."
    return "\n".join([lines[0], total, *lines[1:], "", TIME, *times(), ""])


def times() -> list[str]:
    """The rows of the table of minutes: one for each pattern that fits a stored run not counted above."""
    lines, above = ["| runs | minutes |", "|---|---|"], set[str]()
    for pattern in dict.fromkeys(chain(*PAGES.values())):
        minutes = {name: took for name, took in stored("papers")["minutes"].items() if fnmatch(name, pattern)}
        if not minutes.keys() <= above:
            above |= minutes.keys()
            low, high = round(min(minutes.values())), round(max(minutes.values()))
            limits = f" ({len(minutes)} runs: {low} to {high})" if low < high else ""
            lines.append(f"| `{pattern}` | {round(median(minutes.values()))}{limits} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    write_page(DOCUMENT, rendered(), options.check)


if __name__ == "__main__":
    main()
