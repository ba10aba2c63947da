"""The report of a run: sections of all that its folder holds, and which weights its numbers are of."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reporting.finished_runs import make_run, table_of

from bertsecrets.callbacks.gradient_flow import GradientFlow
from bertsecrets.errors import UserError
from bertsecrets.grid import Column
from bertsecrets.importance.confidence import Confidence
from bertsecrets.measures.capture import CaptureAnalysis
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.dependency.rows import Treebank
from bertsecrets.measures.entropy import Entropy
from bertsecrets.reporting.run_report import report_run, views_of
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import CapturedExample, read_maps, step_name, write_examples, write_maps
from bertsecrets.results.rows import rows_path
from bertsecrets.results.run import Run
from bertsecrets.statistics.ranks import spearman

COSINE = np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]])
DELTA = np.array([[0.01, 0.0, -0.01], [-0.02, -0.03, -0.05]])


def trained(folder: Path, **settings: object) -> Run:
    """A run with the facts that a training run records."""
    trainer = {"devices": 1, "max_epochs": 3}
    return Run.open(make_run(folder, optimizer={"learning_rate": 2e-5}, trainer=trainer, **settings))


def titles(run: Run) -> list[str]:
    return [section.title for section in report_run(run, heads=2).report.sections]


@pytest.mark.parametrize(("scored", "noted"), [(9, False), (4, True)])
def test_a_note_says_when_scores_are_of_other_weights_than_the_change_of_heads(
    tmp_path: Path, scored: int, noted: bool
) -> None:
    # Drift is known at steps 4 and 9; the best checkpoint may be of either.
    run = trained(tmp_path / "run", cosine_LH=np.full((2, 3), 0.9))
    scores = json.loads(run.scores_path.read_text())
    run.scores_path.write_text(json.dumps({**scores, "step": scored}))
    lead = report_run(run, heads=2).report.lead
    of_weights = [line for line in lead if "weights at step" in line]
    assert len(of_weights) == noted
    if noted:
        assert "weights at step 4;" in of_weights[0]
        assert "drift of attention is of the weights at step 9" in of_weights[0]


def test_a_run_with_scores_alone(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    report = report_run(run, heads=2)
    assert [section.title for section in report.report.sections] == ["Scores", "How to read this page"]
    assert report.highlights is None
    assert report.scalars == {}
    assert report.report.lead == [
        "On 408 development examples the model's val/accuracy is 0.800; always answering “x” has 0.680."
    ]
    facts = dict(report.report.facts)
    assert (facts["model"], facts["task"], facts["initialisation"]) == ("minilm", "mrpc", "pretrained")
    assert (facts["learning rate"], facts["batch size"], facts["epochs"]) == ("2e-05", "32", "3")
    scores = json.loads(run.scores_path.read_text())
    run.scores_path.write_text(json.dumps({**scores, "notes": ["a.conllu: left out 1 sentence"]}))
    noted = report_run(run, heads=2).report
    assert [section.paragraphs for section in noted.sections if "Left out" in section.title] == [
        ("a.conllu: left out 1 sentence",)
    ]
    assert noted.lead == report.report.lead
    run.scores_path.unlink()
    with pytest.raises(UserError, match="cannot be read as the scores of a run"):
        report_run(run, heads=2)


def test_every_experiment_has_its_section_and_the_joins_follow(tmp_path: Path) -> None:
    run = trained(
        tmp_path / "run",
        cosine_LH=COSINE,
        delta_LH=DELTA,
        measured=[("checkpoint", "entropy_of_somebody", {"in_bits": COSINE})],
    )
    report = report_run(run, heads=2)
    assert [section.title for section in report.report.sections] == [
        "Drift of attention",
        "What disabling does to accuracy (mode: uniform)",
        "Entropy of somebody",
        "Changed and needed",
        "Scores",
        "All heads",
        "How to read this page",
    ]
    names = [block.name for block in report.report.figures]
    assert len(names) == len(set(names))
    assert {"drift", "drift_cosine_steps", "entropy_of_somebody", "drift_against_ablation"} <= set(names)
    assert [(line.layer, line.head) for line in report.highlights.heads[:2]] == [(1, 2), (1, 1)]
    assert report.scalars["ablation/worst_delta"] == pytest.approx(-5)
    (joined,) = [section for section in report.report.sections if section.title == "Changed and needed"]
    assert f"is {spearman((1 - COSINE).ravel(), DELTA.ravel()):.2f}".replace("-", "−") in joined.findings[0]


def test_an_analysis_prints_a_finding_of_each_experiment_and_a_training_none(tmp_path: Path) -> None:
    def printed(name: str, **settings: Any) -> tuple[list[str], Sequence[str]]:
        run = trained(tmp_path / name, cosine_LH=COSINE, delta_LH=DELTA, measured=measured, **settings)
        run.declare(*(measure.declaration() for measure in measures))
        summary = report_run(run, heads=2)
        asked = ("Drift of", "What disabling", *(measure.title for measure in measures))
        firsts = [section.findings[0] for section in summary.report.sections if section.title.startswith(asked)]
        return firsts, summary.printed

    measures = [Entropy(2, 3), Confidence(2, 3)]
    columns = [{column.name: COSINE for column in measure.columns} for measure in measures]
    measured = [("checkpoint", measure.name, grids) for measure, grids in zip(measures, columns, strict=True)]
    firsts, shown = printed("analysis", checkpoint="a run")
    assert len(firsts) == 4
    assert all(any(finding in sentence for sentence in shown) for finding in firsts)
    firsts, shown = printed("training")
    assert not any(finding in sentence for sentence in shown for finding in firsts)


def test_drift_that_is_the_same_everywhere_is_not_joined_with_effects(tmp_path: Path) -> None:
    assert "Changed and needed" not in titles(trained(tmp_path / "same", cosine_LH=0 * COSINE, delta_LH=DELTA))


def gradients(run: Run, steps: dict[int, list[float]]) -> None:
    """Gradient norms of whole layers, and of their heads, at several steps."""
    identity = {"run": run.name, "model": run.model, "task": run.task, "init": run.init}
    for step, norm_L in steps.items():
        for heads in (1, 3):
            columns = dict.fromkeys(("gradient_norm", "update_ratio"), np.repeat(np.c_[norm_L], heads, axis=1))
            layout = {"stderr": np.nan, "count": 1, "whole_layers": heads == 1}
            run.add(table_of("gradient_flow", columns, "training", step, **layout, **identity))
    run.declare(GradientFlow(run).declaration())


def test_gradients_have_a_chart_of_layers(tmp_path: Path) -> None:
    cosine = np.repeat(np.array([0.9, 0.5, 0.7])[:, None], 3, axis=1)
    run = trained(tmp_path / "run", cosine_LH=cosine)
    gradients(run, {1: [1.0, 3.0, 2.0], 5: [2.0, 4.0, 3.0]})
    report = report_run(run, heads=2).report
    by_title = {section.title: section for section in report.sections}
    assert by_title["Gradient flow"].findings == [
        "Over 2 steps, gradients were largest in layer 1 (mean norm 3.500) and smallest in layer 0 (1.500)."
    ]
    (block,) = by_title["Gradient flow"].figures
    assert any("n = 32" in text.get_text() for text in block.figure.texts)
    assert len(block.figure.axes[0].lines[0].get_xdata()) == 2


def captured(run: Run) -> None:
    """Maps of two examples before and after training; one head attends to itself alone afterwards."""
    tokens = {3: ["[CLS]", "a", "[SEP]"], 5: ["[CLS]", "a", "b", "[SEP]"]}
    examples = [CapturedExample(index, one, [" ".join(one)], "yes") for index, one in tokens.items()]
    write_examples(run.captures, examples)
    for step in (0, 9):
        maps = {}
        for index, one in tokens.items():
            map_LHQK = torch.full((2, 3, len(one), len(one)), 1 / len(one))
            if step:
                map_LHQK[1, 2] = torch.eye(len(one))
            maps[index] = map_LHQK
        write_maps(run.captures, step_name(step), maps)
    run.declare(CaptureAnalysis().declaration())


def test_captured_maps_make_the_viewer_and_a_gallery_of_the_changed_heads(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", cosine_LH=COSINE)
    captured(run)
    report = report_run(run, heads=2).report
    viewer = report.viewer
    # It starts at the head that changed most.
    assert viewer.start == (1, 2)
    assert [example.name for example in viewer.examples] == ["example 3 (yes)", "example 5 (yes)"]
    assert [len(example.stages) for example in viewer.examples] == [2, 2]
    (gallery,) = [section for section in report.sections if section.title == "Maps before and after"]
    (block,) = gallery.figures
    # The longer example, two heads, before, after and their difference.
    assert block.caption == "Example 5 (yes): [CLS] a b [SEP]"
    maps = [axes for axes in block.figure.axes if axes.images and axes.images[0].get_array().shape == (4, 4)]
    assert len(maps) == 6
    np.testing.assert_allclose(maps[2].images[0].get_array(), np.eye(4) - 0.25)
    # Without drift nothing says which heads changed.
    bare = trained(tmp_path / "bare")
    captured(bare)
    again = report_run(bare, heads=2).report
    assert [section.title for section in again.headed] == ["Scores", "How to read this page"]
    assert again.viewer.start == (0, 0)


def test_a_measure_of_another_version_leaves_the_rest_of_the_report_alone(tmp_path: Path) -> None:
    columns = {name: np.full((2, 2), 0.1) for name in ("nouns", "nouns_uniform")}
    older = trained(tmp_path / "older", cosine_LH=COSINE, measured=[("training", "features", columns)])
    sections = report_run(older, heads=2).report.sections
    (section,) = [section for section in sections if section.title == "Attention to linguistic features"]
    assert "no features/nouns_" in section.paragraphs[0]
    assert not section.tables
    assert not section.figures
    assert not section.findings
    assert "Drift of attention" in [section.title for section in sections]
    columns |= {f"nouns_{end}": np.full((2, 2), 0.05) for end in ("random", "over_random")}
    newer = trained(tmp_path / "newer", measured=[("training", "features", columns)])
    (section,) = report_run(newer, heads=2).report.sections[:-3]
    assert section.tables
    assert section.figures
    assert section.findings


def test_a_damaged_record_leaves_the_rest_of_the_pages_alone(tmp_path: Path) -> None:
    columns = {name: np.full((2, 3), 0.2) for name in ("within_layer", "between_layers")}
    run = trained(tmp_path / "run", cosine_LH=COSINE, measured=[("checkpoint", "clusters", columns)])
    run.declare(Clusters(2, 3).declaration())
    run.write_rows("clusters", "checkpoint", 9, [Treebank("demo", 1, 0, 0, 1, 0, 0, "mean", True, True, True, None)])
    rows_path(run.folder, "clusters", "treebank").rename(rows_path(run.folder, "clusters", "space"))
    sections = report_run(run, heads=2).report.sections
    (section,) = [section for section in sections if section.title == Clusters.title]
    assert section.paragraphs[0].startswith(f"'{rows_path(run.folder, 'clusters', 'space')}' has an unknown field")
    assert section.paragraphs[0].endswith("repeat the analysis.")
    assert "Drift of attention" in [section.title for section in sections]


def test_what_a_run_holds_comes_in_the_order_of_its_declarations(tmp_path: Path) -> None:
    run = trained(
        tmp_path / "run",
        measured=[("training", "new_thing", {"x": COSINE}), ("training", "offsets", {"previous": COSINE})],
        cosine_LH=COSINE,
    )
    assert list(views_of(run)) == ["drift", "new_thing", "offsets"]
    declaration, view = views_of(run)["new_thing"]
    # A measure that nothing declares is called by its name.
    assert (declaration.title, declaration.experiment) == ("New thing", "")
    assert view.columns == (Column("x", "x"),)
    run.experiments_path.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        report_run(run, heads=2)


def relation(run: Run) -> str:
    """The finding on how change and need relate."""
    (section,) = (part for part in report_run(run, heads=2).report.sections if part.title == "Changed and needed")
    return section.findings[0]


def test_six_heads_are_too_few_to_judge_a_correlation_by(tmp_path: Path) -> None:
    finding = relation(trained(tmp_path / "run", cosine_LH=COSINE, delta_LH=DELTA))
    assert finding.startswith("Too few heads to link")
    assert f"{spearman((1 - COSINE).ravel(), DELTA.ravel()):.2f}".replace("-", "−") in finding


@pytest.mark.parametrize(("slope", "words"), [(-1, "are needed more"), (1, "are needed less"), (0, "No clear link")])
def test_how_change_and_need_relate_is_told_only_as_far_as_it_is_known(slope: int, words: str, tmp_path: Path) -> None:
    drift_LH = np.linspace(0, 0.5, 12).reshape(3, 4)
    shuffled_LH = np.random.default_rng(1).permuted(drift_LH.ravel()).reshape(3, 4)
    delta_LH = 0.1 * (slope * drift_LH if slope else shuffled_LH)
    assert words in relation(trained(tmp_path / "run", cosine_LH=1 - drift_LH, delta_LH=delta_LH)).split(":")[0]


def test_where_most_scores_change_equally_the_loss_stands_for_them(tmp_path: Path) -> None:
    drift_LH = np.linspace(0, 0.5, 12).reshape(3, 4)
    run = trained(tmp_path / "run", cosine_LH=1 - drift_LH, delta_LH=np.where(drift_LH > 0.3, -drift_LH, 0.0))
    assert "drift with the change of score without the head is" in relation(run)
    rows = [{**row, "loss_change": drift_LH[row["layer"], row["head"]] ** 2} for row in run.ablation_table().rows()]
    AblationTable.from_rows(rows).write(run.ablation_path)
    answer = relation(run)
    assert answer.startswith(
        "Heads that changed more are needed more: over 12 heads, the rank correlation of drift with the rise of the loss"
    )
    assert "is 1.00 (" in answer
    assert answer.endswith("positive if heads that changed more are needed more.")
    # Of scores that differ, the score itself is told.
    AblationTable.from_rows([{**row, "delta": row["delta"] - row["loss_change"]} for row in rows]).write(
        run.ablation_path
    )
    assert "drift with the change of score without the head is" in relation(run)


def test_the_viewer_follows_drift_from_validation_to_validation(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", cosine_LH=COSINE)
    captured(run)
    viewer = report_run(run, heads=2).report.viewer
    # Drift is known at steps 4 and 9; no map was captured at step 4.
    assert not viewer.histories
    write_maps(run.captures, step_name(4), read_maps(run.captures / f"{step_name(9)}.safetensors"))
    viewer = report_run(run, heads=2).report.viewer
    (history,) = viewer.histories
    assert list(history.values) == ["step 4", "step 9"]
    assert [name for name, _ in viewer.examples[0].stages] == ["before fine-tuning", "step 4", "step 9"]
    np.testing.assert_allclose(np.asarray(history.values["step 9"]), COSINE)
