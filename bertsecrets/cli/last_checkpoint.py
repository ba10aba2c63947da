"""The checkpoint from which a run resumes: written every few steps, before a validation, and on a signal."""

import signal
import subprocess
from os import PathLike
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.loops.evaluation_loop import RestartStage
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.trainer.states import TrainerFn

from bertsecrets.results.files import atomic_write
from bertsecrets.sweeps import signals
from bertsecrets.sweeps.run_folder import keep_results
from bertsecrets.sweeps.signals import Interrupted


class RunGuard(pl.Callback):
    """Prepare a run for failures: install our signal handlers, watch its processes, and keep its results.

    Args:
        processes: Filled with the processes that Lightning has started.
    """

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning installs its own after it has set everything up.
        signals.install()
        keep_results()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.install()
        keep_results()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        started = getattr(trainer.strategy.launcher, "procs", None)
        if started:
            self.processes += started
            # Lightning's own watch would kill this process silently within five seconds.
            started.clear()


class LastCheckpoint(Checkpoint):
    """Save the training state to one file, from which a resumed run continues as if never interrupted.

    It is saved every few steps, before every validation (an interrupted validation starts over), after the last step,
    and after a signal as soon as the current step is complete.

    Args:
        path: The file.
        every_n_steps: Steps between two checkpoints.
    """

    def __init__(self, path: Path, every_n_steps: int) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self._saved_step = -1
        self._step = 0
        self._stepped = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning treats a checkpoint from before a validation as one from after it.
        trainer.fit_loop.epoch_loop.val_loop._restart_stage = RestartStage.RESTARTED_MID_EVALUATION
        self._saved_step = self._step = trainer.global_step
        signals.defer(True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.defer(False)
        if (number := signals.requested()) is not None:
            raise Interrupted(number)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        signals.defer(False)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Gradients that are still accumulated are not part of a checkpoint.
        self._stepped, self._step = trainer.global_step != self._step, trainer.global_step
        if not self._stepped:
            return
        number = self._request(trainer)
        data_fetcher = trainer.fit_loop._data_fetcher
        assert data_fetcher is not None
        if trainer.fit_loop.epoch_loop._should_check_val_fx(data_fetcher):
            # Saved when the validation starts.
            return
        if number is not None or self._step % self.every_n_steps == 0:
            self._save(trainer)
        if number is not None:
            raise Interrupted(number)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        if self._stepped:
            self._save(trainer)
        number = self._request(trainer)
        signals.defer(False)
        if number is not None:
            raise Interrupted(number)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            signals.defer(True)

    def finish(self, trainer: pl.Trainer) -> None:
        """Save the state after the last step, unless a validation followed it."""
        if self._saved_step != trainer.global_step or not self.path.is_file():
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.path, weights_only=False)
        self._saved_step = trainer.global_step

    def _request(self, trainer: pl.Trainer) -> int | None:
        """The signal that any process of the run has received; None without one."""
        number = signals.requested()
        if trainer.world_size == 1:
            return number
        interrupted = trainer.strategy.reduce_boolean_decision(number is not None, all=False)
        return (number or signal.SIGTERM) if interrupted else None


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written next to the old file and renamed over it.

    Lightning writes to the system's temporary folder and moves the file; across file systems that is a copy, and a run
    killed during the copy would lose the checkpoint from which it can be resumed.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint; raise UserError if the disk is full."""
        with atomic_write(Path(path)) as temporary:
            torch.save(checkpoint, temporary)
