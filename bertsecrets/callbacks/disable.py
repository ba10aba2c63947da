"""Disable heads and layers at validation time and judge the effects."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import pytorch_lightning as pl
from pydantic import Field
from pytorch_lightning.utilities import rank_zero_info

from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.sweep import Judged, Sweep
from bertsecrets.callbacks.head_analysis import DISABLING, HeadAnalysis, check_references
from bertsecrets.callbacks.trainer_state import is_last_validation, stage_of
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.settings import Meaning

_HOW_MUCH = Meaning(conditions="alone")


class DisableHeads(HeadAnalysis):
    """Disable heads and layers of the model at validation time and judge which effects are more than noise.

    Training is not affected: no random number is drawn, the model returns to its mode, and the final weights equal
    those of a run without this callback. Any number of processes gives the results of one.

    Args:
        run: The run to write results to.
        ablation: What is disabled, how, and how the effect is judged.
        plans, limit: See :class:`bertsecrets.ablation.sweep.Sweep`. Without a limit, sweeps during training are exact.
        every_n_validations: Sweep at every n-th validation and at the last; 0: only at the last.

    Raises:
        UserError: If a setting names a plan, head or set that does not exist, or the plan is empty.
    """

    without_labels = DISABLING

    def __init__(
        self,
        run: Run,
        ablation: AblationSettings | None = None,
        plans: Annotated[Sequence[str], Field(min_length=1), _HOW_MUCH] = ("heads", "layers"),
        every_n_validations: Annotated[
            int, Field(ge=0, description="a whole number from 1, or 0 for the last validation only"), _HOW_MUCH
        ] = 0,
        limit: Annotated[
            float | None, Field(gt=0, description="a positive number of seconds, or null"), _HOW_MUCH
        ] = None,
    ) -> None:
        self.settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(run, self.settings.evaluation)
        self.sweep = Sweep(plans, self.settings, limit)
        self.every_n_validations = every_n_validations
        self.seconds = 0.0
        """Duration of the last sweep on all processes."""
        self._validations = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        assert isinstance(pl_module, SequenceClassifier)
        check_references(trainer, self.settings)
        judged = judged_metrics(pl_module.task)
        for metric in pl_module.task.metrics:
            if metric not in judged:
                rank_zero_info(f"Disabled heads are judged by {' and '.join(judged)}, not by {metric}.")
        self.sweep.check(describe(pl_module.model))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_bf16(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_bf16(trainer, pl_module)

    def _check_bf16(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, SequenceClassifier)
        self.sweep.check_bf16(describe(module.model), module.task, trainer.precision_plugin.forward_context)

    def is_due(self, trainer: pl.Trainer) -> bool:
        self._validations += 1
        every = self.every_n_validations
        return is_last_validation(trainer) or bool(every and self._validations % every == 0)

    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Judged | None:
        started = time.monotonic()
        # A sweep during training has another model each time: nothing of it is kept to be resumed.
        key = [trainer.precision] if stage_of(trainer) == CHECKPOINT else None
        judged = self.sweep.run(self.subject(trainer, module.model), self.run, key)
        self.seconds = time.monotonic() - started
        return judged

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]

    @property
    def state_key(self) -> str:
        # Several sweeps of one training count their validations apart.
        return self._generate_state_key(
            plans=self.sweep.plans, mode=self.settings.mode, evaluation=self.settings.evaluation
        )
