"""Attention to special tokens, or from them, blocked in all heads at once: does the model need it?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.rows import Blocked
from bertsecrets.ablation.seeds import verdicts_over_seeds
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.grid import Shown
from bertsecrets.models.encoder import Encoder
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.statistics.replicates import effects_over_seeds, noise_of_errors

Direction = Literal["to", "from"]
DIRECTIONS: dict[Direction, str] = {"to": "redirect", "from": "isolate"}
"""What is blocked, and the override mode that does it."""


@torch.no_grad()
def blocked_logits(encoder: Encoder, batch: Batch, token_id: int, direction: Direction) -> Tensor:
    """Logits ``[B, C]`` with attention to or from a token blocked in every head of a model in evaluation mode."""
    mode = DIRECTIONS[direction]
    edits = [HeadEdit(layer, head, mode) for layer in range(encoder.num_layers) for head in range(encoder.num_heads)]
    network: nn.Module = encoder.model
    with override(network, edits, away_from=[token_id]):
        logits_BC: Tensor = network(**batch.inputs()).logits
    return logits_BC


def judged(
    metric: str, paired: PairedPredictions, blocked: Sequence[tuple[str, Direction]], judging: Judging
) -> list[Blocked]:
    """The effects as verdicts, corrected over all of them.

    Args:
        metric, paired, judging: As for :func:`~bertsecrets.ablation.verdicts.judge`.
        blocked: Token and direction of each variant.
    """
    verdicts = judge(metric, paired, judging)
    return [
        Blocked(
            token=token,
            direction=direction,
            metric=metric,
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
    """The effects as a statement about other seeds and other examples: those of the run if there is one.

    The rows do not say how the errors of two seeds go together on their examples: they count as going the same way.

    Args:
        runs: The rows of runs that differ by seed; what one lacks is left out.
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
    effects = effects_over_seeds(delta_SV, *noise_of_errors(error_SV), margin=first.margin, level=first.level)
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
    """Attention to special tokens, or from them, blocked in all heads at once."""

    name = "blocking"
    title = "Attention to and from special tokens blocked"
    shown = Shown(compared=False, reads_task=True)
    presenter = "bertsecrets.present.special_tokens:BLOCKING"
