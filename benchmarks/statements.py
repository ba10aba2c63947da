"""Put the verdicts of a ledger into docs/statements.md: the tables between its marks are made from stored results.

python benchmarks/statements.py [<folder of the page>] [--before <claims.md>]

The folder is that of ``statements.html``, which ``python -m bertsecrets compare runs=[...] paper=statements`` prints: its verdicts replace
benchmarks/results/statements.json. With the Markdown that an earlier version made of the same runs (``paper=claims``), its verdicts are
stored beside them, and those that changed are listed with the reason of benchmarks/statement_changes.yaml. Without arguments the
tables are made again from the stored results.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bertsecrets.papers.ledger import STORED
from bertsecrets.papers.statements.judge import VERDICTS
from bertsecrets.papers.statements.statement import Statement, read_statements
from bertsecrets.papers.statements.test import interval_in_words

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "statements.md"
RESULTS = ROOT / "benchmarks" / "results" / STORED
CHANGES = ROOT / "benchmarks" / "statement_changes.yaml"

_OF_THIS_MODEL = " of this model"


def rendered(stored: Mapping[str, Any]) -> dict[str, str]:
    """The tables by their marks; statements without a number are left out."""
    statements = {statement.name: statement for statement in read_statements()}
    lines = ["| statement | verdict | here (95 % interval; seeds) | published | source |", "|---|---|---|---|---|"]
    lines += [
        _row(statements[name], result) for name, result in sorted(stored["statements"].items()) if result["subjects"]
    ]
    return {"the ledger": "\n".join(lines), "what changed": "\n".join(_changes(stored))}


def _row(statement: Statement, result: Mapping[str, Any]) -> str:
    by_verdict: dict[str, list[str]] = {}
    numbers = []
    for subject, cell in result["subjects"].items():
        by_verdict.setdefault(cell["verdict"], []).append(subject)
        value, low, high = (float("nan") if cell[key] is None else cell[key] for key in ("value", "low", "high"))
        numbers.append(f"{subject}: {interval_in_words(value, low, high)}; {cell['seeds']}")
    verdict = "; ".join(
        f"{verdict} ({', '.join(by_verdict[verdict])})" for verdict in VERDICTS if verdict in by_verdict
    )
    words = f"{statement.statement} (`{statement.name}`)<br>{statement.words}"
    cells = (words, verdict if len(by_verdict) > 1 else next(iter(by_verdict)))
    return f"| {' | '.join((*cells, '<br>'.join(numbers), statement.published, statement.source))} |"


def _changes(stored: Mapping[str, Any]) -> list[str]:
    """What changed in the tests, then each verdict that changed on identical runs."""
    reasons = yaml.safe_load(CHANGES.read_text("utf-8"))
    lines = ["| statement | before | now |", "|---|---|---|"]
    lines += [f"| {reason['what']} | {reason['before']} | {reason['now']} |" for reason in reasons]
    if "identical" not in stored:
        return lines
    by_name = {name: reason["what"] for reason in reasons for name in reason.get("names", ())}
    changed = {name: verdicts for name, verdicts in stored["identical"].items() if len(set(verdicts)) > 1}
    lines += [
        "",
        f"On identical runs, {len(changed) or 'none'} of the {len(stored['identical'])} statements that both versions judge "
        "has another verdict, apart from *of this model*.",
    ]
    if changed:
        lines += ["", "| statement | before | now | why |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {before} | {now} | {by_name.get(name, 'p-values are corrected over other statements')} |"
            for name, (before, now) in changed.items()
        ]
    return lines


def identical(stored: Mapping[str, Any], markdown: str) -> dict[str, tuple[str, str]]:
    """Statement -> its verdicts in the Markdown of a ledger and in stored results of the same runs, where both have some.

    That one seed speaks of its model alone concerns every statement, and is left out.
    """
    before = verdicts_before(markdown)
    both = {}
    for name, result in sorted(stored["statements"].items()):
        verdicts = {cell["verdict"].removesuffix(_OF_THIS_MODEL) for cell in result["subjects"].values()}
        if verdicts and name in before:
            both[name] = (before[name], "; ".join(verdict for verdict in VERDICTS if verdict in verdicts))
    return both


def verdicts_before(markdown: str) -> dict[str, str]:
    """Statement -> its verdicts in the Markdown of a ledger, without the subjects that have them.

    >>> verdicts_before("| It is so. (`a`) | holds (mrpc); cannot be told (rte) | 1 | 2 | x |")
    {'a': 'holds; cannot be told'}
    """
    rows = re.findall(r"^\| .*?\(`(\w+)`\) \| ([^|]+?) \|", markdown, re.MULTILINE)
    return {name: re.sub(r" \([^)]*\)", "", verdicts) for name, verdicts in rows}


def replaced(text: str, tables: Mapping[str, str]) -> str:
    """A document with other tables between its marks."""
    for name, table in tables.items():
        begin, end = (f"<!-- {word}: {name} -->" for word in ("begin", "end"))
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--before", type=Path)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        stored = json.loads((arguments.folder / STORED).read_text("utf-8"))
        if arguments.before is not None:
            stored["identical"] = identical(stored, arguments.before.read_text("utf-8"))
        RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False), "utf-8")
    tables = rendered(json.loads(RESULTS.read_text("utf-8")))
    DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), tables), "utf-8")
    print(f"Wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
