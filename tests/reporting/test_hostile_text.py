"""Text of a stranger's run is shown as text, on every page and on the terminal."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Page
from matplotlib.figure import Figure
from reporting.finished_runs import make_run
from rich.console import Console

from bertsecrets.cli.loggers import TRACKED, lineage
from bertsecrets.errors import UserError
from bertsecrets.grid import Column
from bertsecrets.papers.page import find_page
from bertsecrets.present.console import print_summary
from bertsecrets.present.report.content import FigureBlock
from bertsecrets.present.report.page import save_figures, write_report
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.run_report import report_run
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.captures import CapturedExample, step_name, write_examples, write_maps
from bertsecrets.results.run import Declaration, Run

HOSTILE = "</script><img src=x onerror=alert(1)><a href='javascript:alert(2)'>{{ 7 * 7 }}$\\frac{$[red]{%"
"""Ends a script, loads an image, names a link, and is a template, a formula and markup of the terminal at once."""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two finished runs in which every text is hostile."""
    sweep = tmp_path_factory.mktemp("sweep")
    for seed in (1, 2):
        folder = make_run(
            sweep / f"run{seed}",
            task=HOSTILE,
            seed=seed,
            cosine_LH=np.array([[0.9, 0.5], [0.4, 0.3]]) + 0.01 * seed,
            delta_LH=np.array([[0.02, -0.01], [-0.03, 0.0]]),
            measured=[("training", "theirs", {HOSTILE: np.array([[1.0, 2.0], [3.0, 4.0]])})],
            task_settings={"training": {"batch_size": HOSTILE}},
            trainer={"devices": 1, "max_epochs": HOSTILE},
            model={"name": HOSTILE, "path": HOSTILE},
            optimizer={"learning_rate": HOSTILE},
            name=HOSTILE,
            group=HOSTILE,
            tags=[HOSTILE],
        )
        scores = json.loads((folder / "scores.json").read_text())
        sets = {HOSTILE: scores["sets"]["val"]}
        (folder / "scores.json").write_text(json.dumps({**scores, "constant_answer": HOSTILE, "sets": sets}))
        run = Run.open(folder)
        run.declare(Declaration("theirs", HOSTILE, "elsewhere:Theirs", (Column(HOSTILE, HOSTILE, HOSTILE),)))
        write_examples(run.captures, [CapturedExample(0, [HOSTILE, "b"], [HOSTILE], HOSTILE)])
        for step in (0, 9):
            write_maps(run.captures, step_name(step), {0: torch.full((2, 2, 2, 2), 0.5)})
    return sweep


def pages(sweep: Path) -> Iterator[Path]:
    report = report_run(Run.open(sweep / "run1"), heads=2).report
    save_figures(report.figures, sweep / "figures")
    write_report(sweep / "report.html", report)
    yield sweep / "report.html"
    runs, _ = find_runs([str(sweep)])
    yield write_comparison(runs, [HOSTILE], sweep / "comparison", heads=True)
    yield find_page("kovaleva2019").write(runs, sweep / "paper")


def test_no_text_becomes_an_element_a_script_or_a_template(stranger: Path) -> None:
    for path in pages(stranger):
        page = Page(path)
        assert HOSTILE in page.text, path
        assert all(
            attributes.get("src", "data:").startswith("data:") for tag, attributes in page.elements if tag == "img"
        )
        for tag, attributes in page.elements:
            assert not [name for name in attributes if name.startswith("on")], (path, tag)
            assert not str(attributes.get("href", "")).startswith("javascript:"), (path, tag)
        assert "49$" not in page.text


def test_the_name_of_a_figure_does_not_leave_its_folder(tmp_path: Path) -> None:
    block = FigureBlock("../../up/x\0y", Figure(), "A caption", "A picture")
    save_figures([block], tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.rglob("*.*g")) == [".._.._up_x_y.png", ".._.._up_x_y.svg"]
    assert len(list((tmp_path / "a" / "b").iterdir())) == 2


def test_the_terminal_shows_text_as_it_is(stranger: Path) -> None:
    summary = report_run(Run.open(stranger / "run1"), heads=2)
    console = Console(record=True, width=400, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(console, summary.scores.lines(), summary.highlights, stranger / "run1" / "report.html")
    assert "[red]" in console.export_text()


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({"id": HOSTILE}), json.dumps({"id": "../../x"})])
def test_the_run_that_wandb_is_told_of_has_a_plain_name(tmp_path: Path, content: str) -> None:
    (tmp_path / TRACKED).write_text(content)
    with pytest.raises(UserError, match="delete or restore it"):
        lineage({"checkpoint": str(tmp_path)})
