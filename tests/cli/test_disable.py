"""Disabling sweeps through the doors: at validation time, on a checkpoint, in parts, on two processes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli.runs import ran, small, small_analysis
from PIL import Image
from wandb_log import tracked

import bertsecrets as bs
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.rows import Found, Screened, Selection, found
from bertsecrets.errors import UserError
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable

EXACT = (
    "baseline",
    "score",
    "delta",
    "flips",
    "p_value",
    "p_bh",
    "p_needed",
    "low",
    "high",
    "stderr",
    "smallest_effect",
)


def analysed_to(folder: Path, model: Path, swept: Path, *extra: str) -> AblationTable:
    """The table of an analysis of the last checkpoint."""
    ran("analyze", *small_analysis(model, folder, checkpoint=swept / "checkpoints" / "last.ckpt"), *extra)
    return AblationTable.read(folder / "ablation.parquet")


@pytest.fixture(scope="module")
def swept(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that disabled all heads and layers at every validation."""
    folder = tmp_path_factory.mktemp("swept") / "run"
    every = ["callbacks=disable", "callbacks.disable.every_n_validations=1", "measure.drift.every_n_validations=3"]
    ran("train", *small(tiny_bert, folder, logger="default", report__figures="null"), *every)
    return folder


@pytest.fixture(scope="module")
def analysed(swept: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analysed") / "run"
    analysed_to(folder, tiny_bert, swept, "analysis=disable_heads")
    return folder


def rows_in(folder: Path, kind: type[Found]) -> list[Found]:
    return found(Run.open(folder), kind)


def same(one: AblationTable, two: AblationTable, tolerance: float = 0.0) -> None:
    rows = [{(row["metric"], row["variant"]): row for row in table.rows()} for table in (one, two)]
    assert rows[0].keys() == rows[1].keys()
    for key, row in rows[0].items():
        for name in EXACT:
            assert rows[1][key][name] == pytest.approx(row[name], abs=tolerance, nan_ok=True), (key, name)


def test_training_is_not_disturbed(swept: Path, trained: Path) -> None:
    with_sweep, without = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for folder in (swept, trained)
    )
    assert with_sweep.keys() == without.keys()
    assert all(torch.equal(with_sweep[name], without[name]) for name in without)


def test_every_validation_has_its_sweep(swept: Path) -> None:
    table = AblationTable.read(swept / "ablation.parquet")
    # Two epochs of 12 steps, two validations in each, and the best checkpoint; two metrics; 12 heads and 3 layers.
    assert sorted({row["step"] for row in table.select(stage="training").rows()}) == [6, 12, 18, 24]
    assert len(table.select(stage="training")) == 4 * 2 * 15
    assert len(table.select(stage="checkpoint")) == 2 * 15
    assert {row["mode"] for row in table.rows()} == {"uniform"}
    grid, _, count = HeadTable.read(swept / "heads.parquet").grid("ablation", "accuracy_uniform", "training", 24)
    assert grid.shape == (3, 4)
    assert (count == 37).all()
    for name in (
        "ablation_head_uniform_accuracy",
        "ablation_head_uniform_accuracy_trajectory",
        "ablation_layer_uniform_f1",
    ):
        assert (swept / "figures" / f"{name}.png").is_file(), name
    page = (swept / "report.html").read_text("utf-8")
    assert "What disabling does to accuracy (mode: uniform)" in page
    # Whether so small a model beats a constant answer differs between processors.
    (scored,) = json.loads((swept / "scores.json").read_text("utf-8"))["sets"].values()
    learned = scored["p_constant"] <= 0.05
    assert ("Of 12 heads disabled in turn (uniform)" in page) == learned
    assert ("learned nothing measurable" in page) != learned


def test_a_dossier_counts_the_answers_that_change(swept: Path, tmp_path: Path) -> None:
    dossier = bs.Run(swept).head(2, 3)
    paths = sorted((swept / "ablation").glob("*-uniform.safetensors"))
    # Outcomes of the finished model, which come first in the alphabet, take precedence over those taken during
    # training.
    outcomes = Outcomes.read(paths[0] if paths[0].name.startswith("checkpoint-") else paths[-1])
    (place,) = [at for at, variant in enumerate(outcomes.plan.variants) if variant.name == "l02h03"]
    answer_N, without_N = outcomes.clean_NC.argmax(-1), outcomes.logits_NVC[:, place].argmax(-1)
    right_N = answer_N == outcomes.label_N
    lost, won = int((right_N & (without_N != answer_N)).sum()), int((~right_N & (without_N == outcomes.label_N)).sum())
    changed = int((answer_N != without_N).sum())
    assert (
        f"Without it {changed} of {len(answer_N)} predictions change: {lost} from right to wrong, {won} from wrong to "
        "right." in repr(dossier)
    )
    assert repr(dossier).startswith("layer 2 · head 3: ")
    page = dossier.save(tmp_path / "head.html").read_text("utf-8")
    for heading in (
        "Predictions that change most without it",
        "Where it attends strongly",
        "Pairs of tokens with more attention than chance",
        "analysis=redundancy",
    ):
        assert heading in page
    with pytest.raises(UserError, match=r"There is no head 3\.0; the model has layers 0 to 2 and heads 0 to 3"):
        bs.Run(swept).head(3, 0)


