"""Standard fine-tuning as a LightningModule."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.models.metrics import Evaluated, check_metrics, collected, scores
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.models.sharding import set_whole, shard
from bertsecrets.task_heads.base import output_of

RECORD = "bertsecrets"
"""Key of the run's facts in a checkpoint."""

GATES = "gates"
"""Key of the gates in these facts: one for each head, ``[layers][heads]`` in 0..1."""


class SequenceClassifier(pl.LightningModule):
    """An encoder with a task head, fine-tuned on one task.

    Metrics are computed at the end of each evaluation from the predictions of all processes, each example counted once,
    and are named ``<evaluation set>/<metric>``. A task without labels has no metrics, and nothing is predicted. The
    random numbers of a training step (dropout) depend only on seed, step and process, so nothing between two steps can
    change them, and a resumed run gives the same numbers as an uninterrupted one.

    Args:
        model: A transformers model with the task's kind of head, of ``task.num_outputs`` outputs, or a
            sentence-embedding model.
        task: Chooses loss and metrics.
        optimizer: How to fine-tune.
        evaluation_names: Names of the evaluation sets, in the order of the validation data loaders.
        record: Plain facts of the run, stored in every checkpoint under :data:`RECORD`.
        seed: Seed of the training steps' random numbers.
        compile_model: Whether to compile the model with ``torch.compile``.

    Raises:
        UserError: If the task's metrics do not fit its labels, or a frozen layer does not exist.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        task: Task,
        optimizer: OptimizerConfig,
        evaluation_names: Sequence[str],
        record: dict[str, Any] | None = None,
        seed: int = 0,
        compile_model: bool = False,
    ) -> None:
        super().__init__()
        check_metrics(task)
        self.model = model
        self.task = task
        self.optimizer_config = optimizer
        self.record = record or {}
        self.seed = seed
        self.evaluation_names = tuple(evaluation_names)
        self.answers: dict[str, Evaluated] = {}
        """Answers of the last validation, by evaluation set."""
        self.scores: dict[str, dict[str, float]] = {}
        self.head_gates: nn.Module | None = None
        """Gates with which a callback multiplies the heads' outputs; trained if they have parameters, and stored in
        every checkpoint.
        """
        self.gate_learning_rate = 0.0
        self.gate_penalty: Callable[[], Tensor] | None = None
        """The gates' term of the training loss."""
        self.validated_after_training = False
        """Whether the chosen checkpoint is validated after training; final results then wait for that validation."""
        self.scored_step: int | None = None
        """Step of the last validation during training, whose predictions and scores the module keeps."""
        self.is_scored = False
        """Whether the weights have not changed since that validation, so that its predictions can be reused."""
        self._parts: dict[str, list[Evaluated]] = {}
        self._first_bad_step: Tensor | None = None
        self._sharded = False
        freeze(model, optimizer.freeze)
        if compile_model:
            model.compile(dynamic=True)

    def configure_model(self) -> None:
        """Shard the weights, once, if the strategy has a device mesh."""
        mesh = self.device_mesh
        # Lightning calls this before fitting and again before validation.
        if mesh is not None and not self._sharded:
            shard(self.model, mesh["data_parallel"])
            self._sharded = True

    def forward(self, batch: Batch) -> Tensor:
        """The output of the model's head."""
        return output_of(self.model, batch.inputs())

    def _scored(self, batch: Batch) -> Tensor:
        """The output where labels ask for it: a vocabulary of logits at each token costs as much as the encoder."""
        return batch.head.together(batch.head.output(self.model, batch.inputs(), batch.label_B))

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        step = self.trainer.fit_loop.total_batch_idx
        # Primes, so that neighbouring seeds, steps and processes do not collide.
        torch.manual_seed((self.seed * 1_000_003 + step) * 4_099 + self.global_rank)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        assert batch.label_B is not None
        loss = batch.head.loss(self._scored(batch), batch.label_B)
        step = self.global_step
        # On the device: a comparison in Python would wait for the GPU at every step.
        bad = torch.where(torch.isfinite(loss.detach()), -1, step)
        self._first_bad_step = (
            bad if self._first_bad_step is None else torch.where(self._first_bad_step >= 0, self._first_bad_step, bad)
        )
        # Reading the value synchronises with the GPU, so it is read only every 50 steps.
        if loss.device.type == "cpu" or step % 50 == 0:
            self.check_finite()
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=batch.size)
        # The largest rate, as layers may learn more slowly than the head.
        rate = max(group["lr"] for group in self.trainer.optimizers[0].param_groups)
        self.log("train/learning_rate", rate, batch_size=batch.size)
        # The weight makes the mean of the processes' gradients the gradient of the whole batch's mean loss.
        weighted = loss * batch.weight
        return weighted if self.gate_penalty is None else weighted + self.gate_penalty()

    def check_finite(self) -> None:
        """Raise UserError, with the step, if the loss of any training step so far was not finite."""
        if self._first_bad_step is not None and (step := int(self._first_bad_step.item())) >= 0:
            raise UserError(
                f"The training loss is not finite at step {step}; lower optimizer.learning_rate, or use "
                "trainer.precision=32-true (earlier checkpoints are kept)."
            )

    def on_validation_start(self) -> None:
        # Each example is evaluated once, so some processes may have one batch more than others.
        if self._sharded:
            set_whole(self.model, True)

    def on_validation_end(self) -> None:
        if self._sharded:
            set_whole(self.model, False)

    def on_validation_epoch_start(self) -> None:
        self.check_finite()
        self._parts = {name: [] for name in self.evaluation_names}

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if not self.task.is_labelled or self.is_scored:
            return
        assert batch.label_B is not None
        answers_BC = batch.head.answers(self._scored(batch), batch.label_B).detach().float()
        label_B = self.task.head.outcome_labels(batch.label_B)
        self._parts[self.evaluation_names[dataloader_idx]].append((batch.index_B, answers_BC, label_B))

    def on_validation_epoch_end(self) -> None:
        if self.is_scored:
            return
        self.scored_step = self.global_step
        self.scores = {name: {} for name in self.evaluation_names}
        if not self.task.is_labelled:
            return
        for name in self.evaluation_names:
            head = self.task.head
            self.answers[name] = collected(self._parts.pop(name), head)
            _, logits_NC, label_N = self.answers[name]
            label_N = label_N.to(head.label_type)
            loss = float(logits_NC[:, 0].mean() if head.statistics else head.loss(logits_NC, label_N))
            self.scores[name] = {**scores(logits_NC, label_N, self.task), "loss": loss}
            for metric, value in self.scores[name].items():
                # Every process already has the same value, so there is nothing to reduce.
                self.log(
                    f"{name}/{metric}",
                    value,
                    # Curves over steps contain the scores from training.
                    logger=not (self.validated_after_training and self.trainer.state.fn != TrainerFn.FITTING),
                    prog_bar=metric == self.task.metrics[0],
                    rank_zero_only=False,
                    sync_dist=False,
                )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        config = self.optimizer_config
        # The fused step is faster on CPUs, but Lightning does not clip its gradients under mixed precision.
        mixed = isinstance(self.trainer.precision_plugin, MixedPrecision)
        fused = self.device.type == "cpu" and not mixed
        groups = parameter_groups(self.model, config)
        gates = [] if self.head_gates is None else list(self.head_gates.parameters())
        if gates:
            groups.append({"params": gates, "lr": self.gate_learning_rate, "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            fused=fused,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _rate(self, step: int) -> float:
        """Share of the peak learning rate at a step."""
        if step == 0:
            # The scheduler calls this while it is created. Counting the steps there would make Lightning set up the
            # training data before restoring a checkpoint, and a resumed epoch would restart at its first batch.
            return 0.0 if self.optimizer_config.warmup_fraction > 0 else 1.0
        return linear_rate(step, int(self.trainer.estimated_stepping_batches), self.optimizer_config.warmup_fraction)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_finite()
        checkpoint[RECORD] = {
            **self.record,
            "task": self.task.name,
            "kind": self.task.kind,
            "labels": list(self.task.labels),
            "num_outputs": self.task.num_outputs,
            "model_config": self.model.config.to_dict(),
            "seed": self.seed,
            "step": self.global_step,
        }
        if self.head_gates is not None:
            gates: Any = self.head_gates
            checkpoint[RECORD][GATES] = gates.deterministic().tolist()


def freeze(model: nn.Module, names: Iterable[str | int]) -> None:
    """Exclude the named embeddings and layers from training; raises UserError for a name that does not exist."""
    encoder = describe(model)
    for name in names:
        if name == "embeddings":
            modules: Sequence[nn.Module] = encoder.embeddings
        elif isinstance(name, int) and 0 <= name < encoder.num_layers:
            modules = (encoder.layers[name],)
        else:
            raise UserError(
                f"optimizer.freeze has '{name}'; expected 'embeddings' or a layer from 0 to {encoder.num_layers - 1}."
            )
        for module in modules:
            module.requires_grad_(False)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups for AdamW, one per depth and decay; every trainable parameter is in exactly one.

    A parameter shared by several layers has the rate of the highest of them.
    """
    encoder = describe(model)
    # 0 for embeddings, 1 for layer 0 and so on; the head's parameters are the highest.
    depths = {id(parameter): 0 for module in encoder.embeddings for parameter in module.parameters()}
    for layer, module in enumerate(encoder.layers):
        depths.update((id(parameter), layer + 1) for parameter in module.parameters())
    top = encoder.num_layers + 1
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for parameter in encoder.model.parameters():
        if parameter.requires_grad:
            # Biases and norms are the parameters with fewer than two dimensions.
            groups.setdefault((depths.get(id(parameter), top), parameter.dim() >= 2), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": config.learning_rate * config.layer_decay ** (top - depth),
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (depth, decays), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def linear_rate(step: int, steps: int, warmup_fraction: float) -> float:
    """Share of the peak rate at a step: linear from 0 over the warm-up (at least one step), then linear to 0."""
    warmup = max(1, round(steps * warmup_fraction)) if warmup_fraction > 0 else 0
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))
