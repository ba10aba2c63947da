"""The joint head table: a row for each head, on the page and as CSV."""

import csv
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from browser import in_browser, seen
from present.test_report import example
from reporting.finished_runs import make_run

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.measure import Patterns
from bertsecrets.present.report.content import HeadColumn, HeadsTogether, HeadViewer, Report, Section
from bertsecrets.present.report.page import write_report
from bertsecrets.reporting.run_report import heads_section, heads_together, report_run, views_of
from bertsecrets.results.run import Run
from bertsecrets.results.verdicts import WORDS

COSINE = np.array([[0.9, 0.8, np.nan], [0.6, 0.5, 0.4]])
ENTROPY = np.array([[1.5, 2.5, 3.5], [0.5, 0.25, 0.125]])


def column(name: str, label: str, value_LH: np.ndarray, experiment: str = "drift", title: str = "Drift") -> HeadColumn:
    return HeadColumn(experiment, title, name, label, value_LH)


def together(run: Run) -> HeadsTogether:
    joint = heads_together(views_of(run))
    assert joint is not None
    return joint


def test_every_number_of_the_head_table_is_in_the_csv_once(tmp_path: Path) -> None:
    make_run(tmp_path / "run", cosine_LH=COSINE, measured=[("training", "entropy", {"nats": ENTROPY})])
    run = Run.open(tmp_path / "run")
    together(run).write(run.folder)
    with (run.folder / "heads_together.csv").open(newline="") as file:
        rows = {(int(row["layer"]), int(row["head"])): row for row in csv.DictReader(file)}
    assert len(rows) == COSINE.size
    last: dict[tuple[str, str, int, int], float] = {}
    for row in sorted(pq.read_table(run.heads_path).to_pylist(), key=lambda row: row["step"]):
        if row["stage"] == "training" and row["head"] is not None:
            last[row["measure"], row["column"], row["layer"], row["head"]] = row["value"]
    compared = 0
    for (measure, name, layer, head), value in last.items():
        text = rows[layer, head].get(f"{measure}/{name}")
        if text is not None:
            compared += 1
            assert (text == "") if math.isnan(value) else (float(text) == value)
    assert compared >= 2 * COSINE.size


def test_the_page_shows_a_column_of_each_experiment_before_a_second_one() -> None:
    columns = [column(f"a{i}", f"a{i}", ENTROPY, "a", "A") for i in range(30)]
    columns += [column("b0", "b0", ENTROPY, "b", "B"), column("class", "class", np.full((2, 3), "x"), "b", "B")]
    shown = [one.key for one in HeadsTogether(columns).main]
    assert {"a/a0", "b/b0", "b/class"} <= set(shown)
    assert len(shown) == 10


def test_smaller_grids_leave_cells_undefined(tmp_path: Path) -> None:
    make_run(tmp_path / "run", cosine_LH=COSINE, measured=[("training", "entropy", {"nats": ENTROPY[:, :2]})])
    joint = together(Run.open(tmp_path / "run"))
    (entropy,) = [one for one in joint.columns if one.experiment == "entropy"]
    assert np.array_equal(entropy.value_LH[:, :2], ENTROPY[:, :2])
    assert entropy.texts[2] == "–"


def test_the_pattern_of_a_head_is_the_one_that_half_of_its_maps_show(tmp_path: Path) -> None:
    names = [one.name for one in Patterns.columns]
    share_LHC = np.zeros((1, 3, len(names)))
    share_LHC[0, 0, PATTERNS.index("vertical")] = 0.7
    share_LHC[0, 0, PATTERNS.index("block")] = 0.3
    share_LHC[0, 1, :3] = 1 / 3
    share_LHC[0, 2, names.index("uncertain")] = 1.0
    columns = {name: share_LHC[..., place] for place, name in enumerate(names)}
    make_run(tmp_path / "run", measured=[("training", "patterns", columns)])
    run = Run.open(tmp_path / "run")
    run.declare(Patterns.__new__(Patterns).declaration())
    (pattern,) = [one for one in together(run).columns if one.name == "pattern"]
    assert pattern.texts == ["vertical", "–", "–"]


def test_the_verdict_of_a_disabled_head_is_that_of_the_sweep(tmp_path: Path) -> None:
    delta_LH = np.array([[-0.1, 0.0], [0.1, -0.2]])
    make_run(tmp_path / "run", delta_LH=delta_LH, significant_LH=delta_LH < -0.05)
    (verdict,) = together(Run.open(tmp_path / "run")).columns
    rows = pq.read_table(tmp_path / "run" / "ablation.parquet").to_pylist()
    assert verdict.key == "ablation/verdict"
    assert verdict.texts == [row["verdict"] for row in sorted(rows, key=lambda row: (row["layer"], row["head"]))]
    assert set(verdict.texts) <= set(WORDS.values())
    assert len(set(verdict.texts)) > 1


