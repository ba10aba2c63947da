"""Progress where a line cannot be redrawn, and one line for all epochs of a training."""

from unittest.mock import Mock, call

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from bertsecrets.cli import training_progress
from bertsecrets.cli.training_progress import TrainingProgress
from bertsecrets.results import progress
from bertsecrets.results.progress import progress_over


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # A line after each minute: 24, 48, 72 and 96 % are done.
        (250, [(20, 60), (40, 120), (70, 180), (90, 240)]),
        # An hour: a line for each tenth.
        (3600, [(share, 36 * share) for share in range(10, 100, 10)]),
        (59, []),
    ],
)
def test_a_file_gets_at_most_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: int, expected: list[tuple[int, int]]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress_over(1000, "disabling") as advance:
        for _ in range(250):
            now += seconds / 250
            advance(4)
    lines = [f"disabling: {share} % after {passed} s" for share, passed in expected]
    assert capsys.readouterr().err.splitlines() == lines


def test_work_that_is_not_to_be_shown_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_BETWEEN", 0.0)
    for visible in (True, False):
        with progress_over(3, "heads", visible) as advance:
            for _ in range(3):
                advance()
        assert bool(capsys.readouterr().err) == visible


class Line(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_one_bar_counts_the_steps_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Mock()
    made = Mock(return_value=bar)
    monkeypatch.setattr(training_progress, "progress_bar", made)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, callbacks=[TrainingProgress()], logger=False,
        enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Line(), DataLoader(TensorDataset(torch.ones(12, 1)), batch_size=2))
    # Six batches an epoch, two of them a step.
    assert made.call_args.args[:2] == (6, "training")
    assert sum(call.args[0] for call in bar.update.call_args_list) == 6
    assert bar.set_description.call_args_list == [call("training, epoch 1/2"), call("training, epoch 2/2")]
    bar.close.assert_called_once()
