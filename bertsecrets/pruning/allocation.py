"""Divide a time budget among the parts of a model: what to keep of each, so that as little as possible is lost."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_STEPS = 4000
"""Times are rounded up to this fraction of the budget, so that the plan never exceeds it."""


def allocate(losses: Sequence[Array], costs: Sequence[Array], budget: float) -> list[int] | None:
    """One choice for each part with the smallest sum of losses whose costs fit the budget (multiple-choice knapsack).

    By dynamic programming over the budget, which is exact but for the rounding of costs.

    Args:
        losses: What each choice of each part loses.
        costs: What it costs, at least 0.
        budget: What all may cost together.

    Returns:
        The place of each part's choice; None if even the cheapest ones exceed the budget.
    """
    if not budget > 0:
        return None
    # Without the small term, a cost of a whole number of steps could be rounded up to the next.
    steps = [np.ceil(np.asarray(cost) / budget * _STEPS - 1e-9).astype(np.int64) for cost in costs]
    # Smallest loss of the parts so far by the steps that they may spend.
    best_T = np.zeros(_STEPS + 1)
    choices = []
    for loss_C, step_C in zip(losses, steps, strict=True):
        value_CT = np.full((len(loss_C), _STEPS + 1), np.inf)
        for index, (loss, step) in enumerate(zip(loss_C, step_C, strict=True)):
            if step <= _STEPS:
                value_CT[index, step:] = best_T[: _STEPS + 1 - step] + loss
        choices.append(value_CT.argmin(axis=0))
        best_T = value_CT.min(axis=0)
    if not np.isfinite(best_T[-1]):
        return None
    left, plan = _STEPS, []
    for choice_T, step_C in zip(reversed(choices), reversed(steps), strict=True):
        plan.append(int(choice_T[left]))
        left -= int(step_C[plan[-1]])
    return plan[::-1]
