"""Prune with a guarantee: how many heads can go, shown by tests of non-inferiority on unseen examples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.scoring import Array
from bertsecrets.ablation.verdicts import change_limits, losses_ruled_out, p_against_margin
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.pruning.sets import SetResults
from bertsecrets.statistics.power import POWER, examples_to_rule_out


@dataclass(frozen=True)
class Guarantee:
    """The outcome of testing models from the largest to the smallest.

    Args:
        passed: Number of models, from the first, whose loss is shown to be below the margin.
        p_V: One-sided p-values of a loss of the margin or more, or of the class margin in any class, of all models.
        bound_V: The largest loss of score that is not ruled out at the confidence, of all models; negative is a gain.
        examples: Number of test examples.
        needed: Test examples that the first model that failed would need to pass with 80 % power, if loss and variance are as
            observed; None if every model passed or this one failed by a class alone, infinite if its observed loss is the margin
            or more.
    """

    passed: int
    p_V: Array
    bound_V: Array
    examples: int
    needed: float | None


def guarantee(
    results: SetResults, metric: str, margin: float, confidence: float, class_margin: float | None = None
) -> Guarantee:
    """Test nested models in a fixed order until the first whose loss may be the margin or more.

    Each test is at level 1 - confidence, and stopping at the first failure keeps the probability that any
    model is passed wrongly at that level (fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995). The order must not
    depend on the tested examples.

    Args:
        results: Predictions of the models on examples that chose neither the models nor their order.
        metric: The metric.
        margin: The loss of score that matters, above 0; 0.01 is one point.
        confidence: Between 0 and 1.
        class_margin: The loss of accuracy within a class that matters, for which a model must pass a test of each class, too; as
            it must pass all, none is corrected (Berger 1982). None for no such test.

    Raises:
        UserError: If margin or confidence are out of range, or there are fewer than two examples.
    """
    if not (margin > 0 and math.isfinite(margin)):
        raise UserError(f"The margin is {100 * margin:g} points; expected a positive number, e.g. prune.max_loss=1.")
    if not 0 < confidence < 1:
        raise UserError(
            f"The confidence is {confidence:g}; expected a number between 0 and 1, e.g. prune.confidence=0.95."
        )
    if results.count < 2:
        raise UserError(f"{results.count} examples are too few to show anything; give at least two.")
    # An undefined change shows nothing.
    of_score_V = np.nan_to_num(p_against_margin(metric, results, margin), nan=1.0)
    p_V = of_score_V if class_margin is None else np.maximum(of_score_V, p_of_classes(results, class_margin))
    failed = np.flatnonzero(p_V > 1 - confidence)
    passed = int(failed[0]) if failed.size else len(p_V)
    needed = None
    if passed < len(p_V) and of_score_V[passed] > 1 - confidence:
        needed = examples_needed(results, passed, metric, margin, confidence)
    return Guarantee(passed, p_V, losses_ruled_out(metric, results, 1 - confidence), results.count, needed)


def within(paired: PairedPredictions, member_N: NDArray[np.bool_]) -> PairedPredictions:
    """The predictions on some of the examples."""
    return PairedPredictions(paired.label_N[member_N], paired.clean_N[member_N], paired.prediction_VN[:, member_N])


def classes_of(paired: PairedPredictions) -> list[PairedPredictions]:
    """The predictions on the examples of each class that there is."""
    return [within(paired, paired.label_N == label) for label in np.unique(paired.label_N)]


def p_of_classes(paired: PairedPredictions, margin: float) -> Array:
    """One-sided p-values of any class losing the margin of its accuracy or more, ``[V]``: the largest over classes."""
    p_CV = [p_against_margin("accuracy", of_class, margin) for of_class in classes_of(paired)]
    return np.asarray(np.max(p_CV, axis=0))


def loss_of_classes(paired: PairedPredictions) -> Array:
    """The largest observed loss of accuracy within a class, ``[V]``."""
    return np.asarray(np.max([-of_class.changes("accuracy") for of_class in classes_of(paired)], axis=0))


def group_changes(
    paired: PairedPredictions, member_GN: Mapping[str, NDArray[np.bool_]], confidence: float
) -> list[dict[str, Any]]:
    """Accuracy of the whole model and of the first smaller one within groups of the examples, as plain values.

    Returns:
        Of each group that has examples its name (``group``), number of ``examples``, accuracies (``whole``, ``smaller``) and the
        limits of their difference (``low``, ``high``), which hold for all groups together (Bonferroni).
    """
    parts = {name: within(paired, member_N) for name, member_N in member_GN.items() if member_N.any()}
    rows = []
    for name, part in parts.items():
        whole, smaller = (float(accuracy) for accuracy in (part.both_VN[:2] == part.label_N).mean(-1))
        limits = change_limits("accuracy", part.of([0]))(np.array([(1 - confidence) / (2 * len(parts))]))
        low, high = (float(limit[0]) for limit in limits)
        rows.append(
            {"group": name, "examples": part.count, "whole": whole, "smaller": smaller, "low": low, "high": high}
        )
    return rows


def class_changes(paired: PairedPredictions, task: Task, confidence: float) -> list[dict[str, Any]]:
    """:func:`group_changes` by class; empty for a task that predicts a score."""
    if task.is_regression:
        return []
    member_GN = {f"class {name}": paired.label_N == label for label, name in enumerate(task.labels)}
    return group_changes(paired, member_GN, confidence)


def examples_needed(results: SetResults, model: int, metric: str, margin: float, confidence: float) -> float:
    """Test examples to show a model's loss below the margin with 80 % power, if loss and variance are as observed.

    The n with n (margin - loss) = (z_confidence + z_power) s sqrt(n) + w, s^2 the variance of the examples' influences on the change of
    score and w the largest harm of one, which the exact test adds; at least what that needs without any changed prediction.

    Returns:
        A whole number, or infinity if the observed loss is the margin or more.
    """
    _, change_V = results.baseline_and_changes(metric)
    room = margin + float(change_V[model])
    if not room > 0:
        return math.inf
    influence_N = results.of([model]).influences(metric)[0]
    quantiles = NormalDist().inv_cdf(confidence) + NormalDist().inv_cdf(POWER)
    reach, largest = quantiles * math.sqrt(float((influence_N**2).mean())), max(-float(influence_N.min()), 0.0)
    root = (reach + math.sqrt(reach**2 + 4 * room * largest)) / (2 * room)
    return float(math.ceil(max(root**2, examples_to_rule_out(margin, confidence))))
