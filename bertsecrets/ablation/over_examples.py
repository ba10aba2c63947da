"""How much of the effects of single heads on single examples is the head's own, and how much varies over examples."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.scoring import Array
from bertsecrets.data.task import Task
from bertsecrets.results.components import HEAD
from bertsecrets.results.formatting import number
from bertsecrets.statistics.replicates import intraclass_correlation

OVER_EXAMPLES = "over_examples"
"""``<OVER_EXAMPLES>_<mode>`` is the key of a record among a run's checks, see :func:`over_examples_check`."""

_BLOCKS = 20


def over_examples_check(outcomes: Outcomes, task: Task, level: float) -> dict[str, dict[str, Any]]:
    """The share of the variance of heads' effects on single examples' losses that is over examples.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task.
        level: Level of the interval.

    Returns:
        By key of a record: ``share``, ``low``, ``high``, ``level``, ``heads`` and ``examples``. Empty without
        :func:`effects_on_losses`, or where nothing varies.
    """
    effect_HN = effects_on_losses(outcomes, task)
    if effect_HN is None:
        return {}
    share, stderr = share_over_examples(effect_HN)
    if not math.isfinite(stderr):
        return {}
    reach = float(stats.t.ppf((1 + level) / 2, _BLOCKS - 1)) * stderr
    record = {"share": share, "low": max(0.0, share - reach), "high": min(1.0, share + reach), "level": level}
    heads, examples = effect_HN.shape
    return {f"{OVER_EXAMPLES}_{outcomes.plan.mode}": {**record, "heads": heads, "examples": examples}}


def effects_on_losses(outcomes: Outcomes, task: Task) -> Array | None:
    """Rise of each example's loss with each head disabled alone, ``[heads, examples]``.

    None with fewer than two heads or two examples a block of the jackknife, and for a screened sweep, whose losses are
    partly estimates.
    """
    heads = outcomes.plan.of_kind(HEAD)
    few = len(heads) < 2 or len(outcomes.index_N) < 2 * _BLOCKS
    if few or outcomes.is_screened:
        return None
    clean_N, loss_NV = outcomes.losses(task)
    effect_HN: Array = (loss_NV[:, heads] - clean_N[:, None]).T.double().numpy()
    return effect_HN


def share_over_examples(effect_HN: Array) -> tuple[float, float]:
    """Share of the variance of effects that is over examples, with its standard error; NaN where undefined.

    An effect is the sum of a mean, a part of the head, a part of the example, and the rest, which differs by example for each head.
    The share is that of the last two variances (Shrout and Fleiss 1979: 1 - ICC(2,1)). The standard error is that of a
    jackknife over blocks of examples.

    Args:
        effect_HN: Effects ``[heads, examples]``, e.g. rises of the loss.
    """
    share = 1 - intraclass_correlation(effect_HN)
    without_B = np.array(
        [1 - intraclass_correlation(np.delete(effect_HN, np.s_[block::_BLOCKS], axis=1)) for block in range(_BLOCKS)]
    )
    # Noise may take the variance between heads below 0.
    return min(1.0, share), float(np.sqrt((_BLOCKS - 1) * without_B.var()))


def over_examples_in_words(check: Mapping[str, Any]) -> str:
    """The share over examples, from a record of :func:`over_examples_check`."""
    share, low, high = (number(100 * check[name], 1) for name in ("share", "low", "high"))
    return (
        f"Of the variance of the rises of the loss over {check['heads']} heads and {check['examples']:,} examples, {share} % "
        f"({100 * check['level']:g} % interval {low} to {high}) is over examples and the rest between heads: what disabling a head does to "
        "one example says little about the head where this is near 100 %."
    )
