"""Attention to special tokens, or from them, blocked in all heads at once: does the model need it?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.seeds import verdicts_over_seeds
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.grid import Shown
from bertsecrets.models.encoder import Encoder
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import low_to_high, number, p_value
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, OVER_SEEDS, WORDS
from bertsecrets.results.views import ExtrasRecord, MeasureView
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.statistics.replicates import effects_over_seeds, noise_of_errors

Direction = Literal["to", "from"]
DIRECTIONS: dict[Direction, str] = {"to": "redirect", "from": "isolate"}
"""What is blocked, and the override mode that does it."""

_VERDICTS = {
    NEEDED: "the score falls significantly",
    DISPENSABLE: "a loss that matters is ruled out",
}


@dataclass(frozen=True)
class Blocked:
    """The effect of blocking attention to or from one special token in every head.

    Args:
        token: Name of the token, of :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`.
        direction: ``to``: no token attends to it, the remaining weights of a row sum to one. ``from``: it attends only to
            itself and so gathers nothing.
        score, delta: The score, and its change.
        low, high: Confidence limits of the change.
        p_value: One-sided p-value of no loss, corrected over the rows as the verdict is.
        flips: Share of examples with another predicted class; for scores, mean absolute change of the prediction.
        verdict: ``needed``, ``dispensable`` or ``inconclusive``.
    """

    token: str
    direction: Direction
    score: float
    delta: float
    low: float
    high: float
    p_value: float
    flips: float
    verdict: str

    @property
    def what(self) -> str:
        """What is blocked, in words."""
        return f"attention {self.direction} {SPECIAL_TOKENS[self.token]}"


@dataclass(frozen=True)
class BlockingRecord(ExtrasRecord):
    """What a run keeps of blocked attention.

    Args:
        metric: The score.
        examples: Number of examples.
        baseline: The score with nothing blocked.
        level: Level of the limits.
        margin: The loss that matters, as a difference of scores.
        rows: The effects.
        seeds: Number of models whose mean they are; with several, limits and verdicts are over seeds and examples.
    """

    metric: str
    examples: int
    baseline: float
    level: float
    margin: float
    rows: tuple[Blocked, ...]
    seeds: int = 1

    @property
    def over(self) -> str:
        """What the limits are over, in words."""
        return "seeds and examples" if self.seeds > 1 else "examples"

    @property
    def words(self) -> Mapping[str, str]:
        """The words for each verdict."""
        return OVER_SEEDS if self.seeds > 1 else WORDS

    def row(self, token: str, direction: str) -> Blocked | None:
        """The effect of blocking one token in one direction; None if it was not blocked."""
        return next((row for row in self.rows if (row.token, row.direction) == (token, direction)), None)


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
) -> BlockingRecord:
    """The effects as verdicts, corrected over all of them.

    Args:
        metric, paired, judging: As for :func:`~bertsecrets.ablation.verdicts.judge`.
        blocked: Token and direction of each variant.
    """
    verdicts = judge(metric, paired, judging)
    rows = tuple(
        Blocked(
            token,
            direction,
            score=float(verdicts.score[row]),
            delta=float(verdicts.delta[row]),
            low=float(verdicts.low[row]),
            high=float(verdicts.high[row]),
            p_value=float(verdicts.p_needed[row]),
            flips=float(verdicts.flips[row]),
            verdict=verdicts.verdict[row],
        )
        for row, (token, direction) in enumerate(blocked)
    )
    return BlockingRecord(metric, paired.count, float(verdicts.baseline[0]), judging.level, judging.margin, rows)


def over_seeds(records: Sequence[BlockingRecord]) -> BlockingRecord:
    """The effects as a statement about other seeds and other examples: the record itself of one seed.

    The records do not say how the errors of two seeds go together on their examples: they count as going the same way.

    Args:
        records: Those of runs that differ by seed; rows that one lacks are left out.
    """
    first = records[0]
    if len(records) == 1:
        return first
    row_VS = [[record.row(row.token, row.direction) for record in records] for row in first.rows]
    shared_SV = list(zip(*([row for row in row_S if row] for row_S in row_VS if all(row_S)), strict=True))
    delta_SV = np.array([[row.delta for row in row_V] for row_V in shared_SV])
    width_SV = np.array([[row.high - row.low for row in row_V] for row_V in shared_SV])
    error_SV = stderr_of_width(width_SV, np.array([[record.level] for record in records]))
    effects = effects_over_seeds(delta_SV, *noise_of_errors(error_SV), margin=first.margin, level=first.level)
    low_V, high_V = effects.limits
    judging = Judging(level=first.level, false_discovery_rate=1 - first.level)
    p_needed_V, verdict_V = verdicts_over_seeds(effects, judging)
    rows = tuple(
        replace(
            row,
            score=float(np.mean([row_V[v].score for row_V in shared_SV])),
            delta=float(effects.delta[v]),
            low=float(low_V[v]),
            high=float(high_V[v]),
            p_value=float(p_needed_V[v]),
            flips=float(np.mean([row_V[v].flips for row_V in shared_SV])),
            verdict=verdict_V[v],
        )
        for v, row in enumerate(shared_SV[0])
    )
    baseline = float(np.mean([record.baseline for record in records]))
    return replace(first, baseline=baseline, rows=rows, seeds=len(records))


class Blocking(Experiment):
    """Attention to special tokens, or from them, blocked in all heads at once."""

    name = "blocking"
    title = "Attention to and from special tokens blocked"
    shown = Shown(compared=False, reads_task=True)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The change of score, with its interval and verdict, for each token and direction."""
        record = BlockingRecord.read(view.extras)
        if record is None:
            return None
        return Section(
            view.title,
            [_finding(row, record) for row in record.rows],
            [
                "Blocked to a token: in every head no token attends to it, and the other weights are scaled to sum to one. "
                "Blocked from a token: in every head it attends only to itself, so that it gathers nothing from the text. "
                "Verdicts are those of disabled heads, corrected over the rows."
            ],
            [blocking_table(record)],
            [
                FigureBlock(
                    view.name,
                    blocking_figure(record),
                    "Change of score with attention to or from a token blocked in all heads.",
                    "Dots with intervals.",
                )
            ],
        )


def change_in_words(row: Blocked, record: BlockingRecord) -> str:
    """A change of score in points with its interval."""
    limits = low_to_high(100 * row.low, 100 * row.high, 1, signed=True)
    return f"{number(100 * row.delta, 1, signed=True)} points ({record.level:.0%} interval {limits})"


def _finding(row: Blocked, record: BlockingRecord) -> str:
    verdict = _VERDICTS.get(row.verdict, "neither a loss nor its absence is shown")
    return (
        f"With {row.what} blocked in all heads, {record.metric} changes by {change_in_words(row, record)} on "
        f"{record.examples:,} examples: {verdict}."
    )


def blocking_table(record: BlockingRecord) -> Table:
    """The effects, a row for each."""
    rows = [
        [
            row.what,
            number(row.score),
            number(100 * row.delta, 1, signed=True),
            low_to_high(100 * row.low, 100 * row.high, 1, signed=True),
            p_value(row.p_value),
            number(100 * row.flips, 1),
            record.words[row.verdict],
        ]
        for row in record.rows
    ]
    header = [
        "blocked",
        record.metric,
        "change, points",
        f"{record.level:.0%} interval",
        "p of a loss",
        "moved answers, %",
        "verdict",
    ]
    caption = f"All heads at once; {record.metric} with nothing blocked: {number(record.baseline)}"
    return Table(header, rows, caption)


def blocking_figure(record: BlockingRecord) -> Figure:
    """The changes of score with their intervals, and what these are over."""
    return interval_rows(
        [IntervalRow(row.what, 100 * row.delta, 100 * row.low, 100 * row.high) for row in record.rows],
        title="Change of score with attention blocked in all heads",
        unit=f"change of {record.metric} (points)",
        note=f"lines: {record.level:.0%} intervals over {record.over}; {sample_size(record.examples)}",
    )
