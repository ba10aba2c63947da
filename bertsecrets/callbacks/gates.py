"""Gates on the heads in fine-tuning: learned (Voita et al. 2019, section 6), or fixed, which remove heads before it."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, TypeVar

import pytorch_lightning as pl
import torch
from pydantic import Field
from torch import Tensor, nn

from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.analysis import Findings, without_errors
from bertsecrets.attention.gates import gated
from bertsecrets.callbacks.run_analysis import analyses_of, data_of, is_last_validation, keep, shows_progress
from bertsecrets.data.module import TaskData
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe, evaluating
from bertsecrets.models.sharding import SHARDED
from bertsecrets.pruning.gates import HIGH, LOW, TEMPERATURE, HardConcrete
from bertsecrets.pruning.rows import FirstPruned, LearnedGates, Removed
from bertsecrets.pruning.scores import columns_of, find_score, passes_of, removal_sets, score_label, table_of
from bertsecrets.pruning.sets import Situation
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.results.views import Array

Kind = TypeVar("Kind", bound=nn.Module)


class _Gating(pl.Callback):
    """A callback whose gates end with its stage of training."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._open = ExitStack()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._open.close()

    # Lightning does not tear callbacks down after an exception.
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._open.close()


class TrainGates(_Gating):
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
        super().__init__(run)
        self.penalty = penalty
        self.warmup = warmup
        self.learning_rate = learning_rate
        self.shape = (temperature, low, high, initial)

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


_Count = Annotated[int, Field(ge=1, description="a whole number from 1")]


class FixedGates(nn.Module):
    """An untrained gate of 1 or 0 for each head, stored in checkpoints."""

    gate_LH: Tensor

    def __init__(self, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("gate_LH", torch.ones(num_layers, num_heads))

    def deterministic(self) -> Tensor:
        """The gates, ``[layers, heads]``."""
        return self.gate_LH


class PruneFirst(_Gating):
    """Remove heads when fine-tuning starts, until ``keep`` are left.

    Checkpoints record the removed heads, which are zeroed in the output projections when a checkpoint is loaded.

    Args:
        run: The run to write results to.
        keep: Number of heads to keep; None for all, as the model for comparison.
        score: The score that orders the heads, as in ``prune.scores``; the lowest is removed first. ``exact`` is
            computed on the model before fine-tuning, whose classifier is untrained; a column of ``tables`` may come
            from a fine-tuned model.
        tables: Folders of runs whose columns can serve as scores.
        iterative: Whether the score is recomputed after each tenth of the heads.
        examples: Number of training examples for choosing the heads.
        seed: Seed of a random score.

    Raises:
        UserError: If the number of heads, the score or the model do not fit.
    """

    def __init__(
        self,
        run: Run,
        keep: Annotated[int | None, Field(ge=1, description="a whole number from 1, or null")] = None,
        score: Annotated[str, Field(min_length=1)] = "exact",
        tables: Sequence[str] = (),
        iterative: bool = False,
        examples: _Count = 256,
        seed: Annotated[int, Field(ge=0, description="a whole number from 0")] = 0,
    ) -> None:
        super().__init__(run)
        self.keep = keep
        columns: dict[str, Array] = {}
        for folder in tables:
            columns = {**columns_of(table_of(folder)), **columns}
        self.name = score
        self.score = find_score(score, columns)
        self.columns = columns
        self.iterative = iterative
        self.examples = examples
        self.seed = seed

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        callbacks: Sequence[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        disables = any(isinstance(analysis, DisableAnalysis) for analysis in analyses_of(trainer))
        if disables or any(isinstance(callback, TrainGates) for callback in callbacks):
            raise UserError(
                "Heads that are removed before fine-tuning cannot be disabled or gated in the same run; remove "
                "callbacks.disable and callbacks.gates."
            )
        encoder = describe(pl_module.model)
        total = encoder.num_layers * encoder.num_heads
        if encoder.shares_layers:
            raise UserError(
                f"The layers of model type '{encoder.model.config.model_type}' share one set of weights, so removing "
                "a head from one layer would remove it from all; choose a model without shared layers."
            )
        if self.keep is not None and self.keep > total:
            raise UserError(
                f"callbacks.prune.keep is {self.keep}, but the model has {total} heads; give a number from 1 to "
                f"{total}."
            )
        if pl_module.head_gates is None:
            pl_module.head_gates = FixedGates(encoder.num_layers, encoder.num_heads)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        gates = gates_of(pl_module, FixedGates)
        total = gates.gate_LH.numel()
        # A resumed run loads its gates from the checkpoint.
        if self.keep is not None and self.keep < total and bool(gates.gate_LH.all()):
            for layer, head in self._removed(trainer, pl_module, data_of(trainer), total - self.keep):
                gates.gate_LH[layer, head] = 0
        self._begin(pl_module)

    def _removed(
        self, trainer: pl.Trainer, module: SequenceClassifier, data: TaskData, count: int
    ) -> Sequence[tuple[int, int]]:
        total = gates_of(module, FixedGates).gate_LH.numel()
        tenth = max(1, total // 10)
        sizes = [*range(tenth, count, tenth), count] if self.iterative else [count]
        visible, passes = shows_progress(trainer), passes_of([self.name], self.columns, total)
        with (
            evaluating(describe(module.model).model),
            torch.no_grad(),
            progress_over(len(sizes) * passes * self.examples, "scoring heads", visible) as advance,
        ):
            situation = Situation(
                module.model,
                data.task,
                partial(data.training_sample, self.examples),
                partial(data.training_share, self.examples),
                partial(data.training_split, self.examples),
                seed=self.seed,
                context=trainer.precision_plugin.forward_context,
                progress=advance,
            )
            sets = removal_sets(self.score, situation, sizes, iterative=self.iterative)
        return sorted(sets[-1])

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        self._begin(pl_module)

    def _begin(self, module: SequenceClassifier) -> None:
        # A validation of its own, and one within fine-tuning, begin here too.
        self._open.close()
        self._open.enter_context(gated(module.model, lambda: gates_of(module, FixedGates).gate_LH))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not is_last_validation(trainer):
            return
        assert isinstance(pl_module, SequenceClassifier)
        data, gate_LH = data_of(trainer), gates_of(pl_module, FixedGates).gate_LH.detach().cpu()
        facts = (int(gate_LH.sum()), gate_LH.numel(), data.task.metrics[0], data.evaluation_names[0])
        rows = [Removed(self.name, score_label(self.name), *facts)]
        keep(trainer, self.run, [Findings(FirstPruned(), [without_errors(FirstPruned(), gate_LH[..., None])], rows)])
