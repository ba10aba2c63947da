"""Verdicts in the documentation are those of the stored ledger."""

import json
import re
from pathlib import Path

import pytest
from scipy import stats

from benchmarks import statements
from benchmarks.papers import DOCUMENTS
from bertsecrets.papers.statements.judge import FAILS, HOLDS, UNTOLD, VERDICTS
from bertsecrets.papers.statements.statement import read_statements

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_shows_the_stored_verdicts() -> None:
    text = statements.DOCUMENT.read_text("utf-8")
    stored = json.loads(statements.RESULTS.read_text("utf-8"))
    assert statements.replaced(text, statements.rendered(stored)) == text
    # Every statement has numbers, or the reason why not.
    assert {statement.name for statement in read_statements()} == set(stored["statements"])
    assert all(bool(result["subjects"]) != bool(result["reason"]) for result in stored["statements"].values())
    # A verdict that is not the stored one is found.
    subjects = stored["statements"]["clark_sep_half"]["subjects"]
    next(iter(subjects.values()))["verdict"] = HOLDS
    assert statements.replaced(text, statements.rendered(stored)) != text


def test_a_number_that_settles_nothing_has_its_reason() -> None:
    """Beyond the threshold on the side that does not refute, or where noise may have taken it; nothing where the interval decides."""
    stored = json.loads(statements.RESULTS.read_text("utf-8"))
    for name in ("sandoval_fine_tuning", "kovaleva_heads_differ_by_task"):
        (cell,) = stored["statements"][name]["subjects"].values()
        cell["p_corrected"] = 0.01
    ledger = statements.rendered(stored)["the ledger"].splitlines()
    verdicts = {re.findall(r"`(\w+)`", row)[0]: row.split(" | ")[1] for row in ledger[2:]}
    by_name = {statement.name: statement for statement in read_statements()}
    reason = by_name["sandoval_fine_tuning"].one_sided
    assert (
        verdicts["sandoval_fine_tuning"] == f"cannot be told (below the threshold, but t{reason[1:].removesuffix('.')})"
    )
    assert verdicts["kovaleva_heads_differ_by_task"] == (
        "cannot be told (below the threshold, but noise lowers rank correlations)"
    )
    assert verdicts["voita_gates"] == "cannot be told"


def test_no_stored_verdict_on_tasks_rests_on_one_seed() -> None:
    stored = json.loads(statements.RESULTS.read_text("utf-8"))
    cells = [cell for result in stored["statements"].values() for cell in result["subjects"].values()]
    assert {cell["verdict"] for cell in cells} <= set(VERDICTS)
    assert all(cell["seeds"] > 1 for cell in cells if cell["verdict"] in (HOLDS, FAILS))


def test_no_other_page_tells_verdicts_in_prose() -> None:
    """A verdict on a statement stands in the table of stored ones alone; those on heads have the words of pages, not codes."""
    on_papers, on_heads = (r"does not hold|holds of this model|cannot be told", r"dispensable|inconclusive")
    # Names in code and quotes are not prose. The tables of the papers' pages are compared with stored ones elsewhere.
    codes = re.compile(r"```.*?```|`[^`\n]*`|“[^”]*”", re.DOTALL)
    rows = re.compile(r"^\|.*$", re.MULTILINE)
    found = set()
    for page in (ROOT / "docs").glob("*.md"):
        prose = codes.sub("", page.read_text("utf-8"))
        prose = rows.sub("", prose) if page.name in DOCUMENTS else prose
        words = on_heads if page.name == "statements.md" else f"{on_papers}|{on_heads}"
        found |= {(page.name, word) for word in re.findall(words, prose)}
    assert found == set()
    assert re.findall(on_heads, "dispensable heads")


def test_stored_numbers_are_corrected_by_family_and_counted_by_side() -> None:
    stored = json.loads(statements.RESULTS.read_text("utf-8"))["statements"]
    cells = [cell for result in stored.values() for cell in result["subjects"].values()]
    significant = []
    for family in ([c for c in cells if c["seeds"] > 1], [c for c in cells if c["seeds"] < 2]):
        adjusted = stats.false_discovery_control([cell["p"] for cell in family])
        assert [cell["p_corrected"] for cell in family] == pytest.approx(adjusted, rel=1e-4)
        significant.append(sum(adjusted <= 0.05))
        shown = [cell for cell in family if cell["verdict"] != UNTOLD]
        assert all(cell["p_corrected"] <= 0.05 for cell in shown)
    tally = statements.rendered({"models": [], "statements": stored})["the tally"]
    over, of_one = significant
    assert (
        f"up to {0.05 * over:.1f} of {over} significant numbers over seeds and {0.05 * of_one:.1f} of {of_one} of"
        in tally
    )
    one_sided = sum(bool(statement.one_sided) for statement in read_statements())
    assert f"Of {len(stored) - one_sided} published statements: " in tally
    assert f"Of {one_sided} more that a number can confirm but not refute: " in tally
