"""The callbacks in the Trainer of Hugging Face: the numbers of a hook, and a folder like any other."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from callbacks.own_modules import HEADS, LAYERS, Library, examples
from callbacks.test_own_modules import answers, entropy_by_hand, heads, spread, without
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import bertsecrets as bs
from bertsecrets import CaptureMaps, DisableHeads, GradientFlow, HeadsCallback, MeasureHeads
from bertsecrets.errors import UserError

pytest.importorskip("accelerate", reason="the Trainer needs it")


def train(folder: Path, *callbacks: HeadsCallback, **options: Any) -> torch.Tensor:
    """The final weights of a training."""
    torch.manual_seed(3)
    model = Library().model
    quiet = {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    chosen = {"eval_strategy": options.pop("eval_strategy", "epoch"), **quiet}
    arguments = TrainingArguments(str(folder), num_train_epochs=2, per_device_train_batch_size=16, **chosen)
    sets = {"train_dataset": examples(64, 1), "eval_dataset": examples(60, 2), **options}
    Trainer(model, arguments, callbacks=list(callbacks), **sets).train()
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def test_training_is_not_affected(tmp_path: Path) -> None:
    assert torch.equal(train(tmp_path), train(tmp_path, HeadsCallback(MeasureHeads("entropy"))))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_strategy": "no"}, "but there is no validation"),
        ({"eval_dataset": {"a": examples(8, 2), "b": examples(8, 3)}}, "several evaluation sets"),
    ],
)
def test_what_cannot_be_analysed_is_said(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        train(tmp_path, HeadsCallback(MeasureHeads("entropy")), **options)


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    module: Any = spread(Library())
    rows, model = examples(60, 2), module.model
    own = HeadsCallback(MeasureHeads("entropy", "drift"), DisableHeads(mode="zero"), CaptureMaps(2), GradientFlow(3))
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=examples(64, 1), eval_dataset=rows, callbacks=[own])
    trainer.train()
    folder = tmp_path / "heads"
    measured = heads(folder, "entropy", "bits")
    assert measured.value.to_numpy().reshape(LAYERS, HEADS) == pytest.approx(entropy_by_hand(module, rows), abs=1e-5)
    assert list(heads(folder, "drift", "cosine", "training").step.unique()) == [4, 8]
    assert len(heads(folder, "gradient_flow", "gradient_norm", "training").step.unique()) >= 3
    val, labels = list(DataLoader(rows, 16)), torch.stack([row["labels"] for row in rows])
    effects = pd.read_parquet(folder / "ablation.parquet").set_index("variant")
    right = answers(module, val, lambda module, batch: module(**batch).logits) == labels
    for layer in range(LAYERS):
        for head in range(HEADS):
            with without(module, layer, head):
                disabled = answers(module, val, lambda module, batch: module(**batch).logits) == labels
            delta = disabled.double().mean().item() - right.double().mean().item()
            assert effects.loc[f"l{layer:02}h{head:02}"].delta == pytest.approx(delta)
    assert len(bs.Run(folder).to_pandas()) == LAYERS * HEADS
    trainer.evaluate()
    assert set(pd.read_parquet(folder / "ablation.parquet").step) == {8}
