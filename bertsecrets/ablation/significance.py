"""Significance of a change of score: the paired bootstrap, and paired tests of no change."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.predictions import PairedPredictions, memory_parts, weighted_ranks
from bertsecrets.statistics.clusters import Clusters, cluster_sums
from bertsecrets.task_heads.metric import Array, Metric, Score, moments

Flags = NDArray[np.bool_]

_PATTERNS_AT_ONCE = 1000
_RESAMPLES_AT_ONCE = 250
"""The largest number at a time; fewer if there are many examples."""

_SWAPS_OF_A_DRAW = 4
"""Number of swaps per word of the generator; parts of whole words give the same swaps as one large draw."""


def bootstrap_changes(
    metric: Metric, paired: PairedPredictions, resamples: int, generator: np.random.Generator
) -> Array:
    """Change of the score from the clean predictions to each variant's under R resamples, ``[R, V]``.

    Examples, or groups where there are any, are drawn with replacement, the same ones for the clean predictions and all
    variants, so that common variation cancels (Efron and Tibshirani 1993, chapter 8).
    """
    units, changes = paired.units, []
    cluster_N = slice(None) if paired.cluster_N is None else paired.cluster_N
    for _, rows in memory_parts(resamples, paired.count, _RESAMPLES_AT_ONCE):
        # Counts of each example instead of lists of examples, so that scores are weighted sums.
        drawn_RU = generator.multinomial(units, np.full(units, 1 / units), size=rows)
        changes.append(paired.weighted_changes(metric, drawn_RU[:, cluster_N]))
    return np.concatenate(changes)


def mcnemar_exact(lost_V: NDArray[np.int64], won_V: NDArray[np.int64]) -> Array:
    """Two-sided exact p-values of McNemar's test, ``[V]``.

    Under the null hypothesis, an example that only one of the two models gets right is equally likely to be either
    model's, so the smaller number of such examples is binomial with probability one half.

    Args:
        lost_V, won_V: Numbers of examples that only the clean model gets right, and only each variant.
    """
    p_V = np.ones(len(lost_V))
    for variant, (lost, won) in enumerate(zip(lost_V.tolist(), won_V.tolist(), strict=True)):
        count = lost + won
        # scipy.stats.binomtest differs by up to 4e-13, which would change recorded p-values.
        terms = [
            math.exp(math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) - count * math.log(2))
            for k in range(min(lost, won) + 1)
        ]
        p_V[variant] = min(1.0, 2 * math.fsum(terms))
    return p_V


def swap_test(metric: Metric, paired: PairedPredictions, permutations: int, generator: np.random.Generator) -> Array:
    """Two-sided p-values of a permutation test that swaps the two predictions of examples, ``[V]``.

    Under the null hypothesis the clean prediction and the variant's are exchangeable in every example. All patterns of
    swaps are counted if there are at most ``permutations`` (exact); else that many random ones, including the observed
    pattern. Random patterns are the same for all variants. Correlations do not depend on
    location and scale, so predictions are standardised first; for Spearman's, ranks are taken over both predictions
    together, which stay exchangeable. Examples of one group are swapped together.
    """
    features, score = metric.features, metric.score
    label_N = of_label_N = paired.label_N
    if metric.correlates:
        # Both sides are centred by the same values, so a swap exchanges an example's features unchanged.
        features = moments
        of_label_N = _ranks(label_N) if metric.of_ranks else label_N - label_N.mean()
    swaps = [
        _Swaps.of(features(of_label_N, _pair(metric, paired.clean_N, prediction_N)), paired.cluster_N)
        for prediction_N in paired.prediction_VN
    ]
    p_V = np.ones(len(swaps))
    random: list[int] = []
    for variant, swap in enumerate(swaps):
        moved = len(swap.moved_M)
        if moved == 0:
            continue
        # min, because a large power would be a number with thousands of digits.
        if 2 ** min(moved, 62) <= permutations:
            patterns = (np.arange(2**moved)[:, None] >> np.arange(moved)) & 1
            p_V[variant] = swap.extreme(patterns, score).mean()
        else:
            random.append(variant)
    if random:
        beyond_V = np.zeros(len(swaps))
        for _, rows in memory_parts(permutations, paired.units, _PATTERNS_AT_ONCE, _SWAPS_OF_A_DRAW):
            # Swaps of all units, including unchanged ones, so that all variants share the same patterns.
            swap_RU = generator.integers(0, 2, size=(rows, paired.units), dtype=np.int8)
            for variant in random:
                beyond_V[variant] += swaps[variant].extreme(swap_RU[:, swaps[variant].moved_M], score).sum()
        p_V[random] = (beyond_V[random] + 1) / (permutations + 1)
    return p_V


@dataclass(frozen=True)
class _Swaps:
    """Effect of swapping the two predictions of examples on the sums of features of both sides.

    Args:
        moved_M: The M examples, or groups, whose features differ between the sides.
        difference_MF: These differences.
        total_PF: Sums of the features of either side.
        examples: Number of examples.
    """

    moved_M: NDArray[np.int64]
    difference_MF: Array
    total_PF: Array
    examples: int

    @classmethod
    def of(cls, feature_PNF: Array, cluster_N: Clusters | None) -> "_Swaps":
        difference_UF = feature_PNF[1] - feature_PNF[0]
        if cluster_N is not None:
            difference_UF = cluster_sums(difference_UF.T, cluster_N).T
        moved_M = np.flatnonzero((difference_UF != 0).any(-1))
        return cls(moved_M, difference_UF[moved_M], feature_PNF.sum(1), feature_PNF.shape[1])

    def extreme(self, swap_RM: NDArray[np.integer[Any]], score: Score) -> Flags:
        """Which patterns of swaps of the moved examples change the score at least as much as the variant."""
        carried_RF = swap_RM.astype(np.float64) @ self.difference_MF
        total_PF, count = self.total_PF, self.examples
        change_R = score((total_PF[1] - carried_RF) / count) - score((total_PF[0] + carried_RF) / count)
        observed = score(total_PF[1] / count) - score(total_PF[0] / count)
        if np.isnan(observed):
            return np.ones(len(swap_RM), dtype=bool)
        # A swap that makes the score undefined counts against the variant.
        with np.errstate(invalid="ignore"):
            return np.asarray(np.isnan(change_R) | (np.abs(change_R) >= abs(observed) - 1e-12))


def _pair(metric: Metric, clean_N: Array, prediction_N: Array) -> Array:
    pair_PN: Array = np.stack([clean_N, prediction_N])
    if not metric.correlates:
        return pair_PN
    spread_P1 = pair_PN.std(-1, keepdims=True)
    pair_PN = (pair_PN - pair_PN.mean(-1, keepdims=True)) / np.where(spread_P1 > 0, spread_P1, 1)
    if metric.of_ranks:
        return np.asarray(_ranks(pair_PN.ravel()).reshape(pair_PN.shape))
    return pair_PN


def _ranks(value_N: Array) -> Array:
    """Mid-ranks, centred, divided by their number."""
    # scipy.stats.rankdata, scaled the same way, differs in the last bits, which could change recorded p-values.
    return np.asarray(weighted_ranks(value_N, np.full((1, len(value_N)), 1 / len(value_N)))[0] - 0.5)
