"""The first screen of a run's page in a browser: what it holds, what fits, and texts and tables that are out of the
ordinary.
"""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from present.test_report import CHROMIUM, add_probe, attention, browse
from reporting.test_run_report import trained

from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import TellingExample, write_telling
from bertsecrets.results.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, Chrome or chromium-browser on the path"),
]

PROBE = """
// Headless Chromium takes the bars of a window that it does not draw off its height: screens are 800 pixels high here.
const seen = {};
const bottom = (selector) => Math.max(...[...document.querySelectorAll(selector)].map((box) => box.getBoundingClientRect().bottom), 0);
const heads = [...document.querySelectorAll("button[data-head]")];
const table = document.querySelector("table.heads");
heads.at(-1).click();
setTimeout(() => {
  seen.heads = heads.length;
  seen.name = document.querySelector("[data-name]").textContent;
  seen.about = document.querySelector("[data-about]").textContent;
  seen.sideways = document.documentElement.scrollWidth - innerWidth;
  seen.grid = Math.round(table.getBoundingClientRect().right - table.parentElement.getBoundingClientRect().right);
  seen.tokens = [...document.querySelectorAll("[data-map] text")].map((text) => text.textContent);
  seen.below = Math.round(Math.max(bottom(".steps-next li"), bottom("[data-answers]")) - 800);
  seen.screens = document.documentElement.scrollHeight / 800;
  seen.words = document.body.innerText.trim().split(/\\s+/).length;
  seen.clipped = [...table.querySelectorAll("tbody td")].filter((td) => td.scrollWidth > td.clientWidth + 1).length;
  const centre = (box) => box.getBoundingClientRect().top + box.getBoundingClientRect().height / 2;
  seen.labels = Math.max(...[...table.tBodies[0].rows].map((row) => Math.abs(centre(row.cells[0]) - centre(row.cells[1]))));
  document.body.dataset.seen = JSON.stringify(seen);
}, 1500);
"""


def look(run: Run, tmp_path: Path, width: int) -> dict[str, object]:
    """What a reader of the run's page sees in a window of a width, after a click on the last head."""
    report_run(run, heads=2, figures=5).write(run)
    add_probe(run.report_path, PROBE)
    options = [f"--window-size={width},800", "--virtual-time-budget=6000", "--dump-dom"]
    done = browse(run.report_path, tmp_path / "profile", *options)
    assert not re.search(r"ERROR:CONSOLE|Uncaught", done.stderr), done.stderr
    match = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert match is not None
    return dict(json.loads(unescape(match[1])))


def effects(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).normal(-0.01, 0.02, shape)


def ordinary(folder: Path) -> Run:
    """A run of 72 heads with drift, effects and a telling example of twenty tokens for each head."""
    delta_LH = effects((6, 12))
    run = trained(
        folder,
        cosine_LH=1 - np.abs(delta_LH),
        delta_LH=delta_LH,
        significant_LH=delta_LH < -0.03,
        dispensable_LH=delta_LH > 0,
    )
    telling(run, [f"word{i}" for i in range(20)], (6, 12))
    return run


def telling(run: Run, tokens: list[str], shape: tuple[int, int]) -> None:
    attention_QK = attention(len(tokens))[0, 0]
    answers = [("positive", 0.9, 0.2), ("negative", 0.1, 0.8)]
    one = TellingExample(tokens, "positive", answers, attention_QK)
    write_telling(run.folder / "ablation", dict.fromkeys(np.ndindex(shape), one))


def test_the_first_screen_holds_the_answer_the_head_and_the_next_commands(tmp_path: Path) -> None:
    # A long path wraps the commands.
    with TemporaryDirectory() as folder:
        seen = look(ordinary(Path(folder) / "run"), tmp_path, 1300)
    assert seen["heads"] == 72
    assert seen["name"] == "layer 5 · head 11"
    assert len(seen["tokens"]) == 40  # type: ignore[arg-type]
    assert seen["sideways"] <= 0  # type: ignore[operator]
    assert seen["below"] <= 0, "all commands and both answers lie on the first screen"  # type: ignore[operator]
    assert seen["labels"] < 2, "labels of layers stand in the middle of their rows"  # type: ignore[operator]
    assert seen["screens"] <= 4  # type: ignore[operator]
    assert seen["words"] <= 700  # type: ignore[operator]


def test_a_narrow_phone_shows_the_whole_grid(tmp_path: Path) -> None:
    seen = look(ordinary(tmp_path / "run"), tmp_path, 390)
    assert seen["sideways"] <= 0  # type: ignore[operator]
    assert seen["grid"] <= 0  # type: ignore[operator]
    assert seen["clipped"] == 0


def of_metric(folder: Path, metric: str, delta_LH: np.ndarray) -> Run:
    run = trained(folder, delta_LH=delta_LH)
    rows = [{**row, "metric": metric} for row in run.ablation_table().rows()]
    AblationTable.from_rows(rows).write(run.ablation_path)
    return run


def strange(folder: Path) -> Run:
    run = trained(folder, delta_LH=effects((2, 3)))
    telling(run, ["[CLS]", "שלום", "مرحبا", "👩‍👩‍👧", "x" * 200, "<b>&amp;", "[SEP]"], (2, 3))
    return run


RUNS: dict[str, tuple[int, Callable[[Path], Run]]] = {
    "no disabling table": (6, lambda folder: trained(folder, cosine_LH=1 - np.abs(effects((2, 3))))),
    "regression": (6, lambda folder: of_metric(folder, "pearson", effects((2, 3)))),
    "undefined for a head": (
        6,
        lambda folder: of_metric(folder, "matthews", np.array([[0.1, -0.1, 0], [0, 0, np.nan]])),
    ),
    "undefined for all heads": (6, lambda folder: of_metric(folder, "matthews", np.full((2, 3), np.nan))),
    "24 x 16 heads": (384, lambda folder: trained(folder, delta_LH=effects((24, 16)))),
    "32 x 32 heads": (1024, lambda folder: trained(folder, delta_LH=effects((32, 32)))),
    "strange tokens": (6, strange),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_page_out_of_the_ordinary_can_be_read_on_a_phone(name: str, tmp_path: Path) -> None:
    heads, make = RUNS[name]
    seen = look(make(tmp_path / "run"), tmp_path, 390)
    assert seen["heads"] == heads
    assert seen["about"]
    assert "NaN" not in str(seen["about"])
    assert "undefined" in str(seen["about"]) or not name.startswith("undefined")
    assert seen["sideways"] <= 0  # type: ignore[operator]
    if name == "strange tokens":
        assert max(len(token) for token in seen["tokens"]) <= 12  # type: ignore[attr-defined]
        assert {"שלום", "👩‍👩‍👧", "<b>&amp;"} <= set(seen["tokens"])  # type: ignore[call-overload]
