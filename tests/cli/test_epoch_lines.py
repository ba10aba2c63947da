"""The lines of a training where no line can be redrawn."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
from callbacks.test_measures import a_run, measuring, prepared, watched
from trainings import tiny_classifier

from bertsecrets.cli.training_progress import EpochLines
from bertsecrets.measures.drift import Drift


class Losses(pl.Callback):
    """Keeps the loss of each step, by epoch."""

    def __init__(self) -> None:
        self.epochs: list[list[float]] = []
        self.scores: list[float] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.epochs.append([])

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        self.epochs[-1].append(float(outputs["loss"]))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.scores.append(float(trainer.callback_metrics["val/accuracy"]))


@pytest.mark.filterwarnings("ignore")
def test_each_epoch_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, kept = a_run(tmp_path), Losses()
    module, data = prepared(tiny_classifier())
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=3, callbacks=[measuring(watched(Drift), run), kept, EpochLines()], logger=False,
        enable_checkpointing=False, enable_model_summary=False, use_distributed_sampler=False, num_sanity_val_steps=0,
    )  # fmt: skip
    capsys.readouterr()
    trainer.fit(module, datamodule=data)
    lines = capsys.readouterr().out.splitlines()
    for epoch, (line, losses, score) in enumerate(zip(lines, kept.epochs, kept.scores, strict=True)):
        cosine_LH = run.table().grid("drift", "cosine", "training", 2 * (epoch + 1))[0]
        layer, head = np.argwhere(cosine_LH == cosine_LH.min())[0]
        expected = (
            f"epoch {epoch + 1}/3: loss {np.mean(losses):.3f}, val accuracy {score:.3f}, "
            f"layer {layer} · head {head} changed most ({cosine_LH.min():.3f})"
        )
        left = r", about \S+ (s|min|h) of training left" if epoch < 2 else ""
        assert re.fullmatch(re.escape(expected) + left, line)
