"""One line of progress for all epochs of a training."""

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from bertsecrets.cli import training_progress
from bertsecrets.cli.training_progress import TrainingProgress


class Line(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Recorded:
    def __init__(self, total: int, what: str, unit: str) -> None:
        self.total, self.done, self.names, self.closed = total, 0, [what], False

    def update(self, count: int) -> None:
        self.done += count

    def set_description(self, what: str) -> None:
        self.names.append(what)

    def close(self) -> None:
        self.closed = True


def test_one_bar_counts_the_steps_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Recorded] = []

    def record(total: int, what: str, unit: str) -> Recorded:
        bars.append(Recorded(total, what, unit))
        return bars[-1]

    monkeypatch.setattr(training_progress, "progress_bar", record)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, callbacks=[TrainingProgress()], logger=False,
        enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Line(), DataLoader(TensorDataset(torch.ones(12, 1)), batch_size=2))
    (bar,) = bars
    # Six batches an epoch, two of them a step.
    assert (bar.total, bar.done, bar.closed) == (6, 6, True)
    assert bar.names == ["training", "training, epoch 1/2", "training, epoch 2/2"]
