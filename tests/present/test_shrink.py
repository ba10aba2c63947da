"""Pages and cards of smaller models, against rows put together by hand."""

import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from reporting.finished_runs import make_run

from bertsecrets.data.task import Task
from bertsecrets.patterns.measure import Patterns
from bertsecrets.present.shrink import answer_in_words, frontier_table, summary_in_words
from bertsecrets.pruning.rows import Attempt, Group, Layer, MetricTest, Shrinking, ShrinkSearch, Shrunk, Smaller, Timing
from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Run
from bertsecrets.shrinking.analysis import shrink_card

SEARCH = ShrinkSearch(
    margin=0.01,
    class_margin=None,
    confidence=0.95,
    number=2,
    level=1 - 0.05 * 2 / 9,
    counted=True,
    examples=400,
    choosing=1024,
    parameters=20_000_000,
    length=12,
    device="cpu",
    threads=1,
    onnx=False,
    taught_on=0,
    epochs=0,
    heads=4,
    neurons=48,
    batch_size=8,
    fixed=3.0,
    processor="x86",
)


def attempt(passes: bool, place: int = 0, needed: float | None = None, **facts: object) -> Smaller:
    """Twice as fast, with half a point of accuracy less, and four points less in one class."""
    bound = 0.008 if passes else 0.0194
    made = Attempt(place, 2.0, False, 2.1, False, 10_000_000, 2, passes, None, passes)
    p = 0.01 if passes else 0.3
    return Smaller(
        replace(made, **facts),
        [MetricTest(place, "accuracy", 0.9, 0.895, bound, 0.001, bound + 0.006, p, needed, 5, 3)],
        [Timing(place, size, 30.0, 15.0, 14.0, 16.0) for size in (1, 8)],
        [Layer(place, 0, "0", 10), Layer(place, 1, "0 1", 20)],
        [
            Group(place, "class", "class no", 50, 0.9, 0.86, Estimate(-0.04, -0.12, 0.03)),
            Group(place, "length", "up to 9 tokens", 50, 0.9, 0.9, Estimate(0.0, -0.1, 0.1)),
        ],
    )


SHRUNK = Shrunk(SEARCH, [attempt(True), attempt(False, 1)])


def test_the_card_says_what_was_tested_and_what_loads_the_model() -> None:
    task = Task.read("task", {"name": "sst2", "metrics": ["accuracy"], "texts": 1, "labels": ["negative", "positive"]})
    card = shrink_card(SHRUNK, "mine", task)
    data = ModelCard(card).data
    assert (data.library_name, data.tags) == ("bertsecrets", ["bertsecrets", "pruned"])
    assert [(result.metric_type, result.metric_value) for result in data.eval_results] == [("accuracy", 0.895)]
    assert f"{summary_in_words(SHRUNK)} {answer_in_words(SHRUNK)}" in card
    assert "load_pruned(folder)" in card
    assert "| 2.00 | accuracy | 0.900 | 0.895 | 0.8 | 0.010 |" in card
    assert "onnx" not in card
    assert "this one is tested at 98.89 %." in card
    assert "| class no | 50 | 0.900 | 0.860 | −4.0 (−12.0 to 3.0) |" in card
    failed = shrink_card(Shrunk(SEARCH, [attempt(False)]), "mine", task)
    assert "No smaller model passed" in failed
    assert "load_pruned(folder)" in failed
    assert 'f"{folder}/model.onnx"' in shrink_card(replace(SHRUNK, search=replace(SEARCH, onnx=True)), "mine", task)
    int8 = attempt(True, 1, int8=True, predicted=None)
    quantised = shrink_card(replace(SHRUNK, attempts=[attempt(True), int8]), "mine", task)
    # What is praised comes first in the usage.
    assert 0 < quantised.index("model.int8.onnx") < quantised.index("load_pruned(folder)")
    assert "| 2.00, int8 | accuracy |" in quantised


def test_the_summary_names_speed_score_and_what_is_ruled_out_and_the_answer_the_rest() -> None:
    assert summary_in_words(SHRUNK) == (
        "2.0 times as fast, accuracy 0.900 → 0.895: a loss of 1.0 point or more is ruled out; class no loses most, 0.900 "
        "→ 0.860, −4.0 points (−12.0 to 3.0)."
    )
    assert answer_in_words(SHRUNK) == (
        "A model with 3 of 8 heads and 31 % of the neurons, refitted after the cut, is 2.00 times as fast at batch 8 "
        "(30.0 → 15.0 ms) and 2.00 times at batch 1, tested at 95 % confidence on 400 examples."
    )
    failed = Shrunk(SEARCH, [attempt(False, needed=900.0)])
    assert "a loss of 1.0 point or more is not ruled out (one above 2.0 is)" in summary_in_words(failed)
    assert answer_in_words(failed) == (
        "No smaller model passed; about 900 examples would be enough if the loss stays as observed."
    )


