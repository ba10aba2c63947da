"""The questions page, against numbers put into the runs by hand."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from papers.paper_runs import models_in
from reporting.finished_runs import effect_row, make_run, table_of, with_predictions

from bertsecrets.ablation.rows import Disabling
from bertsecrets.callbacks.gradient_flow import GradientFlow
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.papers.models import Studied
from bertsecrets.papers.page import Page, find_page
from bertsecrets.papers.statements.judge import UNMEASURED, UNTOLD
from bertsecrets.present.report.content import Section
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.run import Run

SIZE = (6, 4)
RISING = np.arange(24.0).reshape(SIZE) / 100
PAIRS = {"texts": 2}


def questions_page() -> Page:
    return find_page("questions")


def question(beginning: str, models: Studied) -> Section:
    """What the page shows of the question that begins so, as one section."""
    page = questions_page()
    [part] = [part for part in page.settings.sections if part.title.startswith(beginning)]
    sections = page.shown(part, models)
    return Section(
        paragraphs=[text for section in sections for text in section.paragraphs],
        tables=[table for section in sections for table in section.tables],
        figures=[block for section in sections for block in section.figures],
        summary="; ".join(section.summary for section in sections if section.summary not in ("", UNTOLD, UNMEASURED)),
    )


def with_gradients(folder: Path, norm_LH: ArrayLike) -> None:
    run, norm_LH = Run.open(folder), np.asarray(norm_LH, float)
    identity = {"run": run.name, "model": run.model, "task": run.task, "init": run.init}
    for step in (0, 5):
        for whole_layers, values_LH in ((False, norm_LH), (True, 7 * norm_LH[:, :1])):
            columns = {column.name: values_LH for column in GradientFlow.columns}
            layout = {"stderr": np.nan, "count": 1, "whole_layers": whole_layers}
            run.add(table_of("gradient_flow", columns, "training", step, **layout, **identity))
    run.declare(GradientFlow(run).declaration())


def test_all_questions_appear_in_order_with_what_they_lack(tmp_path: Path) -> None:
    make_run(tmp_path / "run", task_settings=PAIRS, p_constant=0.001)
    page = questions_page()
    text = unescape(page.write(find_runs([str(tmp_path)])[0], tmp_path / "page").read_text("utf-8"))
    places = [text.index(f">{section.title}</h2>") for section in page.settings.sections]
    assert len(places) == 15
    assert places == sorted(places)
    assert "analyze checkpoint=<run folder> 'measure=[patterns]' 'compare_with=[initial]'" in text
    assert all(f"analysis={name}" in text for name in ("block_attention", "redundancy"))
    assert not re.search(r"\bQ\d", re.sub(r"base64,[\w+/=]+", "", text))
    assert '<details class="fold" id="section-1" open>' in text


def test_a_training_and_its_analyses_are_one_model_and_seeds_one_group(tmp_path: Path) -> None:
    for seed in (1, 2):
        trained = make_run(tmp_path / f"run{seed}", seed=seed, cosine_LH=1 - RISING)
        origin = {"name": "x", "init": "pretrained", "seed": seed, "folder": str(trained.resolve()), "layer_decay": 1.0}
        make_run(tmp_path / f"analysis{seed}", seed=42, checkpoint=str(trained), trained=origin, cosine_LH=1 - RISING)
    make_run(tmp_path / "before", checkpoint="initial", trained={"name": "x", "init": "pretrained", "seed": 9})
    make_run(tmp_path / "random", init="random_normal")
    make_run(tmp_path / "shuffled", data={"permute_labels": True})
    runs = models_in(tmp_path)
    (group,) = runs.tuned
    assert [[run.name for run in model.parts] for model in group.models] == [
        ["run1", "analysis1"],
        ["run2", "analysis2"],
    ]
    assert group.models[0].checkpoint == str(tmp_path / "run1")
    assert [group.name for group in runs.groups if group.controlled] == ["mrpc · training labels shuffled"]
    assert len(group.views("drift", "cosine")) == 2


@pytest.mark.parametrize(
    ("norm_LH", "short"),
    [
        (1 + RISING, "upper layers change more; larger gradients, larger change"),
        (1 - RISING, "upper layers change more; larger gradients, smaller change"),
        (np.tile([1.0, 2.0, 2.0, 1.0], (6, 1)), "upper layers change more"),
    ],
)
def test_gradients_are_held_against_change(tmp_path: Path, norm_LH: ArrayLike, short: str) -> None:
    folder = make_run(tmp_path / "run", cosine_LH=1 - RISING, stderr=0.001, p_constant=0.001)
    with_gradients(folder, norm_LH)
    section = question("Do layers change more", models_in(tmp_path))
    assert section.summary == short
    # The mean of layers 3 to 5 is 0.12 above that of layers 0 to 2, with an error of at most twice 0.001.
    assert section.tables[0].rows == [["mrpc", "+0.120", "+0.116 to +0.124", "examples"]]


def test_controls_answer_what_rates_and_labels_explain(tmp_path: Path) -> None:
    with_gradients(make_run(tmp_path / "run", cosine_LH=1 - RISING, stderr=0.001, p_constant=0.001), 1 + RISING)
    make_run(tmp_path / "inverted", cosine_LH=1 - RISING[::-1], stderr=0.001, optimizer={"layer_decay": 1.25})
    make_run(tmp_path / "shuffled", cosine_LH=1 - RISING, p_constant=0.5, data={"permute_labels": True})
    section = question("Do layers change more", models_in(tmp_path))
    tilts = {row[0]: row[1:3] for row in section.tables[0].rows}
    assert tilts["mrpc · learning rate × 1.25 per layer downwards"] == ["−0.120", "−0.124 to −0.116"]
    assert tilts["mrpc · training labels shuffled"][0] == "+0.120"
    halves = "upper layers change more, also with shuffled labels, not significant with inverted learning rates"
    assert section.summary == f"{halves}; larger gradients, larger change"
    assert [block.name for block in section.figures] == ["controls_mrpc"]


@pytest.mark.parametrize(
    ("changes", "change", "over"), [([0.02, 0.03], "+0.0250", "seeds and examples"), ([-0.02], "−0.0200", "examples")]
)
def test_likeness_is_compared_with_and_without_dropout(
    tmp_path: Path, changes: list[float], change: str, over: str
) -> None:
    """Whole seeds differ by more than the control does: pairs tell. By hand, over examples: 1.96 times both errors of
    0.001.
    """
    model = {"name": "minilm", "path": "model", "attention_dropout": 0.0}
    for seed, added_to in enumerate(changes):
        for name, added, settings in (("with", 0.0, {}), ("without", added_to, {"model": model})):
            measured = [("checkpoint", "clusters", {"within_layer": RISING + seed + added})]
            numbers = {"stderr": 0.001, "measured": measured, "p_constant": 0.001}
            folder = make_run(tmp_path / f"{name}{seed}", seed=seed, **numbers, **settings)
            Run.open(folder).declare(Clusters(1, 1).declaration())
    section = question("Are heads of a layer alike", models_in(tmp_path))
    rows = section.tables[0].rows
    assert [row[0].startswith("mrpc") for row in rows] == [True] * 3
    assert (rows[2][1], rows[2][3]) == (change, over)
    if len(changes) == 1:
        assert rows[2][2] == "−0.0239 to −0.0161"
        assert section.summary == "heads of a layer are more alike without attention dropout"


def group_row(run: Run, heads: str, verdict: str, interaction: float, redundant: bool) -> dict[str, Any]:
    """A row of a group of two heads, whose loss of ten points has limits five points away."""
    group = {"run": run.name, "stage": "checkpoint", "kind": "group", "variant": heads, "heads": heads, "num_heads": 2}
    judged = {"low": -0.15, "high": -0.05, "significant": True, "verdict": verdict, "p_margin": 0.01}
    ends = {"interaction_low": interaction - 0.02, "interaction_high": interaction + 0.02}
    together = {"redundant": redundant, "interaction": interaction, "p_interaction": 0.01, "p_controls": 0.01}
    return effect_row(-0.1, None, None, **group, **judged, **ends, **together)


def test_groups_are_redundant_or_unnecessary(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    run = Run.open(folder)
    rows = [
        group_row(run, "0-1 0-2", "needed", -0.08, True),
        group_row(run, "1-1 1-2", "dispensable", 0.0, False),
        group_row(run, "2-1 2-2", "dispensable", 0.01, False),
        group_row(run, "3-1 3-2", "inconclusive", -0.01, False),
    ]
    AblationTable.from_rows(rows).write(folder / "ablation.parquet")
    run.declare(Disabling().declaration())
    folder = make_run(tmp_path / "second", seed=2)
    run = Run.open(folder)
    # With fewer than 19 random groups for each there is no p-value.
    untested = [{**row, "run": run.name, "p_controls": np.nan} for row in rows[1:]]
    AblationTable.from_rows(untested).write(folder / "ablation.parquet")
    run.declare(Disabling().declaration())
    [by_seed] = question("When a head can go", models_in(tmp_path)).tables
    # The interval of the undecided group reaches 5 points below its change; a margin of 1 point takes 25 times 408
    # examples.
    assert [row[1:] for row in by_seed.rows] == [
        ["1", "408", "4", "1", "2", "0", "1", "about 11,000", "−8.0 (−10.0 to −6.0)"],
        ["2", "408", "3", "–", "2", "0", "1", "about 11,000", "−1.0 (−3.0 to +1.0)"],
    ]


def test_one_sentence_is_compared_example_by_example(tmp_path: Path) -> None:
    made: dict[str, Any] = {"task_settings": PAIRS, "count": 500}
    with_predictions(make_run(tmp_path / "both", accuracy=0.8, **made), np.arange(500) < 400)
    for which, right in (("first", 400), ("second", 230)):
        control = make_run(tmp_path / which, accuracy=right / 500, data={"only": which}, **made)
        with_predictions(control, np.arange(500) < right)
    gains, accuracies = question("Does the model need", models_in(tmp_path)).tables
    first, second = gains.rows
    assert first[:2] == ["first sentence only", "0.0"]
    assert second[:2] == ["second sentence only", "+34.0"]
    # Wilson's interval of 400 of 500.
    assert accuracies.rows[0] == ["mrpc", "0.800", "0.763 to 0.833"]
    assert accuracies.rows[-1][0] == "most frequent class"


def test_what_both_sentences_gain_over_seeds_keeps_the_noise_of_examples(tmp_path: Path) -> None:
    made: dict[str, Any] = {"task_settings": PAIRS, "count": 100}
    example_N = np.arange(100)
    # Both seeds gain 20 points on the same 20 examples: the spread over seeds is 0, that over examples is not.
    for seed in (1, 2):
        both = make_run(tmp_path / f"both{seed}", accuracy=0.8, seed=seed, **made)
        with_predictions(both, example_N < 80)
        alone = make_run(tmp_path / f"alone{seed}", accuracy=0.6, seed=seed, data={"only": "second"}, **made)
        with_predictions(alone, example_N < 60)
    # A gain of 0 or 1 with mean 0.2: a variance of 0.16 * 100 / 99 over 100 examples.
    reach = 100 * 1.959964 * (0.16 / 99) ** 0.5
    [gain] = question("Does the model need", models_in(tmp_path)).tables[0].rows
    assert gain[1:] == ["+20.0", f"+{20 - reach:.1f} to +{20 + reach:.1f}", "seeds and examples"]


@pytest.mark.parametrize(
    "difference", [{"optimizer": {"learning_rate": 1e-3, "layer_decay": 1.25}}, {"init": "random_normal"}]
)
def test_a_control_that_differs_in_more_than_the_control_is_not_compared(
    tmp_path: Path, difference: dict[str, Any]
) -> None:
    made: dict[str, Any] = {"optimizer": {"learning_rate": 2e-5}, "cosine_LH": 1 - RISING, "p_constant": 0.001}
    made["trainer"] = {"devices": 1, "max_epochs": 3}
    make_run(tmp_path / "both", **made)
    make_run(tmp_path / "one", **{**made, "data": {"only": "second"}, **difference})
    runs = models_in(tmp_path)
    (one,) = runs.tuned
    assert not runs.controls_of(one)


def test_analyses_alone_are_grouped_by_the_training_that_they_name(tmp_path: Path) -> None:
    for seed, rate in enumerate((2e-5, 2e-5, 5e-5)):
        trained = make_run(tmp_path / f"run{seed}", seed=seed, optimizer={"learning_rate": rate})
        origin = {"name": "x", "init": "pretrained", "seed": seed, "folder": str(trained), "layer_decay": 1.0}
        make_run(tmp_path / "analyses" / f"analysis{seed}", checkpoint=str(trained), trained=origin)
    gone = {"name": "x", "init": "pretrained", "seed": 9, "folder": str(tmp_path / "gone"), "layer_decay": 1.0}
    make_run(tmp_path / "analyses" / "analysis9", checkpoint=str(tmp_path / "gone"), trained=gone)
    groups = {one.name: len(one.models) for one in models_in(tmp_path / "analyses").tuned}
    assert groups == {
        "mrpc · optimizer.learning_rate=2e-05": 2,
        "mrpc · optimizer.learning_rate=5e-05": 1,
        "mrpc · optimizer.learning_rate=unset": 1,
    }
