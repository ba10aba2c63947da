"""Put the tables of a statements ledger into docs/statements.md: the numbers between its two marks are replaced.

python benchmarks/statements.py <folder of the page>

The folder is that of ``statements.html``, which ``bertsecrets compare runs=[...] paper=statements`` prints.
"""

import argparse
from pathlib import Path

from bertsecrets.papers.statements.page import MARKDOWN

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "statements.md"
BEGIN, END = "<!-- begin: the ledger -->", "<!-- end: the ledger -->"


def replaced(text: str, ledger: str) -> str:
    """A document with other tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{ledger.strip()}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    ledger = (folder / MARKDOWN).read_text("utf-8")
    DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), ledger), "utf-8")
    print(f"Wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