def test_a_run_without_a_number_for_each_head_has_no_joint_table(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    assert report_run(Run.open(tmp_path / "run"), heads=2).heads is None


@in_browser
def test_a_reader_sorts_filters_and_opens_a_head(tmp_path: Path) -> None:
    columns = [
        column("cosine", "cosine", COSINE),
        column("nats", "entropy", ENTROPY, "entropy", "Entropy"),
        column(
            "pattern", "pattern", np.array([["block", "vertical", "–"], ["block", "–", "–"]]), "patterns", "Patterns"
        ),
    ]
    viewer = HeadViewer([example("maps", ["a", "b", "c"])], (0, 0))
    verdicts = {
        (1, 1): "needed",
        (0, 2): "inconclusive",
        (0, 0): "dispensable",
        (0, 1): "dispensable",
        (1, 2): "better",
    }
    report = Report("Heads", sections=[heads_section(HeadsTogether(columns), verdicts), Section("Maps", viewer=viewer)])
    path = tmp_path / "report.html"
    write_report(path, report)
    probe = """
    const heads = () => [...document.querySelectorAll(".joint tbody tr")].filter((row) => !row.hidden)
      .map((row) => `${row.dataset.layer}.${row.dataset.head}`).join(" ");
    const click = (key) => document.querySelector(`.joint th[data-key="${key}"] button`).click();
    const type = (text) => {
      const find = document.querySelector("[data-find]");
      find.value = text;
      find.dispatchEvent(new Event("input"));
    };
    const seen = {};
    const ready = () => document.querySelector(".viewer").dataset.state ? drive() : setTimeout(ready, 50);
    const drive = () => {
      seen.needed = heads();
      seen.verdict = document.querySelector(".joint tbody tr").cells[1].textContent;
      click("drift/cosine"); seen.falling = heads();
      click("drift/cosine"); seen.rising = heads();
      click("patterns/pattern"); seen.texts = heads();
      click("head"); seen.order = heads();
      type("cosine < 0.85, layer = 0"); seen.condition = heads();
      type("block"); seen.text = heads();
      type("entropy >= 2.5"); seen.entropy = heads();
      type("layer > 7"); seen.none = document.querySelector("[data-count]").textContent;
      type("cosin < 1, xyz < 1"); seen.unknown = document.querySelector("[data-count]").textContent;
      type("");
      document.querySelector(".joint fieldset input[value=Entropy]").click();
      seen.hidden = document.querySelector('.joint th[data-key="entropy/nats"]').hidden;
      // The viewer, which listens first, has followed the link by then.
      window.addEventListener("hashchange", finish, { once: true });
      document.querySelector('.joint tr[data-layer="1"][data-head="2"] a').click();
    };
    const finish = () => {
      seen.layer = document.querySelector("select[data-pick=layer]").value;
      seen.head = document.querySelector("select[data-pick=head]").value;
      seen.overflow = document.documentElement.scrollWidth > window.innerWidth;
      document.body.dataset.seen = JSON.stringify(seen);
    };
    // A viewer in a fold draws once the fold is opened and comes into sight.
    document.querySelector("#viewer").open = true;
    document.querySelector("#viewer").scrollIntoView();
    ready();
    """
    assert seen(path, probe, window="500,900") == {
        # The head without a verdict comes last.
        "needed": "1.1 0.2 0.0 0.1 1.2 1.0",
        "verdict": "needed",
        "none": "0 of 6 heads. No head matches.",
        "unknown": "0 of 6 heads. No heading contains \N{LEFT DOUBLE QUOTATION MARK}xyz\N{RIGHT DOUBLE QUOTATION MARK}.",
        "falling": "0.0 0.1 1.0 1.1 1.2 0.2",
        "rising": "1.2 1.1 1.0 0.1 0.0 0.2",
        "texts": "0.2 1.1 1.2 0.0 1.0 0.1",
        "order": "0.0 0.1 0.2 1.0 1.1 1.2",
        "condition": "0.1",
        "text": "0.0 1.0",
        "entropy": "0.1 0.2",
        "hidden": True,
        "layer": "1",
        "head": "2",
        "overflow": False,
    }
