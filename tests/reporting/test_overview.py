"""The first screen of a run's page."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from browser import Page, check_policy, in_browser, seen
from reporting.finished_runs import make_run
from reporting.test_run_report import captured, trained

from bertsecrets.ablation.judging import judged_rows
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.rows import ABLATION, Power, Swept, Together
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.data.task import Task
from bertsecrets.grid import Column, Shown
from bertsecrets.measures.offsets import Offsets
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Report, Section
from bertsecrets.present.report.viewer import overview_data
from bertsecrets.reporting.overview import DisabledHeads, next_steps
from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import CapturedExample, write_examples
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.files import copied
from bertsecrets.results.run import Declaration, Run

DELTA = np.array([[0.01, 0.0, -0.01], [-0.02, -0.03, -0.05]])
NEEDED = np.array([[False, False, False], [False, False, True]])
SPARED = np.array([[True, True, False], [False, False, False]])


def disabled(folder: Path, *, needed: bool, spared: bool, layers: str = "", **settings: Any) -> Run:
    """A run with effects of six heads, and of two whole layers with the verdicts whose first letters are given."""
    verdicts = {"significant_LH": NEEDED if needed else None, "dispensable_LH": SPARED if spared else None}
    run = Run.open(make_run(folder, delta_LH=DELTA, **verdicts, **settings))
    rows = [
        {**row, "low_simultaneous": row["delta"] - 0.012, "high_simultaneous": row["delta"] + 0.015}
        for row in run.ablation_table().rows()
    ]
    of_layers = [
        {
            **rows[0], "kind": "layer", "variant": f"l{layer:02d}", "layer": layer, "head": None,
            "verdict": {"n": "needed", "d": "dispensable"}[letter],
        }
        for layer, letter in enumerate(layers)
    ]  # fmt: skip
    AblationTable.from_rows([*rows, *of_layers]).write(run.ablation_path)
    return run


@pytest.mark.parametrize(
    ("needed", "spared", "layers", "title"),
    [
        (True, True, "", "Layer 1 · head 2 is needed (−5.0 points of accuracy, at least −3.5); each of the other 5 costs "
                         "at most 4.2."),
        (False, True, "nd", "2 of 6 heads each cost less than 1.0 point of accuracy; each of the other 4 costs at most "
                            "6.2; 1 of 2 whole layers is needed."),
        (False, True, "dd", "2 of 6 heads each cost less than 1.0 point of accuracy; each of the other 4 costs at most "
                            "6.2; each of 2 whole layers costs at most 0.2."),
        (True, False, "nn", "Layer 1 · head 2 is needed (−5.0 points of accuracy, at least −3.5); each of the other 5 "
                            "costs at most 4.2; 2 of 2 whole layers are needed."),
        (False, False, "dd", "Each of 6 heads costs at most 6.2 points of accuracy; each of 2 whole layers costs at most "
                             "0.2."),
        (False, False, "", "Each of 6 heads costs at most 6.2 points of accuracy."),
    ],
)  # fmt: skip
def test_the_title_is_the_answer(needed: bool, spared: bool, layers: str, title: str, tmp_path: Path) -> None:
    run = disabled(tmp_path / "run", needed=needed, spared=spared, layers=layers)
    assert DisabledHeads.of(run).title() == title


_CHEAP = "2 of 6 heads each cost less than 1.0 point of accuracy"
_IS_NEEDED = (
    "Layer 1 · head 2 is needed (−5.0 points of accuracy, at least −3.5); each of the other 5 costs at most 4.2"
)


@pytest.mark.parametrize(
    ("needed", "change", "title"),
    [
        (False, -0.2, f"{_CHEAP}, but 20.0 points together."),
        (False, -0.02, f"{_CHEAP}, and 2.0 points together (not significant)."),
        (False, -0.0001, f"{_CHEAP}, and nothing together."),
        (False, 0.06, f"{_CHEAP}, and add 6.0 points together."),
        (False, float("nan"), f"{_CHEAP}; each of the other 4 costs at most 6.2."),
        (True, -0.2, f"{_IS_NEEDED}; the 2 that can be spared cost 20.0 points together."),
        (True, -0.02, f"{_IS_NEEDED}."),
    ],
)
def test_the_title_says_what_the_spared_heads_cost_together(
    needed: bool, change: float, title: str, tmp_path: Path
) -> None:
    run = disabled(tmp_path / "run", needed=needed, spared=True)
    row = Together(
        "accuracy", "uniform", "0-0 0-1", 1.0, 0.8, 0.8 + change, Estimate(change, change - 0.05, change + 0.05)
    )
    run.write_rows(ABLATION, "training", 9, [row], mode="uniform")
    report = report_run(run, 6).report
    assert report.title == title
    if change != -0.2:
        return
    assert report.overview.notes[0] == (
        "Without all 2 heads that can be spared, accuracy is 0.600, −20.0 points (−25.0 to −15.0), on the examples that "
        "selected them; their single effects on accuracy add up to +1.0."
    )


def test_where_every_head_can_be_spared_the_title_says_all(tmp_path: Path) -> None:
    make_run(tmp_path / "run", delta_LH=DELTA, dispensable_LH=np.ones((2, 3), bool))
    effects = DisabledHeads.of(Run.open(tmp_path / "run"))
    assert effects.title() == "Each of 6 heads costs less than 1.0 point of accuracy."


def test_a_run_that_judged_some_heads_says_of_how_many(tmp_path: Path) -> None:
    run = disabled(tmp_path / "run", needed=False, spared=True)
    rows = [row for row in run.ablation_table().rows() if row["variant"] != "l01h00"]
    AblationTable.from_rows(rows).write(run.ablation_path)
    effects = DisabledHeads.of(run)
    assert effects.title().startswith("2 of the 5 heads tested each cost less than 1.0 point of accuracy; ")
    assert next_steps(run, effects)[0].settles.startswith("2 of the 5 heads tested can each be spared.")


def test_a_head_whose_loss_rises_says_so_where_its_score_does_not_fall(tmp_path: Path) -> None:
    run = disabled(tmp_path / "run", needed=False, spared=True)
    loss = {"loss_baseline": 0.1, "loss_low_simultaneous": 0.004, "loss_high_simultaneous": 0.06, "loss_change": 0.032}
    rows = [{**row, **loss, "p_loss_rise": 0.3 if row["head"] else 0.01} for row in run.ablation_table().rows()]
    AblationTable.from_rows(rows).write(run.ablation_path)
    screen = report_run(run, 6).report.overview
    assert "The mean loss rises significantly without it: +32 % (+4 to +60)." in screen.about[0, 0]
    assert not any("mean loss" in line for line in screen.about[0, 1])


def test_counts_are_shown_as_whole_numbers(tmp_path: Path) -> None:
    counts = {"removed": np.array([[7.0, 70.0], [14.0, 0.0]])}
    folder = make_run(tmp_path / "run", measured=[("training", "counted", counts)])
    screen = report_run(Run.open(folder), 6).report.overview
    assert screen.colourings[0].texts == [["7", "70"], ["14", "0"]]
    assert screen.about[0, 1][-1].endswith(" 70.")


def analysis_of(folder: Path, trained_folder: Path | None, **settings: Any) -> Run:
    """The run of an analysis; without a folder, of a model before fine-tuning."""
    trained = {"name": "analysed", "init": "pretrained"}
    if trained_folder is not None:
        trained["folder"] = str(trained_folder)
    return Run.open(make_run(folder, checkpoint=str(trained_folder or "initial"), trained=trained, **settings))


@pytest.mark.parametrize(
    ("drift", "compared", "leads"),
    [
        (False, ["initial"], True),
        (False, ["initial", "random"], True),
        # The first measure has an answer of its own.
        (True, ["initial"], False),
        (True, ["initial", "random"], False),
    ],
)
def test_an_analysis_that_compares_models_leads_with_what_changed(
    drift: bool, compared: list[str], leads: bool, tmp_path: Path
) -> None:
    before, delta = np.full((2, 3), 0.3), np.array([[0.1, 0.2, 0.0], [0.0, 0.0, 0.0]])
    stages = [("initial", before), ("checkpoint", before + delta), ("checkpoint-initial", delta)]
    cosines = [("checkpoint", "drift", {"cosine": 1 - before})] * drift
    measured = [*cosines, *((stage, "focus", {"share": grid_LH}) for stage, grid_LH in stages)]
    run = analysis_of(tmp_path / "run", None, measured=measured, compare_with=compared)
    report = report_run(run, heads=2)
    changed = (
        "Compared with the model before fine-tuning, 2 of 6 heads differ significantly in focus, most of all "
        "layer 0 · head 1"
    )
    screen = report.report.overview
    assert [report.report.title == f"{changed}.", screen.notes[0].startswith(changed)] == [leads] * 2
    assert report.printed[0].startswith(changed) == leads
    # Of a measure without an answer of its own the highest head comes after that.
    assert any("has the highest value" in line for line in report.printed[1:])
    difference = screen.colourings[0]
    assert (difference.label == "Focus: share, difference from before fine-tuning") == leads
    # Differences are drawn from the two ends of a scale around 0.
    assert overview_data(screen)["views"][0]["scale"] == ("change" if leads else "weight")
    if leads:
        assert difference.texts == [["+0.10", "+0.20", "0.00"], ["0.00", "0.00", "0.00"]]
        assert screen.start == (0, 1)
        assert screen.about[0, 1][0] == "Focus: share, difference from before fine-tuning +0.20."


@pytest.mark.parametrize(
    ("swept", "measure", "commands"),
    [
        (False, "entropy", ["analyze analysis=disable", "view"]),
        (False, "surface", ["analyze analysis=disable", "analyze measure=[entropy,patterns,offsets]", "view"]),
        (True, "surface", ["analyze analysis=prune", "analyze shrink.speedup=2", "view"]),
        (True, "pruning", ["analyze shrink.speedup=2", "analyze measure=[entropy,patterns,offsets]", "view"]),
    ],
)
def test_an_analysis_suggests_what_its_run_lacks(
    swept: bool, measure: str, commands: list[str], tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", delta_LH=DELTA if swept else None)
    measured = [("checkpoint", measure, {"x": np.ones((2, 3))})]
    run = analysis_of(tmp_path / "analysis", folder, measured=measured, task_settings={"labels": ["no", "yes"]})
    steps = next_steps(run, None, {measure})
    ends = [step.command.replace(f" checkpoint={folder}", "").split(" text=")[0] for step in steps]
    assert ends == [f"python -m bertsecrets {command}" for command in commands]


def test_a_run_that_pruned_its_heads_does_not_suggest_it(tmp_path: Path) -> None:
    run = disabled(tmp_path / "run", needed=False, spared=True)
    heads = DisabledHeads.of(run)
    ends = [next_steps(run, heads, held)[0].command.split()[-1] for held in ({"ablation"}, {"ablation", "pruning"})]
    assert ends == ["analysis=prune", "shrink.speedup=2"]


@pytest.mark.parametrize(
    ("examples", "swept", "limit", "settles", "command"),
    [
        (150.0, (100, 400), None, "About 150 examples would settle 80 % of them; the evaluation set has 400.",
         "analysis=disable ablation.max_examples=150"),
        (500.0, (100, 400), None, "About 500 examples would settle 80 % of them; the evaluation set has 400. More seeds, "
                                  "or a margin of 2.0 points?", "margin=2"),
        (500.0, None, None, "About 500 examples would settle 80 % of them; the evaluation set has 408. More seeds, or a "
                            "margin of 2.0 points?", "margin=2"),
        (500.0, None, 408, "About 500 examples would settle 80 % of them; this run took a sample of 408 "
                           "(data.limit_eval).", "analysis=disable data.limit_eval=null"),
        (None, None, 408, "More seeds, or a margin of 2.0 points?", "margin=2"),
    ],
)  # fmt: skip
def test_more_examples_are_offered_only_where_there_are_more(
    examples: float | None, swept: tuple[int, int] | None, limit: int | None, settles: str, command: str, tmp_path: Path
) -> None:
    run = disabled(tmp_path / "run", needed=False, spared=True, data={"limit_eval": limit})
    power = Power("uniform", "accuracy", 0.01, 4, 6, 408, examples, 9600, 0.5, None, None)
    rows = [power, *([Swept("uniform", "zero", *swept)] if swept else [])]
    run.write_rows(ABLATION, "training", 9, rows, mode="uniform")
    run = Run.open(tmp_path / "run")
    step = next_steps(run, DisabledHeads.of(run), ())[1]
    assert step.settles == f"4 heads have no verdict. {settles}"
    assert step.command.endswith(f" {command}")


def test_a_model_that_did_not_learn_is_not_made_smaller(tmp_path: Path) -> None:
    settings = {"task_settings": {"name": "demo_sentiment"}, "trainer": {"max_epochs": 3}}
    folder = make_run(tmp_path / "run", accuracy=0.68, p_constant=1.0, delta_LH=DELTA, **settings)
    commands = [step.command for step in report_run(Run.open(folder), heads=2).report.steps]
    assert commands == [
        "python -m bertsecrets train model=minilm task=demo_sentiment trainer.max_epochs=6",
        f"python -m bertsecrets analyze checkpoint={folder} measure=[entropy,patterns,offsets]",
        f'python -m bertsecrets view checkpoint={folder} text="The cat sat on the mat."',
    ]


def test_the_sentence_to_view_is_one_that_the_model_answers_right(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", delta_LH=DELTA)
    texts = {0: ["Short, wrong."], 1: ["It's a right one."], 2: ["A longer sentence, right as well."]}
    (folder / "captures").mkdir()
    write_examples(folder / "captures", [CapturedExample(index, [], each, "?") for index, each in texts.items()])
    (folder / "predictions").mkdir()
    columns = {"index": [0, 1, 2], "label": [1.0, 1.0, 0.0], "logit_0": [2.0, 0.0, 3.0], "logit_1": [0.0, 1.0, 1.0]}
    pq.write_table(pa.table(columns), folder / "predictions" / "val.parquet")
    *_, step = report_run(Run.open(folder), heads=2).report.steps
    assert step.command.endswith(f" text={copied(texts[1][0])}")


def test_before_fine_tuning_no_head_is_needed_for_an_answer(tmp_path: Path) -> None:
    run = analysis_of(tmp_path / "analysis", None, measured=[("checkpoint", "surface", {"x": np.ones((2, 3))})])
    commands = [step.command for step in report_run(run, heads=2).report.steps]
    assert commands == [
        "python -m bertsecrets train model=minilm",
        'python -m bertsecrets view model=minilm text="The cat sat on the mat."',
    ]


@pytest.mark.parametrize(
    ("measured", "start"),
    [
        # Its finding names the highest, though low entropy is what makes a head worth keeping.
        ([("checkpoint", "entropy", {"bits": np.array([[1.0, 2.0, 0.5], [3.0, 0.1, np.nan]])})], (1, 0)),
        # The most changed head has the lowest cosine.
        ([("checkpoint", "drift", {"cosine": np.array([[0.9, 0.8, 0.7], [0.6, 0.95, 0.99]])})], (1, 0)),
    ],
)
def test_an_analysis_opens_on_the_head_of_its_first_finding(
    measured: Any, start: tuple[int, int], tmp_path: Path
) -> None:
    run = analysis_of(tmp_path / "analysis", tmp_path, measured=measured)
    report = report_run(run, heads=2).report
    assert report.overview.start == start


@pytest.mark.parametrize(
    ("highest", "title"),
    [
        (0.97, "Layer 0 · head 1 gives 0.970 of its attention to the previous token."),
        (0.4, "Layer 0 · head 1 has the highest value of “previous token”, 0.400."),
    ],
)
def test_measures_open_with_what_a_head_does_rather_than_with_a_highest_number(
    highest: float, title: str, tmp_path: Path
) -> None:
    entropy = ("checkpoint", "entropy", {"bits": np.array([[1.0, 2.0, 0.5], [3.0, 0.1, 1.0]])})
    previous = np.array([[0.1, highest, 0.2], [0.1, 0.1, 0.1]])
    neighbours = {"previous": previous, "same": np.full((2, 3), 0.1), "next": np.full((2, 3), 0.1)}
    run = analysis_of(tmp_path / "run", None, measured=[entropy, ("checkpoint", "offsets", neighbours)])
    run.declare(Offsets(2, 3).declaration())
    assert report_run(run, heads=2).report.title == title


FINDING = "Layer 0 · head 1, chosen on other examples, answers best; next is layer 1 · head 2."
NAMED = Presenter(section=lambda view: Section("Named", [FINDING], head=(0, 1)))
"""An analysis whose answer is a head that no single column's extreme tells."""


