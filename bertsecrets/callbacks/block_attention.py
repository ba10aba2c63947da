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
    Direction,
    blocked_logits,
    judged,
)
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.callbacks.head_analysis import HeadAnalysis, Result
from bertsecrets.callbacks.trainer_state import data_of, shows_progress
from bertsecrets.data.special_tokens import special_token_ids
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.models.metrics import Predictions, decide
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.settings import typed

_SETTING = "analysis.block_attention.tokens"


class BlockAttention(HeadAnalysis):
    """Test whether the model needs attention to special tokens, and what these tokens gather.

    A pass of the whole model with nothing blocked, and one for each token and direction. Training is not affected. Any
    number of processes gives the results of one.

    Args:
        run: The run to write results to.
        ablation: How effects are judged; its ``evaluation`` and ``max_examples`` choose the examples.
        tokens: The special tokens, of ``sep`` and ``cls``.

    Raises:
        UserError: If a token is unknown or missing in the tokenizer, or the task has no labels.
    """

    without_labels = "the effect of blocking attention cannot be scored"

    @typed
    def __init__(
        self,
        run: Run,
        ablation: AblationSettings | None = None,
        tokens: Annotated[Sequence[Literal["sep", "cls"]], Field(min_length=1, description="a list of sep and cls")] = (
            "sep",
        ),
    ) -> None:
        self.settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(run, self.settings.evaluation, self.settings.max_examples)
        self.tokens = tuple(dict.fromkeys(tokens))

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        special_token_ids(data_of(trainer).tokenizer, self.tokens, _SETTING)

    @torch.no_grad()
    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Result:
        data, encoder, device = data_of(trainer), describe(module.model), module.device
        task, loader, context = data.task, self.loader(trainer), trainer.precision_plugin.forward_context
        ids = special_token_ids(data.tokenizer, self.tokens, _SETTING)
        blocked: list[tuple[str, Direction]] = [(token, direction) for token in self.tokens for direction in DIRECTIONS]
        collected = [Predictions().to(device) for _ in range(1 + len(blocked))]
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
        clean_N, *blocked_answers = (decide(logits_NC, task).double().numpy() for _, logits_NC, _ in outcomes)
        label_N = outcomes[0][2].double().numpy()
        paired = PairedPredictions(label_N, clean_N, np.stack(blocked_answers))
        return Result(Blocking(), None, rows=judged(task.metrics[0], paired, blocked, self.settings.judging()))
