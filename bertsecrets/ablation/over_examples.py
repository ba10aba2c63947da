"""How much of the effects of single heads on single examples is due to the head, and how much varies over examples."""

import math

import numpy as np
from scipy import stats

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.rows import OverExamples
from bertsecrets.data.task import Task
from bertsecrets.results.components import HEAD
from bertsecrets.results.estimate import Estimate
from bertsecrets.statistics.clusters import Clusters, numbered
from bertsecrets.statistics.replicates import intraclass_correlation
from bertsecrets.task_heads.metric import Array

_BLOCKS = 20


def over_examples(outcomes: Outcomes, task: Task, level: float) -> list[OverExamples]:
    """The share of the variance of heads' effects on the losses of single examples that is due to examples.

    Empty without :func:`effects_on_losses`, or if nothing varies.

    Args:
        outcomes: Outcomes of a finished sweep.
        task: The task.
        level: Level of the interval.
    """
    effect_HN = effects_on_losses(outcomes, task)
    if effect_HN is None:
        return []
    share, stderr = share_over_examples(effect_HN, None if outcomes.group_N is None else numbered(outcomes.group_N))
    if not math.isfinite(stderr):
        return []
    reach = float(stats.t.ppf((1 + level) / 2, _BLOCKS - 1)) * stderr
    heads, examples = effect_HN.shape
    interval = Estimate(share, max(0.0, share - reach), min(1.0, share + reach), stderr, examples)
    return [OverExamples(outcomes.plan.mode, interval, level, heads, examples)]


def effects_on_losses(outcomes: Outcomes, task: Task) -> Array | None:
    """Increase of each example's loss with each head disabled alone, ``[heads, examples]``.

    None with fewer than two heads, with fewer than two examples per block of the jackknife, without losses, and for a
    screened sweep, whose losses are partly estimates.
    """
    heads = outcomes.plan.of_kind(HEAD)
    few = (
        len(heads) < 2 or len(outcomes.index_N if outcomes.group_N is None else outcomes.group_N.unique()) < 2 * _BLOCKS
    )
    if few or outcomes.is_screened or not outcomes.have_losses(task):
        return None
    clean_N, loss_NV = outcomes.losses(task)
    effect_HN: Array = (loss_NV[:, heads] - clean_N[:, None]).T.double().numpy()
    return effect_HN


def share_over_examples(effect_HN: Array, cluster_N: Clusters | None = None) -> tuple[float, float]:
    """Share of the variance of effects that is due to examples, with its standard error; NaN if undefined.

    An effect is the sum of a mean, a head term, an example term, and a remainder, which is the interaction of both. The
    share is that of the last two variances (Shrout and Fleiss 1979: 1 - ICC(2,1)). The standard error comes from a
    jackknife over blocks of examples.

    Args:
        effect_HN: Effects ``[heads, examples]``, e.g. increases of the loss.
        cluster_N: The group of each example; blocks keep groups together. None if examples are independent.
    """
    unit_N = np.arange(effect_HN.shape[1]) if cluster_N is None else cluster_N
    share = 1 - intraclass_correlation(effect_HN)
    without_B = np.array(
        [1 - intraclass_correlation(effect_HN[:, unit_N % _BLOCKS != block]) for block in range(_BLOCKS)]
    )
    # Noise may make the variance between heads negative.
    return min(1.0, share), float(np.sqrt((_BLOCKS - 1) * without_B.var()))