def presented(run: Run, name: str, presenter: str) -> Report:
    """The page of a run with an analysis of this module's, shown by one of its presenters."""
    kind = f"{Here.__module__}:{Here.__name__}"
    columns, named = (Column("x", "x"),), f"{Here.__module__}:{presenter}"
    run.declare(Declaration(name, name.capitalize(), kind, columns, Shown(), named))
    return report_run(run, heads=2).report


class Here(Experiment):
    """A class of this module, which is imported, so that its presenters are used."""


def test_the_head_that_a_finding_names_is_selected(tmp_path: Path) -> None:
    run = analysis_of(tmp_path / "analysis", tmp_path, measured=[("checkpoint", "named", {"x": DELTA})])
    screen = presented(run, "named", "NAMED").overview
    assert screen.start == (0, 1)


SMALLER = Section("Smaller", ["It has 3 of 6 heads (half); one layer lost most."], summary="")
PLAIN = Presenter(section=lambda view: SMALLER)
ANSWERED = Presenter(section=lambda view: replace(SMALLER, summary="Twice as fast."))


@pytest.mark.parametrize(
    ("presenter", "title", "grid"), [("ANSWERED", "Twice as fast.", False), ("PLAIN", "It has 3 of 6 heads.", True)]
)
def test_an_analysis_opens_with_its_answer(presenter: str, title: str, grid: bool, tmp_path: Path) -> None:
    run = analysis_of(tmp_path / "analysis", tmp_path, measured=[("checkpoint", "smaller", {"x": np.ones((2, 3))})])
    report = presented(run, "smaller", presenter)
    assert (report.title, report.overview is not None) == (title, grid)
    scores = "On 408 examples: val/accuracy 0.800"
    assert (report.overview.summary if report.overview else report.notes[0]).startswith(scores)


