"""The callbacks in the Trainer of Hugging Face: the numbers of a hook, and a folder like any other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from callbacks.own_modules import HEADS, LAYERS, Library, examples
from callbacks.test_own_modules import changes, effects, entropy_by_hand, heads, spread
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import bertsecrets as bs
from bertsecrets import CaptureMaps, DisableHeads, GradientFlow, HeadsCallback, MeasureHeads, huggingface
from bertsecrets.errors import UserError

pytest.importorskip("accelerate", reason="the Trainer needs it")


def trained(folder: Path, *callbacks: HeadsCallback, module: Any = None, **options: Any) -> Trainer:
    torch.manual_seed(3)
    model = (module or Library()).model
    quiet = {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    chosen = {
        name: options.pop(name, value) for name, value in {"eval_strategy": "epoch", "learning_rate": 5e-5}.items()
    }
    arguments = TrainingArguments(str(folder), num_train_epochs=2, per_device_train_batch_size=16, **chosen, **quiet)
    sets = {"train_dataset": examples(64, 1), "eval_dataset": examples(60, 2), **options}
    trainer = Trainer(model, arguments, callbacks=list(callbacks), **sets)
    trainer.train()
    return trainer


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([value.flatten() for value in trainer.model.state_dict().values()])


@pytest.mark.parametrize("strategy", ["epoch", "no"])
def test_training_is_not_affected(strategy: str, tmp_path: Path) -> None:
    own = HeadsCallback(MeasureHeads("entropy"), DisableHeads())
    without, measured = (trained(tmp_path, *callbacks, eval_strategy=strategy) for callbacks in ((), (own,)))
    assert torch.equal(weights(without), weights(measured))
    found = heads(tmp_path / "heads", "entropy", "bits")
    by_hand = entropy_by_hand(measured.model, examples(60, 2))
    assert found.value.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(by_hand, abs=1e-5)
    assert set(pd.read_parquet(tmp_path / "heads/ablation.parquet").step) == {8}


@pytest.mark.parametrize(
    ("options", "chosen", "words"),
    [
        ({"eval_strategy": "no", "eval_dataset": None}, None, "the Trainer's eval_dataset, and it has none"),
        (
            {"eval_dataset": {"ab": examples(8, 2), "b": examples(8, 3)}},
            "ba",
            r"eval_dataset is 'ba'.*did you mean 'b'",
        ),
        ({}, "b", r"eval_dataset is 'b'.*leave it out, as there is one data set"),
    ],
)
def test_what_cannot_be_analysed_is_said(
    options: dict[str, Any], chosen: str | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        trained(tmp_path, HeadsCallback(MeasureHeads("entropy"), eval_dataset=chosen), **options)


def test_sharded_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SimpleNamespace(is_fsdp_enabled=True, is_deepspeed_enabled=False, eval_dataset=[])
    monkeypatch.setattr(huggingface, "_calling_trainer", lambda: trainer)
    nothing: Any = None
    with pytest.raises(UserError, match=r"are sharded.*; use DistributedDataParallel .*, or analyse a checkpoint"):
        HeadsCallback(MeasureHeads("entropy")).on_train_begin(nothing, nothing, nothing, model=nothing)


@pytest.mark.parametrize("chosen", [None, "a"])
def test_one_of_several_evaluation_sets(chosen: str | None, tmp_path: Path) -> None:
    sets = {"a_b": examples(24, 6), "a": examples(60, 2)}
    for folder, name, given in (("all", chosen, sets), ("one", None, sets[chosen or "a_b"])):
        own = HeadsCallback(MeasureHeads("entropy"), DisableHeads(), eval_dataset=name)
        # Every evaluation draws a random number, on which dropout depends.
        trained(tmp_path / folder, own, eval_dataset=given, learning_rate=0.0)
    for table, columns in (("heads", ["value", "count"]), ("ablation", ["delta", "loss_change", "count"])):
        one, of_all = (pd.read_parquet(tmp_path / folder / f"heads/{table}.parquet") for folder in ("one", "all"))
        assert of_all[columns].to_numpy(float) == pytest.approx(one[columns].to_numpy(float), abs=1e-7)


SCRIPT = """
import os
import sys
from callbacks.own_modules import Library, examples
from callbacks.test_own_modules import spread
from transformers import Trainer, TrainingArguments
from bertsecrets import DisableHeads, HeadsCallback, MeasureHeads

arguments = TrainingArguments(
    sys.argv[1], use_cpu=True, per_device_eval_batch_size=8, report_to=[], disable_tqdm=True,
    ddp_backend="gloo" if "RANK" in os.environ else None,
    num_train_epochs=1, per_device_train_batch_size=16, learning_rate=0.0, eval_strategy="no", save_strategy="no",
)
model = spread(Library()).model
model.config.id2label = {0: "low", 1: "high"}
own = HeadsCallback(MeasureHeads("entropy"), DisableHeads(group=[number // 3 for number in range(41)]))
Trainer(model, arguments, train_dataset=examples(32, 1), eval_dataset=examples(41, 2), callbacks=[own]).train()
"""


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for name in ("one", "two"):
        run = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"] if name == "two" else []
        command = [sys.executable, *run, str(tmp_path / "script.py"), str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=paths)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("python -m bertsecrets report run=") == 1
        assert "count twice" not in done.stderr
    for table in ("heads", "ablation"):
        one, two = (pd.read_parquet(tmp_path / name / f"heads/{table}.parquet") for name in ("one", "two"))
        assert set(one["count"]) == set(two["count"]) == {41}
        columns = ["value", "stderr"] if table == "heads" else ["delta", "loss_change", "low_simultaneous", "p_needed"]
        assert two[columns].to_numpy() == pytest.approx(one[columns].to_numpy(), abs=1e-6, nan_ok=True)
    scores = [json.loads((tmp_path / name / "heads/scores.json").read_text()) for name in ("one", "two")]
    assert {score["constant_answer"] for score in scores} <= {"low", "high"}
    assert scores[1]["notes"] == ["The 41 evaluated rows form 14 groups; rows of a group are resampled together."]


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    module: Any = spread(Library())
    rows = examples(60, 2)
    own = HeadsCallback(MeasureHeads("entropy", "drift"), DisableHeads(mode="zero"), CaptureMaps(2), GradientFlow(3))
    trainer = trained(tmp_path, own, module=module)
    folder = tmp_path / "heads"
    measured = heads(folder, "entropy", "bits")
    assert measured.value.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(entropy_by_hand(module, rows), abs=1e-5)
    assert list(heads(folder, "drift", "cosine", "training").step.unique()) == [4, 8]
    assert len(heads(folder, "gradient_flow", "gradient_norm", "training").step.unique()) >= 3
    val, labels = list(DataLoader(rows, 16)), torch.stack([row["labels"] for row in rows])

    def accuracy(said: torch.Tensor) -> float:
        return (said == labels).double().mean().item()

    _, change_LH = changes(module, val, lambda module, batch: module(**batch).logits, accuracy)
    assert effects(folder).delta.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(change_LH)
    assert len(bs.Run(folder).to_pandas()) == LAYERS * HEADS
    trainer.evaluate()
    assert set(pd.read_parquet(folder / "ablation.parquet").step) == {8}
