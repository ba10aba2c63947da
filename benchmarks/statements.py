"""Put the verdicts of a ledger into docs/statements.md: the table between its two marks is made from the stored results.

python benchmarks/statements.py [<folder of the page>]

The folder is that of ``statements.html``, which ``python -m bertsecrets compare runs=[...] paper=statements`` prints: its verdicts replace
benchmarks/results/statements.json. Without a folder the table is made again from that file.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsecrets.papers.ledger import STORED
from bertsecrets.papers.statements.judge import VERDICTS
from bertsecrets.papers.statements.statement import Statement, read_statements
from bertsecrets.papers.statements.test import interval_in_words

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "statements.md"
RESULTS = ROOT / "benchmarks" / "results" / STORED
BEGIN, END = "<!-- begin: the ledger -->", "<!-- end: the ledger -->"


def rendered(stored: Mapping[str, Any]) -> str:
    """The table of stored verdicts; statements without a number are left out."""
    lines = ["| statement | verdict | here (95 % interval; seeds) | published | source |", "|---|---|---|---|---|"]
    statements = {statement.name: statement for statement in read_statements()}
    for name, result in sorted(stored["statements"].items()):
        if result["subjects"]:
            lines.append(_row(statements[name], result))
    return "\n".join(lines)


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
    cells = (
        f"{statement.statement} (`{statement.name}`)<br>{statement.words}",
        verdict if len(by_verdict) > 1 else next(iter(by_verdict)),
    )
    return f"| {' | '.join((*cells, '<br>'.join(numbers), statement.published, statement.source))} |"


def replaced(text: str, table: str) -> str:
    """A document with another table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    folder = parser.parse_args().folder
    if folder is not None:
        RESULTS.write_text((folder / STORED).read_text("utf-8"), "utf-8")
    table = rendered(json.loads(RESULTS.read_text("utf-8")))
    DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), table), "utf-8")
    print(f"Wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
