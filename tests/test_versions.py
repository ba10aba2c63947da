"""The table of tried versions in the documentation is that of the stored outcomes, and its lowest row is what pyproject.toml promises."""

import json
import re
from pathlib import Path

from tools.versions import SHOWN, STORED, table

ROOT = Path(__file__).resolve().parent.parent


def test_the_table_shows_the_stored_outcomes() -> None:
    assert table(json.loads(STORED.read_text("utf-8"))) in (ROOT / "docs" / "develop.md").read_text("utf-8")


def test_the_lowest_versions_that_ran_are_those_that_are_promised() -> None:
    rows = json.loads(STORED.read_text("utf-8"))
    (lowest,) = (row["packages"] for row in rows if row["set"] == "lowest")
    promised = dict(re.findall(r'"([\w-]+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text("utf-8")))
    assert {name: padded(lowest[name]) for name in SHOWN} == {name: padded(promised[name]) for name in SHOWN}


def padded(version: str) -> list[int]:
    """A version's first three numbers: 2.6 is 2.6.0."""
    return [int(part) for part in [*version.split("."), "0", "0"][:3]]