def test_metrics_that_disagree_are_said_to(tmp_path: Path) -> None:
    run = disabled(tmp_path / "one", needed=True, spared=True)
    assert not any("disagree" in note for note in DisabledHeads.of(run).notes())
    rows = run.ablation_table().rows()
    # By F1 no head is needed, and the head that accuracy needs can be spared.
    others = [{**row, "metric": "f1", "significant": False, "verdict": "dispensable"} for row in rows]
    AblationTable.from_rows([*rows, *others]).write(run.ablation_path)
    both = DisabledHeads.of(run)
    assert both.verdicts == {
        (0, 0): "dispensable", (0, 1): "dispensable", (0, 2): "inconclusive",
        (1, 0): "inconclusive", (1, 1): "inconclusive", (1, 2): "needed",
    }  # fmt: skip
    (note,) = [note for note in both.notes() if "disagree" in note]
    assert "accuracy 1 needed, 2 can be spared, 3 not enough examples to tell; F1 6 can be spared." in note
    labels = [view.label.split(";")[0] for view in both.colourings()]
    assert labels == ["verdict over all metrics", "verdict", "verdict"]
    assert [view.codes[1][2] for view in both.colourings()] == ["needed", "needed", "dispensable"]


def judged(folder: Path, metrics: Sequence[str], label_N: Any, prediction_VN: Any, heads: int, classes: int) -> str:
    """The title of a sweep over one layer or more, whose first predictions are the unedited model's."""
    layers = (len(prediction_VN) - 1) // heads
    logits_CC = 4 * torch.eye(classes)
    outcomes = Outcomes(
        Plan("uniform", layers, heads, tuple(every_head(layers, heads))),
        torch.arange(len(label_N)),
        torch.from_numpy(label_N).float(),
        logits_CC[torch.from_numpy(prediction_VN[0])],
        logits_CC[torch.from_numpy(prediction_VN[1:].T.copy())],
    )
    task = Task(name="toy", metrics=tuple(metrics), texts=1, labels=tuple("abcdefghij"[:classes]))
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 9}
    rows = judged_rows(outcomes, task, identity, AblationSettings(resamples=100, permutations=200).judging())
    run = Run.open(make_run(folder, delta_LH=np.zeros((layers, heads))))
    AblationTable.from_rows(rows).write(run.ablation_path)
    effects = DisabledHeads.of(run)
    return effects.title()


