"""Shapley values of heads at the last validation."""

from typing import Annotated

import numpy as np
import pytorch_lightning as pl
from pydantic import Field
from torch import nn

from bertsecrets.ablation.outcomes import fingerprint
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.shapley import (
    PERMUTATIONS,
    FinishedOrders,
    Shapley,
    contributions,
    orders,
    plan_of,
    value_grid,
    worths,
)
from bertsecrets.ablation.sweep import sweep
from bertsecrets.callbacks.head_analysis import HeadAnalysis, Result, check_scorable, replacements_of
from bertsecrets.callbacks.trainer_state import shows_progress, stage_of
from bertsecrets.data.module import TaskData
from bertsecrets.errors import UserError
from bertsecrets.measures.base import MaxExamples
from bertsecrets.models.encoder import describe
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, Run


class ShapleyHeads(HeadAnalysis):
    """Estimate the Shapley value of every head from random orders of disabling all of them.

    An order costs one engine sweep with as many variants as heads. Finished orders of a checkpoint's analysis are kept, so
    that an interrupted one is resumed and more orders add to fewer. Any number of processes gives the values of one.

    Args:
        run: The run to write results to.
        ablation: How heads are disabled; its ``mode``, ``seed`` and ``evaluation`` are used.
        permutations: Number of random orders.
        max_examples: A random sample of this many examples; None for all.

    Raises:
        UserError: If there are fewer than two permutations, or the task has no labels.
    """

    def __init__(
        self,
        run: Run,
        ablation: AblationSettings | None = None,
        permutations: Annotated[int, Field(ge=2, description="a whole number from 2")] = PERMUTATIONS,
        max_examples: MaxExamples = 128,
    ) -> None:
        super().__init__(run, ablation, max_examples)
        if permutations < 2:
            raise UserError(
                f"The number of permutations is {permutations}; expected 2 or more, for errors to be estimated."
            )
        self.permutations = permutations

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        check_scorable(trainer.datamodule, self.settings)  # type: ignore[attr-defined]

    def take(self, trainer: pl.Trainer, model: nn.Module) -> Result:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        encoder, task, mode = describe(model), data.task, self.settings.mode
        layers, heads = encoder.num_layers, encoder.num_heads
        drawn = orders(layers, heads, self.permutations, self.settings.seed)
        plans = [plan_of(order, mode, layers, heads) for order in drawn]
        loader = self.loader(trainer)
        replacements = replacements_of(trainer, model, plans[0], self.settings)
        finished: FinishedOrders | None = None
        if stage_of(trainer) == CHECKPOINT:
            what = [trainer.precision, task.name, self.max_examples, *self.settings.model_dump().items()]
            finished = FinishedOrders(self.run.folder / Shapley.name, fingerprint(model, plans[0], what))
        total = sum(len(spec.positions) for spec in loader.sampler)
        worth_PKC = []
        with progress_over(
            total * len(plans) * layers * heads,
            "Shapley values",
            visible=shows_progress(trainer),
            unit="variant·example",
        ) as advance:
            for index, plan in enumerate(plans):
                worth_KC = None if finished is None else finished.load(index)
                if worth_KC is None:
                    outcomes = sweep(
                        model,
                        plan,
                        loader,
                        replacements=replacements,
                        max_tokens=self.settings.max_tokens,
                        context=trainer.precision_plugin.forward_context,
                        progress=advance,
                    )
                    worth_KC = worths(outcomes, task)
                    if finished is not None and self.run.writes:
                        finished.save(index, worth_KC)
                else:
                    advance(total * layers * heads)
                worth_PKC.append(worth_KC)
        experiment = Shapley(task.metrics[0])
        falls = [
            contributions(order, worth_KC, layers, heads) for order, worth_KC in zip(drawn, worth_PKC, strict=True)
        ]
        whole_C, none_C = worth_PKC[0][0], worth_PKC[0][-1]
        extras = {
            "mode": mode,
            "examples": self.count(data),
            "worth": {
                column.name: {"whole": float(whole), "none": float(none)}
                for column, whole, none in zip(experiment.columns, whole_C, none_C, strict=True)
            },
        }
        return Result(experiment, value_grid(experiment.columns, np.stack(falls)), extras)
