"""Interrupted epochs resume where they stopped, from Lightning's checkpoints, at every possible step."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from data.toy import pairs, wordpiece
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bertsecrets.data.batch import Batch
from bertsecrets.data.sampler import BucketedTrainSampler, ResumableDataLoader
from bertsecrets.data.tokenization import EncodedSplit

EXAMPLES, SIZE, EPOCHS = 44, 8, 3
STEPS = -(-EXAMPLES // SIZE) * EPOCHS
SPLIT = EncodedSplit(pairs(EXAMPLES), wordpiece(), 16)


class CountingSplit(EncodedSplit):
    """Counts the batches that are formed."""

    made = 0

    def __getitem__(self, chosen: Any) -> Batch:
        self.made += 1
        return super().__getitem__(chosen)


class Recorder(pl.LightningModule):
    """Records the examples of every batch, and stops at a chosen step as a kill would."""

    def __init__(self, dies_in: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.dies_in = dies_in
        self.seen: list[list[int]] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if self.global_step == self.dies_in:
            raise KeyboardInterrupt
        self.seen.append(batch.index_B.tolist())
        return self.weight.sum() * batch.weight

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(split: EncodedSplit = SPLIT, num_workers: int = 0) -> ResumableDataLoader:
    sampler = BucketedTrainSampler(split.lengths, SIZE, seed=5)
    return ResumableDataLoader(split, sampler=sampler, batch_size=None, num_workers=num_workers)


def trainer(folder: Path, *callbacks: Callback, **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        **settings,
    )


def run(folder: Path, model: Recorder, resume_from: Path | None = None, workers: int = 0, **settings: Any) -> None:
    """Fit, and save a checkpoint after every step to the folder."""
    every_step = ModelCheckpoint(
        folder, "step-{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False
    )
    validation = DataLoader(SPLIT, sampler=[[0, 1], [2]], batch_size=None)
    fit = trainer(folder, every_step, **settings)
    try:
        fit.fit(model, loader(num_workers=workers), validation, ckpt_path=resume_from, weights_only=True)
    except (KeyboardInterrupt, SystemExit):
        assert model.dies_in is not None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("settings", [{}, {"val_check_interval": 0.5}], ids=["end", "half"])
def test_a_run_resumed_at_any_step_sees_what_an_uninterrupted_one_sees(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    whole = Recorder()
    run(tmp_path, whole, **settings)
    assert len(whole.seen) == STEPS
    for epoch in range(EPOCHS):
        part = whole.seen[epoch * STEPS // EPOCHS : (epoch + 1) * STEPS // EPOCHS]
        assert sorted(index for batch in part for index in batch) == list(range(EXAMPLES))
    for step in range(1, STEPS):
        resumed = Recorder()
        run(tmp_path / str(step), resumed, resume_from=tmp_path / f"step-{step}.ckpt", **settings)
        assert resumed.seen == whole.seen[step:], step


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_dies_twice_sees_every_batch_once(tmp_path: Path, workers: int) -> None:
    whole = Recorder()
    run(tmp_path / "whole", whole, workers=workers)
    first, second, third = Recorder(dies_in=4), Recorder(dies_in=11), Recorder()
    run(tmp_path / "cut", first, workers=workers)
    run(tmp_path / "cut", second, resume_from=tmp_path / "cut" / "step-4.ckpt", workers=workers)
    run(tmp_path / "cut", third, resume_from=tmp_path / "cut" / "step-11.ckpt", workers=workers)
    assert [len(part.seen) for part in (first, second, third)] == [4, 7, STEPS - 11]
    assert first.seen + second.seen + third.seen == whole.seen


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_epoch_cut_short_by_the_trainer_is_over(tmp_path: Path) -> None:
    whole, resumed = Recorder(), Recorder()
    run(tmp_path, whole, limit_train_batches=4)
    run(tmp_path / "on", resumed, resume_from=tmp_path / "step-4.ckpt", limit_train_batches=4)
    assert len(whole.seen) == 4 * EPOCHS
    assert resumed.seen == whole.seen[4:]


def test_the_state_counts_the_batches_delivered_and_is_zero_after_the_last() -> None:
    data = loader()
    assert data.state_dict() == {"epoch": 0, "dealt": 0}
    counts = []
    for _ in data:
        counts.append(data.state_dict()["dealt"])
    assert counts == [1, 2, 3, 4, 5, 0]


def test_skipped_batches_are_not_formed() -> None:
    split = CountingSplit(pairs(EXAMPLES), wordpiece(), 16)
    whole = [batch.index_B.tolist() for batch in loader(split)]
    split.made = 0
    data = loader(split)
    data.load_state_dict({"epoch": 0, "dealt": 4})
    assert data.state_dict() == {"epoch": 0, "dealt": 4}
    assert [batch.index_B.tolist() for batch in data] == whole[4:]
    assert split.made == 2
    assert [batch.index_B.tolist() for batch in data] == whole


def test_the_state_of_another_epoch_skips_nothing() -> None:
    data = loader()
    data.load_state_dict({"epoch": 0, "dealt": 4})
    data.sampler.set_epoch(1)
    assert len(list(data)) == len(data)
