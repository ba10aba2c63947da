"""Block attention to special tokens, then from them, in all heads at once, at the last validation."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from pydantic import Field

from bertsecrets.ablation.blocking import (
    DIRECTIONS,
    Blocking,
    BlockingRecord,
    Direction,
    blocked_logits,
    judged,
)
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.callbacks.head_analysis import check_scorable
from bertsecrets.callbacks.trainer_state import is_last_validation, shows_progress
from bertsecrets.data.module import TaskData
from bertsecrets.data.special_tokens import check_special_tokens, special_token_ids
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe, evaluating
from bertsecrets.models.metrics import Predictions, decide
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.results.views import OWN

_SETTING = "analysis.block_attention.tokens"


class BlockAttention(pl.Callback):
    """Test whether the model needs attention to special tokens, and what these tokens gather.

    A pass of the whole model with nothing blocked, and one for each token and direction. Training is not affected. Any number
    of processes gives the results of one.

    Args:
        run: The run to write results to.
        ablation: How effects are judged; its ``evaluation`` and ``max_examples`` choose the examples.
        tokens: The special tokens, of ``sep`` and ``cls``.

    Raises:
        UserError: If a token is unknown or missing in the tokenizer, or the task has no labels.
    """

    def __init__(
        self,
        run: Run,
        ablation: AblationSettings | None = None,
        tokens: Annotated[Sequence[Literal["sep", "cls"]], Field(min_length=1, description="a list of sep and cls")] = (
            "sep",
        ),
    ) -> None:
        self.run = run
        self.settings = ablation or AblationSettings()
        self.tokens = check_special_tokens(tokens, "blocked attention")

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        data.check_evaluation(self.settings.evaluation)
        check_scorable(data, self.settings)
        special_token_ids(data.tokenizer, self.tokens, _SETTING)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not is_last_validation(trainer):
            return
        assert isinstance(pl_module, SequenceClassifier)
        with evaluating(pl_module.model):
            record = self.take(trainer, pl_module)
        if self.run.writes:
            experiment = Blocking()
            self.run.declare(experiment.declaration())
            self.run.write_json(self.run.extras_path(experiment.name), {OWN: record.plain()})

    @torch.no_grad()
    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> BlockingRecord:
        """The judged effects, over all processes; the model is in evaluation mode."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        task, encoder = data.task, describe(module.model)
        ids = special_token_ids(data.tokenizer, self.tokens, _SETTING)
        device = next(encoder.model.parameters()).device
        blocked: list[tuple[str, Direction]] = [(token, direction) for token in self.tokens for direction in DIRECTIONS]
        collected = [Predictions().to(device) for _ in range(1 + len(blocked))]
        loader = data.evaluation_loader(
            data.check_evaluation(self.settings.evaluation), max_examples=self.settings.max_examples
        )
        context = trainer.precision_plugin.forward_context
        none = torch.zeros(0, device=device)
        for predictions in collected:
            # A process without a batch takes part in the gathering, too.
            predictions.update(none.long(), none.new_zeros(0, task.num_outputs), none)
        with progress_over(len(loader), "blocked attention", visible=shows_progress(trainer)) as advance:
            for on_host in loader:
                batch = on_host.to(device)
                assert batch.label_B is not None
                with context():
                    logits = [encoder.model(**batch.inputs()).logits]
                    logits += [blocked_logits(encoder, batch, ids[token], direction) for token, direction in blocked]
                for predictions, logits_BC in zip(collected, logits, strict=True):
                    predictions.update(batch.index_B, logits_BC, batch.label_B)
                advance()
        outcomes = [predictions.collected() for predictions in collected]
        clean_N, *others = (decide(logits_NC, task).double().numpy() for _, logits_NC, _ in outcomes)
        label_N = outcomes[0][2].double().numpy()
        return judged(task.metrics[0], label_N, clean_N, np.stack(others), blocked, **self.settings.judging())
