"""Search for the smallest model with a guarantee: orders of removal, their curves, and the tests."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.ablation.scoring import Array
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder, describe
from bertsecrets.pruning.guarantee import Guarantee, guarantee
from bertsecrets.pruning.recovery import recovered
from bertsecrets.pruning.scores import CONTROLS, RANDOM, Situation, find_score, removal_sets, steps_of
from bertsecrets.pruning.sets import Context, Cost, HeadSet, SetResults, evaluate_sets
from bertsecrets.pruning.settings import PruneSettings

Batches = Callable[[], Iterable[Batch]]


@dataclass(frozen=True)
class Order:
    """Nested sets of removed heads that one score chose, with their results.

    Args:
        score: The score's name.
        seed: Seed of a random score; else 0.
        sets: The removed heads after each step.
        chosen_on, tested_on: Results on the examples that chose the heads, and on the others.
        models: Recovered models, one for each step; empty without recovery.
    """

    score: str
    seed: int
    sets: tuple[HeadSet, ...]
    chosen_on: SetResults
    tested_on: SetResults
    models: tuple[PreTrainedModel, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """The model that pruning returns.

    Args:
        order: The order it lies on.
        place: Its step in the order; None if no smaller model is shown to be good enough.
        tests: Steps of the order that were tested, in this order.
        outcome: The tests' outcome.
    """

    order: Order
    place: int | None
    tests: tuple[int, ...]
    outcome: Guarantee


def check_scores(settings: PruneSettings) -> None:
    """Raise UserError if no score chooses heads, or one is neither a known name, a function nor a table's column."""
    if all(score in CONTROLS for score in settings.scores):
        raise UserError(
            f"prune.scores is [{', '.join(settings.scores)}], which are controls; add a score that chooses heads, e.g. exact."
        )
    for name in settings.scores:
        # A column of the head table may be measured by the same command.
        if "/" not in name:
            find_score(name, {})


def check_settings(settings: PruneSettings, encoder: Encoder) -> list[int]:
    """Numbers of removed heads to try; raises UserError if the settings do not fit the model."""
    total = encoder.num_layers * encoder.num_heads
    if total < 2:
        raise UserError("The model has one attention head, which cannot be removed; choose a model with several.")
    if encoder.family is None:
        raise UserError(
            f"Pruning needs an adapter, and model type '{encoder.base.config.model_type}' has none; add an adapter in "
            "bertsecrets/models/families."
        )
    if settings.keep is not None and settings.keep >= total:
        raise UserError(
            f"prune.keep is {settings.keep}, but the model has {total} heads; give a number from 1 to {total - 1}."
        )
    sizes = steps_of(total, settings.step)
    return sorted({*sizes, total - settings.keep} if settings.keep is not None else sizes)


def search(
    model: nn.Module,
    task: Task,
    choosing: Batches,
    testing: Batches,
    settings: PruneSettings,
    columns: Mapping[str, Array],
    *,
    context: Context,
    progress: Callable[[int], object] | None = None,
) -> tuple[list[Order], Chosen]:
    """Remove heads in every order, and test from the whole model downward how many can go.

    Args:
        model: The model, in evaluation mode.
        task: The task; its first metric is tested.
        choosing: Examples that choose the heads, and train recovered models.
        testing: This process's share of the examples of the tests.
        settings: The settings, checked.
        columns: Columns of the run's head table, which may serve as scores.
        context: Entered around every batch, e.g. the trainer's autocast.
        progress: Called after each order.

    Raises:
        UserError: If a score does not exist or does not fit.
    """
    sizes = check_settings(settings, describe(model))
    plans = []
    rises: dict[HeadSet, Tensor] = {}
    for name in dict.fromkeys(settings.scores):
        score = find_score(name, columns)
        for seed in range(settings.seeds if name == RANDOM else 1):
            situation = Situation(model, task, choosing, seed=settings.seed + seed, context=context, rises=rises)
            plans.append((name, seed, removal_sets(score, situation, sizes, iterative=settings.iterative)))
            if progress is not None:
                progress(1)
    orders = [_order(model, task, choosing, testing, settings, context, *plan) for plan in plans]
    return orders, choose(orders, task.metrics[0], settings)


