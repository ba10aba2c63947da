"""Whole runs: what they leave behind, distributed and interrupted ones, and checkpoints analysed afterwards."""

import json
import os
import signal
from html import unescape
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cli.runs import ran, small, small_analysis, start
from data.tasks import task
from shared import wait_for
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

import bertsecrets as bs
from bertsecrets.errors import UserError
from bertsecrets.models.checkpoint import load_checkpoint, read_record
from bertsecrets.models.spec import ModelSpec
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable


@pytest.fixture(scope="module")
def finished(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny model with every default callback and W&B offline."""
    folder = tmp_path_factory.mktemp("run") / "one"
    saved = folder.parent / "saved"
    settings = {"logger": "default", "optimizer__learning_rate": 0.005, "save": saved, "report__figures": "null"}
    result = ran("train", *small(tiny_bert, folder, **settings))
    assert "Report:" in result.stdout
    # One line at the start, and nothing that a library says about itself.
    assert result.stdout.startswith("Fine-tuning folder on demo_paraphrase in ")
    assert not result.stderr
    learned = json.loads((folder / "scores.json").read_text())["sets"]["val"]["p_constant"] <= 0.05
    assert ("learned nothing measurable" in result.stdout) != learned
    return folder


def test_a_run_leaves_every_part_behind(finished: Path) -> None:
    for name in (
        "config.yaml",
        "scores.json",
        "heads.parquet",
        "report.html",
        "checkpoints/final.ckpt",
        "checkpoints/last.ckpt",
        "tokenizer/tokenizer.json",
        "csv/attempt_0/metrics.csv",
        "captures/examples.json",
        "captures/step-00000000.safetensors",
        "figures/drift.png",
        "figures/drift_cosine_steps.svg",
        "figures/gradient_flow.png",
        "figures/maps.png",
        "predictions/val.parquet",
    ):
        assert (finished / name).is_file(), name
    assert list((finished / "wandb").glob("offline-run-*/run-*.wandb"))
    table = HeadTable.read(finished / "heads.parquet")
    steps = table.steps("drift", "cosine", "training")
    # 90 examples in batches of 8 are 12 steps; two validations in each of two epochs.
    assert steps == [6, 12, 18, 24]
    value_LH, _, count_LH = table.grid("drift", "cosine", "training", 24)
    assert value_LH.shape == (3, 4)
    assert (count_LH == 37).all()
    assert ((value_LH > 0) & (value_LH <= 1 + 1e-6)).all()
    seeds = {line["seed"] for line in pq.read_table(finished / "findings/ablation.swept.parquet").to_pylist()}
    assert seeds == {42}


def test_a_run_saves_its_model_as_a_hugging_face_folder(finished: Path) -> None:
    saved = finished.parent / "saved"
    model, info = AutoModelForSequenceClassification.from_pretrained(saved, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    weights = read_record(finished / "checkpoints" / "final.ckpt")["state_dict"]
    assert all(torch.equal(weights[f"model.{name}"], tensor) for name, tensor in model.state_dict().items())
    card = (saved / "README.md").read_text("utf-8")
    accuracy = json.loads((finished / "scores.json").read_text())["sets"]["val"]["model"]["accuracy"]
    assert f"| val/accuracy | {accuracy:.3f} |" in card
    assert f"torch {version('torch')}" in card


def test_scores_measures_and_maps_of_a_page_are_of_one_set_of_weights(finished: Path) -> None:
    scores = json.loads((finished / "scores.json").read_text())
    assert scores["step"] == int(read_record(finished / "checkpoints" / "final.ckpt")["bertsecrets"]["step"]) == 24
    assert set(scores["sets"]) == {"val"}
    table = HeadTable.read(finished / "heads.parquet")
    assert table.steps("drift", "cosine", "checkpoint") == [24]
    final, during = (table.grid("drift", "cosine", stage, 24)[0] for stage in ("checkpoint", "training"))
    assert np.allclose(final, during, atol=1e-6)
    # The scores of the curve at that step are those of the page.
    _, last = curve_of(finished, "val")[-1]
    assert scores["sets"]["val"]["model"]["accuracy"] == pytest.approx(last, abs=1e-6)


def curve_of(folder: Path, name: str) -> list[tuple[int, float]]:
    """Last batch and accuracy on an evaluation set, of each validation during training."""
    rows = [line.split(",") for line in (folder / "csv" / "attempt_0" / "metrics.csv").read_text().splitlines()]
    place, at = rows[0].index(f"{name}/accuracy"), rows[0].index("step")
    return sorted((int(row[at]), float(row[place])) for row in rows[1:] if row[place])


def test_the_best_checkpoint_is_chosen_on_rows_that_judge_nothing(tiny_bert: Path, tmp_path: Path) -> None:
    words = ["checkpoint.report=best", "checkpoint.choosing=0.3", "measure=[]", "callbacks=none"]
    ran("train", *small(tiny_bert, tmp_path / "run"), *words)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    record = read_record(tmp_path / "run" / "checkpoints" / "best.ckpt")
    choosing = scores["sets"]["choosing"]["model"]["accuracy"]
    curve = curve_of(tmp_path / "run", "choosing")
    highest = max(accuracy for _, accuracy in curve)
    assert choosing == pytest.approx(highest, abs=1e-6)
    # Of equally good ones the last, whose next batch has not been taken.
    best = max(batch for batch, accuracy in curve if accuracy == highest) + 1
    assert scores["step"] == record["bertsecrets"]["step"] == best
    assert not (tmp_path / "run" / "checkpoints" / "final.ckpt").exists()
    assert "the same in every run, are held out to choose the checkpoint" in " ".join(scores["notes"])


def test_scores_equal_those_of_the_stored_predictions(finished: Path) -> None:
    rows = pq.read_table(finished / "predictions" / "val.parquet").to_pydict()
    assert len(set(rows["index"])) == 37
    decided = np.argmax([rows["logit_0"], rows["logit_1"]], axis=0)
    scores = json.loads((finished / "scores.json").read_text())["sets"]["val"]["model"]
    assert scores["accuracy"] == pytest.approx(accuracy_score(rows["label"], decided), abs=1e-12)
    assert scores["f1"] == pytest.approx(f1_score(rows["label"], decided), abs=1e-6)


def test_a_checkpoint_is_analysed_to_the_same_numbers(finished: Path, tiny_bert: Path, tmp_path: Path) -> None:
    checkpoint = finished / "checkpoints" / "last.ckpt"
    ran("analyze", *small_analysis(tiny_bert, tmp_path / "a", checkpoint=checkpoint))
    again, before = HeadTable.read(tmp_path / "a" / "heads.parquet"), HeadTable.read(finished / "heads.parquet")
    for column in ("cosine", "jensen_shannon", "cls_cosine", "cls_jensen_shannon"):
        new = again.grid("drift", column, "checkpoint", 24)
        old = before.grid("drift", column, "training", 24)
        for a, b in zip(new, old, strict=True):
            assert np.allclose(a, b, atol=1e-7, equal_nan=True)
    scores = json.loads((tmp_path / "a" / "scores.json").read_text())
    assert scores["step"] == 24
    assert again.steps("drift", "cosine", "training") == [6, 12, 18, 24]
    report = (tmp_path / "a" / "report.html").read_text("utf-8")
    assert "during training: the report of" in report
    assert f'href="{Path(os.path.relpath(finished / "report.html", tmp_path / "a")).as_posix()}"' in report


def test_a_run_is_compared_with_another_run(tiny_bert: Path, tmp_path: Path) -> None:
    """Here with itself: equal maps, in words that name the run. A checkpoint's own dropout is that of its training.

    Maps of step 0 would be taken for those before fine-tuning.
    """
    settings = {"callbacks": "none", "measure": "[]", "trainer__max_epochs": 1, "model__attention_dropout": 0}
    given = small(tiny_bert, tmp_path / "one", **settings)
    ran("train", *given)
    given = small(
        tiny_bert,
        tmp_path / "next",
        checkpoint=tmp_path / "one",
        reference=tmp_path / "one",
        analysis="drift",
        model__attention_dropout="null",
    )
    capture = "+analysis.capture._target_=bertsecrets.measures.capture.CaptureAnalysis"
    ran("analyze", *given, capture)
    table = HeadTable.read(tmp_path / "next" / "heads.parquet")
    (step,) = table.steps("drift", "cosine", "checkpoint")
    assert np.abs(1 - table.grid("drift", "cosine", "checkpoint", step)[0]).max() < 3e-7
    report = unescape((tmp_path / "next" / "report.html").read_text("utf-8"))
    assert "cosine similarity with the maps of the model 'one'" in report
    assert "no attention dropout" in report
    assert "before fine-tuning" not in report
    trained = Run.open(tmp_path / "next").config()["trained"]
    assert (trained["folder"], trained["from_here"]) == (str(tmp_path / "one"), os.path.join("..", "one"))
    captured = [path.name for path in (tmp_path / "next" / "captures").glob("*.safetensors")]
    assert captured == [f"step-{step:08d}.safetensors"]


def test_a_run_is_loaded_for_the_api(finished: Path, tmp_path: Path) -> None:
    path = finished / "checkpoints" / "final.ckpt"
    for source in (finished, path):
        model, tokenizer = bs.load(source)
        for name, tensor in torch.load(path, weights_only=True)["state_dict"].items():
            assert name.startswith("predictions") or torch.equal(
                tensor, model.state_dict()[name.removeprefix("model.")]
            )
        assert list(model.config.id2label.values()) == ["different", "paraphrase"]
        assert tokenizer.is_fast
    content = torch.load(path, weights_only=True)
    content["bertsecrets"]["model"]["family"] = "os.path:join"
    torch.save(content, tmp_path / "theirs.ckpt")
    with pytest.raises(UserError, match=r"is the code 'os\.path:join', which is not imported because a file names it"):
        bs.load(tmp_path / "theirs.ckpt")


def test_a_checkpoint_of_another_task_or_architecture_is_told(finished: Path, tiny_bert: Path, tmp_path: Path) -> None:
    path = finished / "checkpoints" / "final.ckpt"
    with pytest.raises(UserError, match="was trained on task 'demo_paraphrase', not 'mrpc'; set task=demo_paraphrase"):
        load_checkpoint(path, task("mrpc"), ModelSpec(name="folder", path=str(tiny_bert)))
    other = tmp_path / "other"
    config = BertConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=3)
    BertForSequenceClassification(config).save_pretrained(other)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(other)
    with pytest.raises(UserError, match="another architecture"):
        load_checkpoint(path, task("demo_paraphrase"), ModelSpec(name="other", path=str(other)))
    with pytest.raises(UserError, match="has 3 outputs"):
        load_checkpoint(other, task("demo_paraphrase"), ModelSpec(name="other", path=str(other)))
    with pytest.raises(UserError, match="has no fine-tuned classifier"):
        load_checkpoint(tiny_bert, task("demo_paraphrase"), ModelSpec(name="other", path=str(other)))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return content["state_dict"]


@pytest.mark.parametrize("trainer", ["ddp_cpu", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_give_the_numbers_of_one(trainer: str, tiny_bert: Path, tmp_path: Path) -> None:
    """37 examples do not divide by two; without dropout the whole training must agree as well."""
    config = json.loads((tiny_bert / "config.json").read_text())
    still = tmp_path / "still"
    still.mkdir()
    for file in tiny_bert.iterdir():
        (still / file.name).write_bytes(file.read_bytes())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    two = {"trainer": trainer, "trainer__devices": 2}
    for name, settings in (("one", {}), ("two", two)):
        given = small(still, tmp_path / name, trainer__max_epochs=1, **settings)
        ran("train", *given, "~callbacks.gradient_flow")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    assert max((one[key] - two[key]).abs().max().item() for key in one) < 1e-5
    tables = [HeadTable.read(tmp_path / name / "heads.parquet") for name in ("one", "two")]
    for column in ("cosine", "jensen_shannon", "cls_cosine", "cls_jensen_shannon"):
        a, b = (table.grid("drift", column, "training", 12) for table in tables)
        assert np.array_equal(a[2], b[2])
        assert np.allclose(a[0], b[0], atol=1e-6)
        assert np.allclose(a[1], b[1], atol=1e-6)
    scores = [json.loads((tmp_path / name / "scores.json").read_text())["sets"]["val"] for name in ("one", "two")]
    assert scores[0]["count"] == scores[1]["count"] == 37
    for metric, value in scores[0]["model"].items():
        assert scores[1]["model"][metric] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"trainer__precision": "bf16-mixed"}, marks=pytest.mark.slow),
        pytest.param({"trainer__precision": "bf16-true"}, marks=pytest.mark.slow),
        pytest.param(
            {
                "trainer__accumulate_grad_batches": 3,
                "optimizer__layer_decay": 0.8,
                "optimizer__freeze": "[embeddings,0]",
            },
            marks=pytest.mark.slow,
        ),
        pytest.param({"init": "random_normal", "callbacks": "none", "task": "demo_similarity"}, marks=pytest.mark.slow),
        pytest.param(
            {"experiment": "drift_kovaleva", "measure__drift__pad_to": 100, "task": "demo_nli"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_runs_of_other_kinds_finish(settings: dict[str, object], tiny_bert: Path, tmp_path: Path) -> None:
    ran("train", *small(tiny_bert, tmp_path / "run", trainer__max_epochs=1, **settings))
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_saves_the_run_and_names_the_command_to_go_on_with(
    number: int, tiny_bert: Path, tmp_path: Path
) -> None:
    process = start(*small(tiny_bert, tmp_path / "run", trainer__max_epochs=500))
    wait_for((tmp_path / "run" / "heads.parquet").is_file, 120)
    os.kill(process.pid, number)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert (
        errors.splitlines()[-1] == f"Interrupted; continue with python -m bertsecrets resume folder={tmp_path / 'run'}"
    )
    assert "Traceback" not in errors
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] >= 6
    assert not (tmp_path / "run" / "finished.json").exists()
