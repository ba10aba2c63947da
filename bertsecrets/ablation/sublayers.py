"""Whether a model needs its attention or its feed-forward sublayers more, leaving out one of them at a time."""

import numpy as np

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.rows import Sublayers
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.data.task import Task
from bertsecrets.results.components import ATTENTION, FEED_FORWARD
from bertsecrets.results.estimate import Estimate
from bertsecrets.statistics.student import mean_limits


def sublayer_differences(outcomes: Outcomes, task: Task, level: float) -> list[Sublayers]:
    """The mean change of score over layers without each kind of sublayer, and the interval of the difference.

    The interval is over examples: Student's t interval of an example's mean influence on the differences of all layers.
    For accuracy this is the t interval of the difference in correct predictions, averaged over layers (Hampel 1974 for
    other scores).

    One row per metric; none unless both kinds were left out in the same layers.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        level: Level of the interval.
    """
    plan = outcomes.plan
    attention, feed_forward = (
        {plan.variants[index].layer: index for index in plan.of_kind(kind)} for kind in (ATTENTION, FEED_FORWARD)
    )
    if not attention or attention.keys() != feed_forward.keys():
        return []
    paired = outcomes.predictions(task).of([*attention.values(), *feed_forward.values()])
    if paired.count < 2:
        return []
    # A weighted sum of changes, whose influences are the same sum of the changes' influences.
    sign_V = np.repeat([1.0, -1.0], len(attention)) / len(attention)
    rows = []
    for metric in judged_metrics(task):
        change_V, influence_N = paired.changes(metric), sign_V @ paired.influences(metric)
        difference = float(sign_V @ change_V)
        _, low, high = mean_limits(difference + influence_N, 1 - level)
        if not low < high:
            # Undefined, or the same for every example.
            continue
        means = float(change_V[: len(attention)].mean()), float(change_V[len(attention) :].mean())
        interval = Estimate(difference, float(low), float(high), n=paired.count)
        rows.append(Sublayers(metric.name, plan.mode, len(attention), *means, interval, level))
    return rows
