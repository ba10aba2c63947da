"""The first screen of a run's page in a browser: what it holds, what fits, and texts and tables that are out of the
ordinary.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from browser import in_browser, seen
from present.test_report import attention
from reporting.test_run_report import trained

from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import TellingExample, write_telling
from bertsecrets.results.run import Run

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


def look(run: Run, width: int) -> dict[str, Any]:
    """What a reader of the run's page sees in a window of a width, after a click on the last head."""
    report_run(run, heads=2, figures=5).write(run)
    return seen(run.report_path, PROBE, window=f"{width},800")


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


@in_browser
def test_the_first_screen_holds_the_answer_the_head_and_the_next_commands() -> None:
    # In a long path the commands would wrap.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = look(ordinary(Path(folder) / "run"), 1300)
    assert found["heads"] == 72
    assert found["name"] == "layer 5 · head 11"
    assert len(found["tokens"]) == 40
    assert found["sideways"] <= 0
    assert found["below"] <= 0, "all commands and both answers lie on the first screen"
    assert found["labels"] < 2, "labels of layers stand in the middle of their rows"
    assert found["screens"] <= 4
    assert found["words"] <= 700


@in_browser
def test_a_narrow_phone_shows_the_whole_grid(tmp_path: Path) -> None:
    found = look(ordinary(tmp_path / "run"), 390)
    assert found["sideways"] <= 0
    assert found["grid"] <= 0
    assert found["clipped"] == 0


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


@in_browser
@pytest.mark.parametrize("name", RUNS)
def test_a_page_out_of_the_ordinary_can_be_read_on_a_phone(name: str, tmp_path: Path) -> None:
    heads, make = RUNS[name]
    found = look(make(tmp_path / "run"), 390)
    assert found["heads"] == heads
    assert found["about"]
    assert "NaN" not in str(found["about"])
    assert "undefined" in str(found["about"]) or not name.startswith("undefined")
    assert found["sideways"] <= 0
    if name == "strange tokens":
        assert max(len(token) for token in found["tokens"]) <= 12
        assert {"שלום", "👩‍👩‍👧", "<b>&amp;"} <= set(found["tokens"])