def test_a_missed_target_is_said_in_the_title_and_does_not_hold() -> None:
    missed = attempt(True, asked=2.5, missed=True)
    shrunk = Shrunk(SEARCH, [missed])
    assert summary_in_words(shrunk).startswith("2.00 in place of 2.5 times as fast, accuracy 0.900 → 0.895: ")
    assert answer_in_words(shrunk).startswith("No smaller model passed")
    assert shrunk.folder == "shrunk_failed"
    assert [row[-1] for row in frontier_table(shrunk).rows] == ["no"]
    # A slower model that holds is taken, and the target is still said to be missed.
    both = Shrunk(SEARCH, [attempt(True), missed])
    assert summary_in_words(both).endswith("; 2.5 times was missed (2.00).")
    assert (both.folder, both.fastest) == ("shrunk", attempt(True))


def test_a_class_that_fails_refuses_the_model_in_words() -> None:
    refused = attempt(True, class_ruled_out=False, passed=False)
    shrunk = Shrunk(replace(SEARCH, class_margin=0.05), [refused])
    assert (
        "a loss of 1.0 point or more is ruled out, one of 5.0 points of accuracy within a class is not; class no loses"
        in summary_in_words(shrunk)
    )


def analysis_of(folder: Path, shrunk: Shrunk) -> Run:
    """The folder of a search with this outcome."""
    make_run(
        folder,
        constant=0.6,
        measured=[
            ("checkpoint", Patterns.name, {column.name: np.full((2, 4), 0.2) for column in Patterns.columns}),
            ("checkpoint", Shrinking.name, {"kept": [[1, 0, 0, 0], [1, 1, 0, 0]]}),
        ],
        checkpoint="/runs/it's mine",
        trained={"folder": "/runs/it's mine", "name": "mine", "init": "pretrained"},
        shrink={"max_loss": 1.5, "speedup": [2.0, 3.0], "export": ["onnx"]},
    )
    run = Run.open(folder)
    run.declare(Shrinking().declaration())
    rows = [row for smaller in shrunk.attempts for row in smaller.rows]
    run.write_rows(Shrinking.name, "checkpoint", 0, [shrunk.search, *rows])
    return run


def test_a_page_opens_with_the_frontier_and_the_commands_of_its_points(tmp_path: Path) -> None:
    shrunk = Shrunk(SEARCH, [attempt(True), attempt(False, 1, asked=3.0)])
    report = report_run(analysis_of(tmp_path / "run", shrunk), 4).report
    assert report.overview is None
    assert report.answer == f"{answer_in_words(shrunk)} It is in the folder shrunk, with a model card."
    [axes] = report.picture.figure.axes
    # The whole model, the model that is taken, and the one that failed; change of score in points.
    assert axes.lines[0].get_xydata().tolist() == [[1.0, 0.0], [2.0, pytest.approx(-0.5)], [2.0, pytest.approx(-0.5)]]
    assert [line.get_label() for line in axes.lines].count("taken") == 1
    notes = " ".join(" ".join(text.get_text() for text in report.picture.figure.texts).split())
    assert "the majority baseline (accuracy 0.600, −30.0 points)" in notes
    frontier, cut, roles, patterns = report.sections[:4]
    assert (roles.title, patterns.title) == ("Which heads were kept", Patterns.title)
    # Quoted for Hydra, and then for the shell.
    of_search = "python -m bertsecrets analyze checkpoint=" + shlex.quote('"/runs/it\'s mine"')
    assert list(frontier.commands) == [
        f"{of_search} shrink.speedup=2 shrink.max_loss=1.5 shrink.export='[onnx]'",
        f"{of_search} shrink.speedup=3 shrink.max_loss=2.6 shrink.export='[onnx]'",
    ]
    assert report.next_steps[0].command.startswith(f"{of_search} shrink.speedup=2.5 ")
    assert "shrink.export='[int8]'" in report.next_steps[1].command
    assert cut.findings == [
        "Layer 1 keeps the most (2 of 4 heads, 42 % of the neurons), layer 0 the least (1 of 4 heads, 21 % of the neurons)."
    ]
    assert [row[:2] for row in cut.tables[0].rows] == [["0", "0"], ["1", "0 1"]]


@pytest.mark.parametrize(("epochs", "first"), [(0, "shrink.speedup='[2,3]' "), (1, "shrink.speedup=1.5 ")])
def test_a_model_that_failed_untaught_is_to_be_taught(tmp_path: Path, epochs: int, first: str) -> None:
    shrunk = Shrunk(replace(SEARCH, epochs=epochs), [attempt(False)])
    report = report_run(analysis_of(tmp_path / "run", shrunk), 4).report
    assert report.answer.endswith("It is in the folder shrunk_failed, with a model card.")
    assert first in report.next_steps[0].command


def test_an_undefined_score_gives_no_margin_to_ask_for(tmp_path: Path) -> None:
    failed = attempt(False)
    undefined = replace(failed, tests=[replace(failed.tests[0], bound=math.nan, bound_later=math.nan)])
    report = report_run(analysis_of(tmp_path / "run", Shrunk(SEARCH, [undefined])), 4).report
    assert "shrink.max_loss=1.5 " in report.sections[0].commands[0]