@pytest.mark.parametrize(
    ("case", "metrics", "title"),
    [
        ("one class", ["accuracy"], r"Each of 6 heads costs at most \d\.\d points of accuracy\."),
        ("one class", ["matthews"], r"Each of 6 heads raises the mean loss by at most [\d,]+ %; Matthews "
                                    r"correlation is undefined without some heads\."),
        ("one class", ["matthews", "accuracy"], r"Each of 6 heads costs at most \d\.\d points of accuracy; Matthews "
                                                r"correlation is undefined without some heads\."),
        ("missing class", ["macro_f1"], r"Each of 6 heads costs at most \d\.\d points of macro-F1\."),
        ("1,008 heads", ["accuracy"], r"Layer 0 · head 7 is needed \(−\d\d\.\d points of accuracy, at least −\d+\.\d\); each "
                                      r"of the other 1,007 costs at most \d+\.\d\."),
    ],
)  # fmt: skip
def test_degenerate_data_still_have_a_bound(case: str, metrics: list[str], title: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    many = case == "1,008 heads"
    label_N = np.zeros(200, int) if case == "one class" else generator.integers(0, 2, 200)
    # The unedited model errs in 10 % of the examples, and each head changes about 1 %.
    clean_N = np.where(generator.random(200) < 0.1, 1 - label_N, label_N)
    prediction_VN = np.tile(clean_N, (1 + (1008 if many else 6), 1))
    flipped_VN = generator.random(prediction_VN.shape) < 0.01
    flipped_VN[0] = False
    prediction_VN = np.where(flipped_VN, 1 - prediction_VN, prediction_VN)
    if many:
        prediction_VN[1 + 7] = generator.integers(0, 2, 200)
    classes = 3 if case == "missing class" else 2
    found = judged(tmp_path / "run", metrics, label_N, prediction_VN, 42 if many else 3, classes)
    assert re.fullmatch(title, found), found


def test_ten_metrics_that_disagree_have_one_title(tmp_path: Path) -> None:
    run = disabled(tmp_path / "run", needed=False, spared=True)
    rows = run.ablation_table().rows()
    names = [f"metric_{number}" for number in range(10)]
    others = [{**row, "metric": name} for name in names[:9] for row in rows]
    # The last metric alone needs a head, which the nine others leave open.
    last = [{**row, "metric": names[9], "verdict": "needed" if row["head"] == 2 else row["verdict"]} for row in rows]
    AblationTable.from_rows([*others, *last]).write(run.ablation_path)
    effects = DisabledHeads.of(run)
    assert effects.title() == (
        "2 of 6 heads are needed, most of all layer 1 · head 2 (−5.0 points of metric 9, at least −3.5); each of the "
        "other 4 costs at most 4.2 points of metric 9."
    )


def test_a_page_opens_with_its_grid_and_folds_the_rest(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", cosine_LH=1 + DELTA, delta_LH=DELTA, significant_LH=NEEDED, dispensable_LH=SPARED)
    report_run(run, heads=2).write(run)
    page = Page(run.report_path)
    assert page.balanced
    check_policy(page)
    labels = {button["data-head"]: button["aria-label"] for button in page.all("button") if "data-head" in button}
    assert len(labels) == DELTA.size
    assert labels["1.2"] == "layer 1 · head 2: −5.0, needed"
    assert labels["0.2"] == "layer 0 · head 2: −1.0, not enough examples to tell"
    # The sentence on the selected head stands there without a script, too.
    assert "accuracy without it: −5.0 points (−7.0 to −3.0); 4 of 408 predictions change." in page.text
    folds = page.all("details", **{"class": "fold"})
    assert [fold["id"] for fold in folds] == ["scatter", *(f"section-{place + 1}" for place in range(len(folds) - 1))]
    assert all("open" not in fold for fold in folds)
    commands = re.findall(r"<li>[^<]*<span[^<]*</span><br><code>(.*?)</code>", run.report_path.read_text("utf-8"))
    assert len(commands) == 3
    assert commands[0].endswith("analysis=prune")


def test_the_first_figures_of_sections_come_before_second_ones(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", cosine_LH=1 + DELTA, delta_LH=DELTA, significant_LH=NEEDED)
    everything = report_run(run, heads=2).report
    few = report_run(run, heads=2, figures=3).report
    firsts = [section.figures[0].name for section in everything.sections if section.figures]
    assert [block.name for block in few.figures] == firsts[:3]
    left_out = len(everything.figures) - 3
    assert f"draws {left_out} further figures." in few.sections[-1].paragraphs[0]


@pytest.mark.parametrize(
    "measured", [(), [("checkpoint", "entropy_of_somebody", {"in_bits": np.full((24, 16), np.nan)})]]
)
def test_a_run_without_disabled_heads_has_a_page(measured: list[object], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", measured=measured)
    report = report_run(run, heads=2)
    report.write(run)
    assert report.report.title == "What fine-tuning on mrpc changed in minilm"
    assert Page(run.report_path).balanced
    assert (report.report.overview is None) == (not measured)


PROBE = """
const seen = {};
const head = (name) => document.querySelector(`[data-head="${name}"]`);
const step = (event) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: event, bubbles: true }));
seen.start = document.querySelector("[data-name]").textContent;
head("0.1").click();
head("0.1").focus();
step("ArrowRight");
seen.moved = document.querySelector("[data-name]").textContent + "|" + document.querySelector("[data-about]").textContent;
const chooser = document.querySelector("[data-colouring] select");
seen.before = head("0.0").textContent;
chooser.value = String(chooser.options.length - 1);
chooser.dispatchEvent(new Event("change"));
seen.after = head("0.0").textContent + "|" + head("0.0").parentElement.style.background;
document.querySelector("[data-copy]").click();
window.dispatchEvent(new Event("beforeprint"));
seen.printed = document.querySelectorAll("details.fold:not([open])").length;
window.dispatchEvent(new Event("afterprint"));
seen.folded = document.querySelectorAll("details.fold[open]").length;
location.hash = "#l01h02";
setTimeout(() => {
  seen.viewer = document.getElementById("viewer").open;
  seen.copied = document.querySelector("[data-copy]").textContent;
  seen.overflow = document.documentElement.scrollWidth > innerWidth;
  document.body.dataset.seen = JSON.stringify(seen);
}, 500);
"""


@in_browser
def test_a_reader_clicks_a_head_switches_the_measure_copies_and_prints(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", cosine_LH=1 - abs(DELTA), delta_LH=DELTA, significant_LH=NEEDED)
    captured(run)
    report_run(run, heads=2).write(run)
    found = seen(run.report_path, PROBE, window="500,900")
    assert found.pop("moved").startswith("layer 0 · head 2|not enough examples to tell")
    assert re.match(r"0\.99\|rgb", found.pop("after"))
    assert found == {
        "start": "layer 1 · head 2",
        "before": "+1.0",
        "printed": 0,
        "folded": 0,
        "viewer": True,
        "copied": "Copied",
        "overflow": False,
    }
    # Other scripts are code.
    data = [text for text in Page(run.report_path).scripts if text.startswith("{")]
    assert [json.loads(text)["start"] for text in data if '"start"' in text] == ["1.2"]


POINTS = """
const [seen, box] = [{}, document.getElementById("scatter")];
box.open = true;
setTimeout(() => {
  const [across, up] = box.querySelectorAll("select");
  seen.axes = [across.selectedOptions[0].text, up.selectedOptions[0].text];
  const at = (head) => Number(box.querySelector(`[data-point="${head}"]`).getAttribute("cx"));
  seen.order = [..."012"].map((head) => at(`0.${head}`));
  box.querySelector('[data-point="0.1"]').dispatchEvent(new MouseEvent("click", { bubbles: true }));
  setTimeout(() => {
    seen.picked = document.querySelector("#overview [data-name]").textContent;
    seen.large = box.querySelector('[r="9"]').dataset.point;
    document.body.dataset.seen = JSON.stringify(seen);
  }, 200);
}, 300);
"""


@in_browser
def test_points_lie_where_two_numbers_put_them_and_select_heads(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", cosine_LH=1 - abs(DELTA), delta_LH=DELTA, significant_LH=NEEDED)
    report_run(run, heads=2).write(run)
    found = seen(run.report_path, POINTS)
    assert "cosine" in found["axes"][0]
    assert "accuracy" in found["axes"][1]
    assert np.argsort(found["order"]).tolist() == np.argsort((1 - abs(DELTA))[0, :3]).tolist()
    assert (found["picked"], found["large"]) == ("layer 0 · head 1", "0.1")
