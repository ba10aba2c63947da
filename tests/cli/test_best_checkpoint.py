"""Which checkpoint is kept as the best."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bertsecrets.cli.train import LaterAmongEquals


class Scored(pl.LightningModule):
    """Validates with the scores given, one after the other."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = scores
        self.weight = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return (self.weight * batch).sum()

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.log("score", self.scores[self.current_epoch])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader([torch.ones(1)])  # type: ignore[arg-type]

    val_dataloader = train_dataloader


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([0.5, 0.7, 0.7, 0.6], 2),
        ([0.7, 0.7, 0.7], 2),
        ([0.5, 0.8, 0.7], 1),
        ([float("nan"), float("nan"), 0.1, float("nan")], 2),
        ([float("nan"), float("nan")], 1),
    ],
)
def test_of_equally_good_checkpoints_the_later_is_kept(tmp_path: Path, scores: list[float], best: int) -> None:
    keep = LaterAmongEquals(
        dirpath=tmp_path, filename="best", monitor="score", mode="max", enable_version_counter=False
    )
    trainer = pl.Trainer(
        max_epochs=len(scores),
        callbacks=[keep],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Scored(scores))
    (kept,) = tmp_path.iterdir()
    assert torch.load(kept, weights_only=True)["epoch"] == best
