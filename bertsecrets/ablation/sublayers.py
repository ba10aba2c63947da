"""Whether a model needs its attention or its feed-forward sublayers more, when each is left out of each layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.scoring import judged_metrics
from bertsecrets.data.task import Task
from bertsecrets.results.components import ATTENTION, FEED_FORWARD
from bertsecrets.results.formatting import number
from bertsecrets.statistics.student import mean_limits

SUBLAYERS = "sublayers"
"""``<SUBLAYERS>_<metric>_<mode>`` is the key of a record among a run's checks, see :func:`sublayer_checks`."""


def sublayer_checks(outcomes: Outcomes, task: Task, level: float) -> dict[str, dict[str, Any]]:
    """The mean change of score over layers without a sublayer of each kind, and the interval of their difference.

    The interval is over examples: of an example's mean influence on the differences of all layers, by Student's t. Of accuracy it
    is the t interval of the difference in right answers, averaged over layers (Hampel 1974 for other scores).

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task, with its metrics.
        level: Level of the interval.

    Returns:
        By key of a record: ``layers``, ``attention``, ``ffn`` (mean changes), ``difference`` (attention less feed-forward),
        ``low``, ``high`` and ``level``. Empty unless both kinds were left out of the same layers.
    """
    plan = outcomes.plan
    attention, feed_forward = (
        {plan.variants[index].layer: index for index in plan.of_kind(kind)} for kind in (ATTENTION, FEED_FORWARD)
    )
    if not attention or attention.keys() != feed_forward.keys():
        return {}
    paired = outcomes.predictions(task).of([*attention.values(), *feed_forward.values()])
    if paired.count < 2:
        return {}
    # One weighted sum of changes: its influences are the same sum of theirs.
    sign_V = np.repeat([1.0, -1.0], len(attention)) / len(attention)
    checks = {}
    for metric in judged_metrics(task):
        change_V, influence_N = paired.changes(metric), sign_V @ paired.influences(metric)
        difference = float(sign_V @ change_V)
        _, low, high = mean_limits(difference + influence_N, 1 - level)
        if not low < high:
            # Undefined, or the same in every example.
            continue
        checks[f"{SUBLAYERS}_{metric}_{plan.mode}"] = {
            "layers": len(attention),
            ATTENTION.name: float(change_V[: len(attention)].mean()),
            FEED_FORWARD.name: float(change_V[len(attention) :].mean()),
            "difference": difference,
            "low": float(low),
            "high": float(high),
            "level": level,
        }
    return checks


def sublayers_in_words(check: Mapping[str, Any], metric: str) -> str:
    """Which kind of sublayer this model needs more, from a record of :func:`sublayer_checks`."""
    changes, low, high = (
        [number(100 * check[name], 1, signed=True) for name in names]
        for names in ((ATTENTION.name, FEED_FORWARD.name, "difference"), ("low",), ("high",))
    )
    attention, feed_forward, difference = changes
    sentence = (
        f"Over {check['layers']} layer{'s' * (check['layers'] != 1)}, {metric} changes by {attention} points on average without an "
        f"attention sublayer and by {feed_forward} without a feed-forward sublayer; the difference is {difference} "
        f"({check['level']:.0%} interval {low[0]} to {high[0]})".replace("%", " %")
    )
    if check["low"] <= 0 <= check["high"]:
        return f"{sentence}, which does not tell the kind that this model needs more."
    needed = FEED_FORWARD if check["difference"] > 0 else ATTENTION
    return f"{sentence}: this model needs its {needed.plural} more."
