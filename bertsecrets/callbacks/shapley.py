"""Shapley values of heads at the last validation."""

from typing import Annotated

import pytorch_lightning as pl
from pydantic import Field

from bertsecrets.ablation.outcomes import Parts, fingerprint
from bertsecrets.ablation.replacements import prepare
from bertsecrets.ablation.rows import Worth
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.shapley import PERMUTATIONS, KeptOrders, Shapley, orders, plan_of, take_worths, value_grid
from bertsecrets.callbacks.head_analysis import DISABLING, HeadAnalysis, Result, check_references
from bertsecrets.callbacks.trainer_state import stage_of
from bertsecrets.measures.base import MaxExamples
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.settings import typed


class ShapleyHeads(HeadAnalysis):
    """Estimate the Shapley value of every head from random orders of disabling all of them.

    An order costs one engine sweep with as many variants as heads. The analysis of a checkpoint keeps the worths of
    finished orders and the finished batches of the current one until it is done; an interrupted one can be resumed,
    also with more orders. Any number of processes gives the values of one.

    Args:
        run: The run to write results to.
        ablation: How heads are disabled; its ``mode``, ``seed`` and ``evaluation`` are used.
        permutations: Number of random orders.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If there are fewer than two permutations, or the task has no labels.
    """

    without_labels = DISABLING

    @typed
    def __init__(
        self,
        run: Run,
        ablation: AblationSettings | None = None,
        permutations: Annotated[
            int, Field(ge=2, description="a whole number from 2, for errors to be estimated")
        ] = PERMUTATIONS,
        max_examples: MaxExamples = 128,
    ) -> None:
        self.settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(run, self.settings.evaluation, max_examples)
        self.permutations = permutations

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        check_references(trainer, self.settings)

    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Result:
        subject, mode = self.subject(trainer, module.model), self.settings.mode
        layers, heads, task = subject.encoder.num_layers, subject.encoder.num_heads, subject.task
        drawn = orders(layers, heads, self.permutations, self.settings.seed)
        plans = [plan_of(order, mode, layers, heads) for order in drawn]
        batches = subject.batches(self.max_examples)
        kept: KeptOrders | None = None
        parts: list[Parts | None] = [None] * len(plans)
        if stage_of(trainer) == CHECKPOINT:
            batch = subject.split[subject.positions(self.max_examples)]
            tensors = (batch.input_ids_BS, batch.attention_mask_BS, batch.label_B)
            examples = [None if tensor is None else tensor.tolist() for tensor in tensors]
            key = [trainer.precision, task.name, examples, *self.settings.model_dump().items()]
            identity = fingerprint(module.model, plans[0], key)
            kept = KeptOrders(self.run.folder / Shapley.name, identity, writes=trainer.is_global_zero)
            parts = [kept.parts(index) for index in range(len(plans))]
        missing = len(plans) if kept is None else sum(kept.worths(index) is None for index in range(len(plans)))
        total = sum(len(spec.positions) for spec in batches.sampler) * missing * layers * heads
        with progress_over(total, "Shapley values", visible=subject.progress, unit="variant·example") as advance:
            worth_PKC = take_worths(
                module.model,
                plans,
                parts,
                lambda: batches,
                task,
                kept,
                replacements=prepare(subject, plans[0], self.settings),
                max_tokens=self.settings.max_tokens,
                context=subject.context,
                progress=advance,
            )
        experiment, count = Shapley(task.metrics[0]), len(subject.positions(self.max_examples))
        rows = [
            Worth(column.name, float(whole), float(none), mode, count)
            for column, whole, none in zip(experiment.columns, worth_PKC[0, 0], worth_PKC[0, -1], strict=True)
        ]
        grid = value_grid(task.metrics[0], drawn, worth_PKC)
        return Result(experiment, grid, rows=rows, finish=None if kept is None else kept.clear)
