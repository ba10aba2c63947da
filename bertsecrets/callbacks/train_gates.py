"""Learn hard-concrete gates together with fine-tuning (Voita et al. 2019, section 6)."""

from contextlib import ExitStack
from typing import Annotated, TypeVar

import pytorch_lightning as pl
import torch
from pydantic import Field
from torch import nn

from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.analysis import Findings, without_errors
from bertsecrets.attention.gates import gated
from bertsecrets.callbacks.run_analysis import analyses_of, keep
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.models.sharding import SHARDED
from bertsecrets.pruning.experiment import LearnedGates
from bertsecrets.pruning.gates import HIGH, LOW, TEMPERATURE, HardConcrete
from bertsecrets.results.run import Run

Kind = TypeVar("Kind", bound=nn.Module)


class TrainGates(pl.Callback):
    """Multiply every head by a gate during fine-tuning, with a penalty on the expected number of open gates.

    Gates are drawn once per batch in training and deterministic in validation. Checkpoints store the gates, which are
    multiplied into the output projections when a checkpoint is loaded.

    Args:
        run: The run to write results to.
        penalty: Penalty per expected open gate, added to the mean loss.
        warmup: Share of all steps over which the penalty rises linearly from 0.
        learning_rate: Peak learning rate of log alpha, with the schedule of the model's.
        temperature, low, high: Parameters of the gates; the defaults are from Voita et al.'s code.
        initial: Initial probability that a gate is open.

    Raises:
        UserError: If a setting is out of range, the model's layers share weights, or its weights are sharded.
    """

    def __init__(
        self,
        run: Run,
        penalty: Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number above 0")] = 0.01,
        warmup: Annotated[float, Field(ge=0, le=1, description="a number from 0 to 1")] = 0.3,
        learning_rate: Annotated[float, Field(gt=0, le=10, description="a number above 0 and up to 10")] = 0.05,
        temperature: float = TEMPERATURE,
        low: float = LOW,
        high: float = HIGH,
        initial: float = 0.95,
    ) -> None:
        # Reject settings out of range before a model is loaded.
        HardConcrete(1, 1, temperature, low, high, initial)
        self.run = run
        self.penalty = penalty
        self.warmup = warmup
        self.learning_rate = learning_rate
        self.shape = (temperature, low, high, initial)
        self._open = ExitStack()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        if isinstance(trainer.strategy, SHARDED):
            raise UserError(
                "The gates callback needs unsharded weights, but this strategy shards them; use trainer.strategy=ddp "
                "instead."
            )
        if any(isinstance(analysis, DisableAnalysis) for analysis in analyses_of(trainer)):
            raise UserError(
                "Heads cannot be disabled while their gates are learned; remove callbacks.disable and run analyze.py "
                "checkpoint=<run> analysis=disable afterwards."
            )
        encoder = describe(pl_module.model)
        if encoder.shares_layers:
            raise UserError(
                f"The layers of model type '{encoder.model.config.model_type}' share one set of weights, so gates of "
                "single layers cannot be stored in it; choose a model without shared layers."
            )
        if pl_module.head_gates is None:
            gates = HardConcrete(encoder.num_layers, encoder.num_heads, *self.shape)
            pl_module.head_gates = gates
            pl_module.gate_learning_rate = self.learning_rate
            pl_module.gate_penalty = lambda: self._penalty_at(trainer) * gates.expected_open()
        self._open.enter_context(gated(pl_module.model, lambda: gates_of(pl_module, HardConcrete)()))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._open.close()

    # Lightning does not tear callbacks down after an exception.
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._open.close()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        assert isinstance(pl_module, SequenceClassifier)
        gates = gates_of(pl_module, HardConcrete)
        value_LHC = torch.stack((gates.deterministic(), gates.open_probability()), -1).detach()
        keep(trainer, self.run, [Findings(LearnedGates(), [without_errors(LearnedGates(), value_LHC)])])

    def _penalty_at(self, trainer: pl.Trainer) -> float:
        rise = self.warmup * float(trainer.estimated_stepping_batches)
        return self.penalty * min(1.0, (trainer.global_step + 1) / max(1.0, rise))


def gates_of(module: SequenceClassifier, kind: type[Kind]) -> Kind:
    """The gates used in fine-tuning a model."""
    gates = module.head_gates
    assert isinstance(gates, kind)
    return gates
