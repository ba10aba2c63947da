"""Search for the fastest smaller model with a loss below the margin: heads and neurons by measured time."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.ablation.verdicts import losses_ruled_out
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast
from bertsecrets.models.metrics import Answers
from bertsecrets.pruning.guarantee import group_changes, guarantee
from bertsecrets.pruning.removal import Kept, keep_only
from bertsecrets.pruning.rows import Group, MetricTest
from bertsecrets.pruning.settings import SPEEDUPS, ShrinkSettings
from bertsecrets.results.formatting import rounded_up
from bertsecrets.shrinking.distillation import distill
from bertsecrets.shrinking.latency import LatencyTable
from bertsecrets.shrinking.refit import refitted
from bertsecrets.statistics.non_inferiority import paired_loss, smallest_ruled_out
from bertsecrets.statistics.power import examples_to_rule_out, loss_ruled_out
from bertsecrets.task_heads.sequence import ACCURACY

_CHANGED = 0.02
"""Share of changed predictions for which :func:`check_examples` states the smallest loss that can be excluded."""

Batches = Callable[[], Iterable[Batch]]


def speedups_of(settings: ShrinkSettings, table: LatencyTable) -> list[float]:
    """The speed-ups to try, in order.

    Raises:
        UserError: If a requested speed-up is out of reach, or they are not ascending.
    """
    if settings.speedup is None:
        return [speedup for speedup in SPEEDUPS if speedup < table.fastest] or [SPEEDUPS[0]]
    requested = settings.speedup if isinstance(settings.speedup, list) else [settings.speedup]
    if not requested or sorted(set(requested)) != requested:
        raise UserError(f"shrink.speedup is {requested}; expected ascending numbers above 1, tested in this order.")
    if requested[-1] >= table.fastest:
        raise UserError(
            f"shrink.speedup is {requested[-1]:g}, but even with a single head, this model is only "
            f"{table.fastest:.1f} times as fast at batch size {table.batch_size} with {table.length} tokens; request "
            "less, or start from a model with fewer layers."
        )
    return list(requested)


def check_examples(count: int, margin: float, confidence: float) -> str:
    """Check in advance what the examples can show.

    Raises:
        UserError: If they cannot exclude a loss of the margin even if no prediction changes.
    """
    check_can_rule_out(f"{count:,} examples", count, "shrink.max_loss", margin, confidence)
    changed = np.array([round(_CHANGED * count / 2)])
    (loss,) = smallest_ruled_out(paired_loss(changed, changed, count), 1 - confidence, 1.0)
    return (
        f"{count:,} examples can rule out a loss of {rounded_up(float(loss)):.1f} points or more if {_CHANGED:.0%} of "
        "the predictions change (half of them for the better), and of "
        f"{rounded_up(loss_ruled_out(count, confidence)):.1f} points or more if none change."
    )


def check_can_rule_out(what: str, count: int, setting: str, margin: float, confidence: float) -> None:
    """Raise UserError if the examples cannot exclude a loss of accuracy even if no prediction changes.

    Args:
        setting: The setting with the margin.
    """
    least = loss_ruled_out(count, confidence)
    if least >= margin:
        needed = math.floor(examples_to_rule_out(margin, confidence)) + 1
        raise UserError(
            f"{what} cannot rule out a loss of {100 * margin:g} points at {100 * confidence:.4g}% confidence, even if "
            f"no prediction changes; the smallest loss they can rule out is {rounded_up(least):.1f}. Test on at least "
            f"{needed:,}, or set {setting}={rounded_up(least):g} or more."
        )


def make_smaller(
    model: nn.Module,
    kept: Kept,
    choosing: Batches,
    teaching: Batches,
    settings: ShrinkSettings,
    *,
    context: Autocast,
    advance: Callable[[int], object] | None = None,
) -> PreTrainedModel:
    """The smaller model: refitted to the original, cut, and distilled from it.

    Args:
        teaching: Batches for distillation.
        advance: Called with the number of finished examples of the distillation.
    """
    smaller = keep_only(refitted(model, kept, choosing(), context=context), kept)
    smaller.eval()
    if settings.epochs:
        distill(
            model,
            smaller,
            teaching,
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            context=context,
            advance=advance,
        )
    return smaller


def paired(whole: Answers, smaller: Answers) -> PairedPredictions:
    """The predictions of both models on the same examples."""
    predictions = (whole.label_N, whole.prediction_N, smaller.prediction_N[None])
    return PairedPredictions(*predictions, group_N=whole.group_N)


def metric_tests(
    whole: Answers,
    smaller: Answers,
    task: Task,
    margin: float,
    confidence: float,
    later: float | None = None,
    attempt: int = 0,
) -> list[MetricTest]:
    """Test every metric; a smaller model must pass all tests, so no correction is needed (Berger 1982).

    Args:
        later: Confidence of a further search on the same examples; None for the same.
    """
    results, reverse = paired(whole, smaller), paired(smaller, whole)
    tests = []
    for metric in judged_metrics(task):
        before, (after,) = results.scores(metric)
        outcome = guarantee(results, metric, margin, confidence)
        (bound_later,) = losses_ruled_out(metric, results, 1 - (later or confidence))
        # The gain of the smaller model is the loss of the original relative to it.
        (gain,) = losses_ruled_out(metric, reverse, 1 - confidence)
        lost, won = map(int, np.concatenate(results.discordant(metric))) if metric.events else (None, None)
        tests.append(
            MetricTest(
                attempt,
                metric.name,
                whole=before,
                smaller=float(after),
                bound=float(outcome.bound_V[0]),
                high=float(gain),
                bound_later=float(bound_later),
                p_margin=float(outcome.p_V[0]),
                needed=outcome.needed,
                lost=lost,
                won=won,
            )
        )
    return tests


def length_changes(
    whole: Answers, smaller: Answers, task: Task, lengths: Sequence[int], confidence: float, attempt: int = 0
) -> list[Group]:
    """:func:`bertsecrets.pruning.guarantee.group_changes` by thirds of length; empty for a task that predicts a score.

    Args:
        lengths: Tokens of each example, in the same order.
    """
    if task.is_regression:
        return []
    length_N = np.asarray(lengths)
    short, long = np.quantile(length_N, [1 / 3, 2 / 3])
    member_GN = {
        f"up to {short:.0f} tokens": length_N <= short,
        f"{short:.0f} to {long:.0f} tokens": (length_N > short) & (length_N <= long),
        f"more than {long:.0f} tokens": length_N > long,
    }
    metric = ACCURACY if task.head.classifies else judged_metrics(task)[0]
    return group_changes(paired(whole, smaller), "length", member_GN, confidence, attempt, metric)
