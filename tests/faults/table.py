"""The table of fault cases and their outcomes, printed as counts and written as Markdown."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faults.cases import Case, Outcome, analyze, train

PROPERTY = "fault"
"""Name of the property of a test's report that holds a row of the table."""

_OTHERS = {"api": "calls of the API", "kills": "kills and resumes"}
"""Kinds of tests whose cases are not command lines, by subject."""

_LONGEST = 200
_DEFAULTS = frozenset((*train()[1:], *analyze()[1:]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the table's file."""
    parser.addoption("--faults-table", metavar="FILE", help="write the table of fault cases and outcomes (Markdown)")


def row_of(case: Case, outcome: Outcome | None, numbers: Sequence[str] | None) -> dict[str, str]:
    """A case's row: what was run, what was expected, and what was read."""
    lines = (outcome.stderr if outcome else "").rstrip("\n").split("\n")
    refused = case.status != 0
    return {
        "id": case.id,
        "kind": "refusals" if refused else "runs, numbers recomputed" if numbers else "runs, other checks",
        "command": " ".join(word for word in case.words if word not in _DEFAULTS),
        "expected": case.sentence,
        "status": "none" if outcome is None else str(outcome.status),
        "read": lines[-1] if refused else f"runs; recomputed: {', '.join(numbers or []) or 'nothing'}",
    }


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how many cases of each kind and subject ended as expected; write the table if asked for."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    results = {report.nodeid: report.outcome for report in reports if getattr(report, "when", None) == "call"}
    rows = {
        report.nodeid: dict(report.user_properties)[PROPERTY]
        for report in reports
        if PROPERTY in dict(getattr(report, "user_properties", ()))
    }
    if not rows:
        return
    kinds = {name: row["kind"] for name, row in rows.items()}
    kinds |= {name: _OTHERS[_subject(name)] for name in results if _subject(name) in _OTHERS}
    terminalreporter.write_sep("-", "fault cases that ended as expected")
    for group in (kinds, {name: _subject(name) for name in kinds}):
        totals = Counter(group.values())
        passed = Counter(group[name] for name in group if results.get(name) == "passed")
        for title, total in sorted(totals.items()):
            terminalreporter.write_line(f"{title:<32} {passed[title]:>4} of {total}")
        terminalreporter.write_line(f"{'together':<32} {passed.total():>4} of {totals.total()}\n")
    path = config.getoption("--faults-table")
    if path:
        Path(path).write_text(markdown({name: (row, results.get(name, "none")) for name, row in rows.items()}), "utf-8")


def markdown(rows: dict[str, tuple[dict[str, str], str]]) -> str:
    """The tables, one section for each subject."""
    lines: list[str] = ["# Fault cases", ""]
    for subject in sorted({_subject(name) for name in rows}):
        lines += [
            f"## {subject.replace('_', ' ')}",
            "",
            f"{sum(_subject(name) == subject for name in rows)} cases.",
            "",
            "| case | command | exit status | reads | outcome |",
            "|---|---|---|---|---|",
        ]
        for name, (row, result) in sorted(rows.items()):
            if _subject(name) == subject:
                cells = (row["id"], f"`{_cut(row['command'])}`", row["status"], _cut(row["read"]), result)
                lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cut(text: str) -> str:
    """A cell's text without folders of this machine, printable and not too long."""
    text = re.sub(r"/\S*?/pytest-\d+/(popen-gw\d+/)?[\w-]+", "<folder>", text)
    text = re.sub(r"/\S*?/site-packages(?=/)", "<site-packages>", text).replace(str(Path.home()), "<home>")
    text = "".join(letter if letter.isprintable() else "�" for letter in text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _subject(name: str) -> str:
    return name.split("::")[0].rpartition("/")[2].removeprefix("test_").removesuffix(".py")
