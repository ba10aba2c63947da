"""The tables of tried versions and of costs in the documentation are those of the stored outcomes; the lowest versions are those promised."""

import json
import re
from pathlib import Path

from benchmarks import disabling_modes, scale, screened
from tools.versions import DOCUMENT, SHOWN, STORED, page

ROOT = Path(__file__).resolve().parent.parent


def test_the_table_shows_the_stored_outcomes() -> None:
    rows = json.loads(STORED.read_text("utf-8"))
    assert page(rows) == DOCUMENT.read_text("utf-8")
    assert page(rows[1:]) != DOCUMENT.read_text("utf-8")


def test_the_documentation_shows_the_stored_costs() -> None:
    stored = json.loads(scale.RESULTS.read_text("utf-8"))
    assert scale.page(stored) == scale.DOCUMENT.read_text("utf-8")
    stored["rows"]["1000"]["training"]["seconds"] += 10
    assert scale.page(stored) != scale.DOCUMENT.read_text("utf-8")
    seconds_of_pair, bytes_of_pair = scale.per_pair(stored["judged"])
    words = f"about {bytes_of_pair:.0f} bytes and {1e6 * seconds_of_pair:.0f} µs for each row and variant"
    assert words in scale.DOCUMENT.read_text("utf-8")
    seconds = [f"{cost['comparison']['seconds']:.0f}" for cost in stored["runs"].values()]
    sentence = f"takes {', '.join(seconds[:-1])} and {seconds[-1]} s of processor time"
    assert sentence in (ROOT / "docs" / "sweeps.md").read_text("utf-8")


def test_the_documentation_shows_the_stored_verdicts_of_each_mode() -> None:
    stored = json.loads(disabling_modes.RESULTS.read_text("utf-8"))
    text = disabling_modes.DOCUMENT.read_text("utf-8")
    assert disabling_modes.page(stored) == text
    differing = [of["other"] for mode, of in stored.items() if mode != "uniform"]
    heads = sum(stored["uniform"]["verdicts"].values())
    assert f"on {min(differing)} to {max(differing)} of {heads} heads differs from that with `uniform`" in text
    stored["mean"]["verdicts"]["dispensable"] += 1
    assert disabling_modes.page(stored) != text


def test_the_documentation_shows_the_stored_screened_sweeps() -> None:
    stored = json.loads(screened.RESULTS.read_text("utf-8"))
    assert screened.page(stored) == screened.DOCUMENT.read_text("utf-8")
    for sizes in stored["replayed"].values():
        for row in sizes.values():
            # What the page promises: no sweep spares a head that an exact one does not.
            assert not any(row["sweeps"]["falsely_spared"])


def test_the_lowest_versions_that_ran_are_those_that_are_promised() -> None:
    rows = json.loads(STORED.read_text("utf-8"))
    (lowest,) = (row["packages"] for row in rows if row["set"] == "lowest")
    promised = dict(re.findall(r'"([\w-]+)>=([\d.]+)', (ROOT / "pyproject.toml").read_text("utf-8")))
    assert {name: padded(lowest[name]) for name in SHOWN} == {name: padded(promised[name]) for name in SHOWN}


def padded(version: str) -> list[int]:
    """A version's first three numbers: 2.6 is 2.6.0."""
    return [int(part) for part in [*version.split("."), "0", "0"][:3]]
