"""Prune with a guarantee: how many heads can go, shown by tests of non-inferiority on unseen examples."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from bertsecrets.ablation.scoring import Array
from bertsecrets.ablation.verdicts import losses_ruled_out, p_against_margin
from bertsecrets.errors import UserError
from bertsecrets.pruning.sets import SetResults
from bertsecrets.statistics.power import POWER, examples_to_rule_out


@dataclass(frozen=True)
class Guarantee:
    """The outcome of testing models from the largest to the smallest.

    Args:
        passed: Number of models, from the first, whose loss is shown to be below the margin.
        p_V: One-sided p-values of a loss of the margin or more, of all models.
        bound_V: The largest loss of score that is not ruled out at the confidence, of all models; negative is a gain.
        examples: Number of test examples.
        needed: Test examples that the first model that failed would need to pass with 80 % power, if loss and variance are as
            observed; None if every model passed, infinite if its observed loss is the margin or more.
    """

    passed: int
    p_V: Array
    bound_V: Array
    examples: int
    needed: float | None


def guarantee(results: SetResults, metric: str, margin: float, confidence: float) -> Guarantee:
    """Test nested models in a fixed order until the first whose loss may be the margin or more.

    Each test is at level 1 - confidence, and stopping at the first failure keeps the probability that any
    model is passed wrongly at that level (fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995). The order must not
    depend on the tested examples.

    Args:
        results: Predictions of the models on examples that chose neither the models nor their order.
        metric: The metric.
        margin: The loss of score that matters, above 0; 0.01 is one point.
        confidence: Between 0 and 1.

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
    p_V = np.nan_to_num(p_against_margin(metric, results, margin), nan=1.0)
    failed = np.flatnonzero(p_V > 1 - confidence)
    passed = int(failed[0]) if failed.size else len(p_V)
    needed = None if passed == len(p_V) else examples_needed(results, passed, metric, margin, confidence)
    return Guarantee(passed, p_V, losses_ruled_out(metric, results, 1 - confidence), results.count, needed)


def examples_needed(results: SetResults, model: int, metric: str, margin: float, confidence: float) -> float:
    """Test examples to show a model's loss below the margin with 80 % power, if loss and variance are as observed.

    n = ((z_confidence + z_power) s / (margin - loss))^2, s^2 the variance of the examples' influences on the change of
    score, and at least what the exact limits need without any changed prediction.

    Returns:
        A whole number, or infinity if the observed loss is the margin or more.
    """
    _, change_V = results.baseline_and_changes(metric)
    room = margin + float(change_V[model])
    if not room > 0:
        return math.inf
    influence_N = results.of([model]).influences(metric)[0]
    quantiles = NormalDist().inv_cdf(confidence) + NormalDist().inv_cdf(POWER)
    spread = math.sqrt(float((influence_N**2).mean()))
    return float(math.ceil(max((quantiles * spread / room) ** 2, examples_to_rule_out(margin, confidence))))
