"""Blocking attention to or from special tokens in all heads at once: does the model need it?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from bertsecrets.ablation.outcomes import Collected
from bertsecrets.ablation.plan import Plan, Variant
from bertsecrets.ablation.predictions import PairedPredictions, judged_metrics
from bertsecrets.ablation.rows import Blocked
from bertsecrets.ablation.seeds import verdicts_over_seeds
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.special_tokens import TokenNames, special_token_ids
from bertsecrets.grid import Shown
from bertsecrets.models.encoder import Encoder
from bertsecrets.results.components import GROUP
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.progress import progress_over
from bertsecrets.settings import typed
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.statistics.replicates import effects_over_seeds, noise_of_errors
from bertsecrets.task_heads.base import output_of
from bertsecrets.task_heads.metric import Metric

Direction = Literal["to", "from"]
DIRECTIONS: dict[Direction, str] = {"to": "redirect", "from": "isolate"}
"""What is blocked, and the override mode that blocks it."""


_SETTING = "analysis.block_attention.tokens"


@torch.no_grad()
def blocked_answers(encoder: Encoder, batch: Batch, token_id: int, direction: Direction) -> Tensor:
    """Answers ``[B, F]`` with attention to or from a token blocked in every head of a model in evaluation mode."""
    mode = DIRECTIONS[direction]
    edits = [HeadEdit(layer, head, mode) for layer in range(encoder.num_layers) for head in range(encoder.num_heads)]
    network: nn.Module = encoder.model
    with override(network, edits, away_from=[token_id]):
        return batch.answers(output_of(network, batch.inputs()))


def judged(
    metric: Metric, paired: PairedPredictions, blocked: Sequence[tuple[str, Direction]], judging: Judging
) -> list[Blocked]:
    """The effects and their verdicts, corrected for the number of effects.

    Args:
        metric, paired, judging: As for :func:`~bertsecrets.ablation.verdicts.judge`.
        blocked: Token and direction of each variant.
    """
    verdicts = judge(metric, paired, judging)
    return [
        Blocked(
            token=token,
            direction=direction,
            metric=metric.name,
            baseline=float(verdicts.baseline[row]),
            score=float(verdicts.score[row]),
            change=Estimate(
                float(verdicts.delta[row]), float(verdicts.low[row]), float(verdicts.high[row]), n=paired.count
            ),
            level=judging.level,
            margin=judging.margin,
            p_loss=float(verdicts.p_needed[row]),
            flips=float(verdicts.flips[row]),
            verdict=verdicts.verdict[row],
        )
        for row, (token, direction) in enumerate(blocked)
    ]


def over_seeds(runs: Sequence[Sequence[Blocked]]) -> list[Blocked]:
    """The effects over seeds and examples; those of the run if there is only one.

    The rows do not contain the correlation between the errors of two seeds; it is taken to be 1.

    Args:
        runs: The rows of runs that differ by seed; effects that a run lacks are left out.
    """
    if len(runs) == 1:
        return list(runs[0])
    by_variant = [{(row.token, row.direction): row for row in rows} for rows in runs]
    shared = [variant for variant in by_variant[0] if all(variant in rows for rows in by_variant)]
    row_SV = [[rows[variant] for variant in shared] for rows in by_variant]
    first = row_SV[0][0]
    delta_SV = np.array([[row.change.value for row in row_V] for row_V in row_SV])
    width_SV = np.array([[row.change.high - row.change.low for row in row_V] for row_V in row_SV])
    error_SV = stderr_of_width(width_SV, np.array([[row_V[0].level] for row_V in row_SV]))
    margin = math.nan if first.margin is None else first.margin
    effects = effects_over_seeds(delta_SV, *noise_of_errors(error_SV), margin=margin, level=first.level)
    low_V, high_V = effects.limits
    judging = Judging(level=first.level, false_discovery_rate=1 - first.level)
    p_needed_V, verdict_V = verdicts_over_seeds(effects, judging)
    return [
        replace(
            row,
            baseline=float(np.mean([row_V[v].baseline for row_V in row_SV])),
            score=float(np.mean([row_V[v].score for row_V in row_SV])),
            change=Estimate(float(effects.delta[v]), float(low_V[v]), float(high_V[v]), n=row.change.n),
            p_loss=float(p_needed_V[v]),
            flips=float(np.mean([row_V[v].flips for row_V in row_SV])),
            verdict=verdict_V[v],
        )
        for v, row in enumerate(row_SV[0])
    ]


class Blocking(Experiment):
    """Attention to or from special tokens, blocked in all heads at once."""

    name = "blocking"
    title = "Attention to and from special tokens blocked"
    shown = Shown(compared=False, reads_task=True)
    presenter = "bertsecrets.present.special_tokens:BLOCKING"


class BlockAttention(Analysis):
    """Test whether the model needs attention to special tokens, and what these tokens collect from others.

    Runs one pass of the whole model with nothing blocked, and one for each token and direction.

    Args:
        ablation: How effects are tested; its ``evaluation`` and ``max_examples`` choose the examples.
        tokens: The special tokens, of ``sep`` and ``cls``.

    Raises:
        UserError: If a token is unknown or missing from the tokenizer, or the task has no labels.
    """

    without_labels = "the effect of blocking attention cannot be measured"

    @typed
    def __init__(
        self,
        ablation: AblationSettings | None = None,
        tokens: TokenNames = ("sep",),
    ) -> None:
        self.settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(self.settings.evaluation, self.settings.max_examples)
        self.tokens = tuple(dict.fromkeys(tokens))

    def check(self, context: Context) -> None:
        super().check(context)
        special_token_ids(context.data.tokenizer, self.tokens, _SETTING)

    def run(self, context: Context) -> Iterator[Findings]:
        encoder, device, task = context.encoder, context.device, context.task
        batches = context.batches(self.max_examples)
        ids = special_token_ids(context.data.tokenizer, self.tokens, _SETTING)
        blocked: list[tuple[str, Direction]] = [(token, direction) for token in self.tokens for direction in DIRECTIONS]
        heads = tuple((layer, head) for layer in range(encoder.num_layers) for head in range(encoder.num_heads))
        variants = tuple(Variant(f"{direction}-{token}", GROUP.name, heads) for token, direction in blocked)
        collected = Collected(Plan(Blocking.name, encoder.num_layers, encoder.num_heads, variants))
        with progress_over(len(batches), "blocked attention", visible=context.progress) as advance:
            for on_host in batches:
                batch = on_host.to(device)
                assert batch.label_B is not None
                with context.autocast():
                    clean_BF = batch.answers(output_of(encoder.model, batch.inputs()))
                    answers = [blocked_answers(encoder, batch, ids[token], direction) for token, direction in blocked]
                label_B = batch.head.outcome_labels(batch.label_B)
                collected.update(batch, label_B, clean_BF, torch.stack(answers, 1))
                advance()
        paired = collected.outcomes().predictions(task)
        rows = judged(judged_metrics(task)[0], paired, blocked, self.settings.judging())
        yield Findings(Blocking(), rows=rows)