def _order(
    model: nn.Module,
    task: Task,
    choosing: Batches,
    testing: Batches,
    settings: PruneSettings,
    context: Context,
    name: str,
    seed: int,
    sets: list[HeadSet],
) -> Order:
    whole_chosen = evaluate_sets(model, sets, choosing(), task, context=context)
    whole_tested = evaluate_sets(model, sets, testing(), task, context=context)
    if not settings.recovery_epochs:
        return Order(name, seed, tuple(sets), whole_chosen, whole_tested)
    models: list[PreTrainedModel] = []
    for heads in sets:
        models.append(
            recovered(
                models[-1] if models else model,
                heads,
                choosing,
                task,
                epochs=settings.recovery_epochs,
                learning_rate=settings.learning_rate,
                seed=settings.seed,
                context=context,
            )
        )
    results = []
    for whole, batches in ((whole_chosen, choosing), (whole_tested, testing)):
        single = [
            evaluate_sets(network, [heads], batches(), task, context=context)
            for network, heads in zip(models, sets, strict=True)
        ]
        prediction_VN = np.concatenate([part.prediction_VN for part in single])
        loss_V = np.concatenate([part.loss_V for part in single])
        results.append(SetResults(whole.label_N, whole.clean_N, prediction_VN, whole.clean_loss, loss_V))
    return Order(name, seed, tuple(sets), results[0], results[1], tuple(models))


def choose(orders: list[Order], metric: str, settings: PruneSettings) -> Chosen:
    """The smallest model with the guarantee, or the one that ``settings.keep`` asks for, with its test.

    Candidates are the models whose loss is below the margin on the examples that chose the heads. With several scores, each
    one's tests share the level (Bonferroni).
    """
    margin = settings.max_loss / 100
    choosers = [order for order in orders if order.score not in CONTROLS]
    if settings.keep is not None:
        order = choosers[0]
        total = max(len(heads) for heads in order.sets) + 1
        place = [len(heads) for heads in order.sets].index(total - settings.keep)
        outcome = guarantee(_only(order.tested_on, [place]), metric, margin, settings.confidence)
        return Chosen(order, place, (place,), outcome)
    confidence = 1 - (1 - settings.confidence) / len(choosers)
    best: Chosen | None = None
    for order in choosers:
        _, change_V = order.chosen_on.changes(metric)
        places = [place for place, change in enumerate(change_V) if change > -margin] or [0]
        outcome = guarantee(_only(order.tested_on, places), metric, margin, confidence)
        last = places[outcome.passed - 1] if outcome.passed else None
        candidate = Chosen(order, last, tuple(places), outcome)
        if best is None or (last is not None and (best.place is None or last > best.place)):
            best = candidate
    assert best is not None
    return best


def _only(results: SetResults, places: list[int]) -> SetResults:
    return SetResults(
        results.label_N, results.clean_N, results.prediction_VN[places], results.clean_loss, results.loss_V[places]
    )


def as_extras(orders: list[Order], chosen: Chosen, metric: str, settings: PruneSettings, costs: Cost) -> dict[str, Any]:
    """The results as plain values for the run's folder."""
    total = max(len(heads) for heads in orders[0].sets) + 1
    baseline, _ = orders[0].tested_on.changes(metric)
    curves = []
    for order in orders:
        _, change_V = order.tested_on.changes(metric)
        low_V, high_V = order.tested_on.limits(metric, settings.confidence)
        for place, heads in enumerate(order.sets):
            parameters, flops = costs.without(len(heads))
            curves.append(
                {
                    "score": order.score,
                    "seed": order.seed,
                    "kept": total - len(heads),
                    "change": _number(change_V[place]),
                    "low": _number(low_V[place]),
                    "high": _number(high_V[place]),
                    "loss": float(order.tested_on.loss_V[place]),
                    "parameters": parameters,
                    "flops": flops,
                }
            )
    outcome = chosen.outcome
    tested = chosen.place if chosen.place is not None else chosen.tests[0]
    index = chosen.tests.index(tested)
    _, change_V = chosen.order.tested_on.changes(metric)
    return {
        "metric": metric,
        "baseline": baseline,
        "clean_loss": orders[0].tested_on.clean_loss,
        "total": total,
        "margin": settings.max_loss / 100,
        "confidence": settings.confidence,
        "iterative": settings.iterative,
        "recovery_epochs": settings.recovery_epochs,
        "choosing": len(orders[0].chosen_on.label_N),
        "examples": outcome.examples,
        "length": costs.length,
        "parameters": costs.parameters,
        "flops": costs.flops,
        "curves": curves,
        "chosen": {
            "score": chosen.order.score,
            "kept": total - len(chosen.order.sets[tested]),
            "asked": settings.keep is not None,
            "holds": bool(outcome.p_V[index] <= 1 - settings.confidence) if settings.keep else chosen.place is not None,
            "change": _number(change_V[tested]),
            "bound": _number(outcome.bound_V[index]),
            "p_value": float(outcome.p_V[index]),
            "needed": None if outcome.needed is None or not np.isfinite(outcome.needed) else int(outcome.needed),
            "hopeless": outcome.needed == float("inf"),
        },
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