def test_weights_and_biases_has_the_sweep(swept: Path) -> None:
    found = tracked(swept)
    logged, summary = found.logged, found.summary
    # What is logged last is of the finished model.
    effects = AblationTable.read(swept / "ablation.parquet").select(stage="checkpoint", metric="f1")
    (delta,) = [row["delta"] for row in effects.select(kind="layer").rows() if row["variant"] == "l02"]
    assert logged["ablation/f1/l02"] == pytest.approx(delta)
    for name in (
        "ablation/table",
        "ablation/f1/heatmap",
        "figures/ablation_head_uniform_accuracy",
        "figures/ablation_layer_uniform_f1",
    ):
        assert f"{name}/path" in logged, name
    # The page's own figure.
    picture = found.path.parent / "files" / str(logged["figures/ablation_head_uniform_accuracy/path"])
    own = swept / "figures" / "ablation_head_uniform_accuracy.png"
    assert Image.open(picture).tobytes() == Image.open(own).tobytes()
    rows = AblationTable.read(swept / "ablation.parquet").select(step=24, metric="accuracy", kind="head").rows()
    worst = min(rows, key=lambda row: row["delta"])
    assert summary["ablation/worst_delta"] == pytest.approx(100 * worst["delta"])
    assert summary["ablation/worst"] == f"layer {worst['layer']} · head {worst['head']}"
    assert summary["ablation/n_variants"] == 12


def test_an_analysis_equals_the_last_sweep_of_the_training(swept: Path, analysed: Path) -> None:
    table = AblationTable.read(analysed / "ablation.parquet")
    last = AblationTable.read(swept / "ablation.parquet").select(step=24, kind="head")

    assert {row["step"] for row in table.rows()} == {24}
    same(table, last)
    assert not [*analysed.glob("unfinished-*")]
    assert {row.metric for row in rows_in(analysed, Selection)} == {row["metric"] for row in table.rows()}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_two_processes_screen_what_one_does(
    swept: Path, analysed: Path, tiny_bert: Path, tmp_path: Path, precision: str
) -> None:
    tables, records = [], []
    for devices in (1, 2):
        screened = ["analysis=disable_heads", "ablation.sweep=screened", "ablation.audit=0.2"]
        screened += [f"ablation.precision={precision}", "trainer=ddp_cpu", f"trainer.devices={devices}"]
        tables.append(analysed_to(tmp_path / str(devices), tiny_bert, swept, *screened))
        records += [replace(row, onednn=False) for row in rows_in(tmp_path / str(devices), Screened)]
    same(*tables, 1e-9)
    assert records[0] == records[1]
    assert records[0].precision == precision
    exact = [row["score"] for row in AblationTable.read(analysed / "ablation.parquet").rows()]
    assert [row["score"] for row in tables[0].rows()] == exact


@pytest.mark.slow
def test_redundancy_and_named_groups(swept: Path, tiny_bert: Path, tmp_path: Path) -> None:
    few = ["ablation.group_count=3", "ablation.permutations=200", "ablation.resamples=200", "ablation.mode=mean"]
    table = analysed_to(tmp_path / "groups", tiny_bert, swept, "analysis=redundancy", *few)
    assert {"head", "group", "random"} <= {row["kind"] for row in table.rows()}
    assert "Groups of heads with similar maps" in (tmp_path / "groups" / "report.html").read_text("utf-8")
    named = ["analysis=disable_groups", "ablation.heads=[[0,1],[2,3]]", "ablation.layers=[0,2]", "ablation.mode=zero"]
    rows = analysed_to(tmp_path / "named", tiny_bert, swept, *named).select(metric="accuracy").rows()
    assert [row["heads"] for row in rows] == ["0-1 2-3", "0-0 0-1 0-2 0-3 2-0 2-1 2-2 2-3"]
