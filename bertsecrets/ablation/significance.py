"""Significance of a change of score: the paired bootstrap, and paired tests of no change."""

import math

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.scoring import METRICS, Array, Score, moments, weighted_ranks, weighted_scores

Flags = NDArray[np.bool_]

# Memory: patterns times examples, in float64, at a time.
_PATTERNS_AT_ONCE = 1000
_RESAMPLES_AT_ONCE = 250


def bootstrap_changes(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    resamples: int,
    generator: np.random.Generator,
) -> Array:
    """Change of the score from the clean predictions to each variant's under R resamples, ``[R, V]``.

    Examples are drawn with replacement, the same ones for the clean predictions and all variants, so that common
    variation cancels (Efron and Tibshirani 1993, chapter 8).
    """
    count = len(label_N)
    both_VN = np.concatenate([clean_N[None], prediction_VN])
    changes = []
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        # Counts of each example instead of lists of examples: scores then are weighted sums.
        drawn_RN = generator.multinomial(
            count, np.full(count, 1 / count), size=min(_RESAMPLES_AT_ONCE, resamples - start)
        )
        score_RV = weighted_scores(metric, label_N, both_VN, drawn_RN.astype(np.float64))
        changes.append(score_RV[:, 1:] - score_RV[:, :1])
    return np.concatenate(changes)


def mcnemar_exact(right_N: Flags, right_VN: Flags) -> Array:
    """Two-sided exact p-values of McNemar's test, ``[V]``.

    Under the null hypothesis, an example that only one of the two models gets right is equally likely to be either
    model's: the smaller number of such examples is binomial with probability one half.

    Args:
        right_N: Which examples the clean model gets right, bool.
        right_VN: The same for each variant.
    """
    lost_V = (right_N & ~right_VN).sum(-1)
    won_V = (~right_N & right_VN).sum(-1)
    return np.array(
        [_binomial(min(int(lost), int(won)), int(lost + won)) for lost, won in zip(lost_V, won_V, strict=True)]
    )


def _binomial(fewer: int, count: int) -> float:
    """Two-sided p-value of at most ``fewer`` successes in ``count`` fair draws; ``fewer`` is at most ``count / 2``."""
    if count == 0:
        return 1.0
    # scipy.stats.binomtest differs by up to 4e-13: recorded p-values would change.
    terms = [
        math.exp(math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) - count * math.log(2))
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(terms))


def swap_test(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    permutations: int,
    generator: np.random.Generator,
) -> Array:
    """Two-sided p-values of a permutation test that swaps the two predictions of examples, ``[V]``.

    Under the null hypothesis the clean prediction and the variant's are exchangeable in every example. All patterns of
    swaps are counted if there are at most ``permutations`` (exact); else that many random ones, including the observed
    pattern. Random patterns are the same for all variants. Correlations do not depend on
    location and scale, so predictions are standardised first; for Spearman's, ranks are taken over both predictions
    together, which stay exchangeable.
    """
    features, score = METRICS[metric]
    pairs = [_pair(metric, clean_N, prediction_N) for prediction_N in prediction_VN]
    if metric in ("pearson", "spearman"):
        # Both sides are centred by the same numbers: a swap exchanges an example's features unchanged.
        features = moments
        label_N = _ranks(label_N) if metric == "spearman" else label_N - label_N.mean()
    feature_VPNF = [features(label_N, pair_PN) for pair_PN in pairs]
    p_V = np.ones(len(pairs))
    random: list[int] = []
    for variant, feature_PNF in enumerate(feature_VPNF):
        moved_N = np.flatnonzero((feature_PNF[0] != feature_PNF[1]).any(-1))
        if len(moved_N) == 0:
            continue
        # min: a power beyond 62 would be a number of thousands of digits.
        if 2 ** min(len(moved_N), 62) <= permutations:
            patterns = (np.arange(2 ** len(moved_N))[:, None] >> np.arange(len(moved_N))) & 1
            p_V[variant] = _extreme(feature_PNF, moved_N, patterns.astype(np.float64), score).mean()
        else:
            random.append(variant)
    if random:
        beyond_V = np.zeros(len(pairs))
        for start in range(0, permutations, _PATTERNS_AT_ONCE):
            size = (min(_PATTERNS_AT_ONCE, permutations - start), len(label_N))
            # Swaps of all examples, also of unmoved ones, so that all variants share their patterns.
            swap_RN = generator.integers(0, 2, size=size, dtype=np.int8).astype(np.float64)
            for variant in random:
                feature_PNF = feature_VPNF[variant]
                moved_N = np.flatnonzero((feature_PNF[0] != feature_PNF[1]).any(-1))
                beyond_V[variant] += _extreme(feature_PNF, moved_N, swap_RN[:, moved_N], score).sum()
        p_V[random] = (beyond_V[random] + 1) / (permutations + 1)
    return p_V


def _pair(metric: str, clean_N: Array, prediction_N: Array) -> Array:
    pair_PN: Array = np.stack([clean_N, prediction_N])
    if metric not in ("pearson", "spearman"):
        return pair_PN
    spread_P1 = pair_PN.std(-1, keepdims=True)
    pair_PN = (pair_PN - pair_PN.mean(-1, keepdims=True)) / np.where(spread_P1 > 0, spread_P1, 1)
    if metric == "spearman":
        return np.asarray(_ranks(pair_PN.ravel()).reshape(pair_PN.shape))
    return pair_PN


def _ranks(value_N: Array) -> Array:
    """Mid-ranks, centred, divided by their number."""
    # scipy.stats.rankdata, scaled the same way, differs in the last bits: recorded p-values could change.
    return np.asarray(weighted_ranks(value_N, np.full((1, len(value_N)), 1 / len(value_N)))[0] - 0.5)


def _extreme(feature_PNF: Array, moved_N: NDArray[np.int64], swap_RN: Array, score: Score) -> Flags:
    """Which patterns of swaps change the score at least as much as the variant."""
    total_PF = feature_PNF.sum(1)
    count = feature_PNF.shape[1]
    difference_NF = feature_PNF[1, moved_N] - feature_PNF[0, moved_N]
    carried_RF = swap_RN @ difference_NF
    change_R = score((total_PF[1] - carried_RF) / count) - score((total_PF[0] + carried_RF) / count)
    observed = score(total_PF[1] / count) - score(total_PF[0] / count)
    if np.isnan(observed):
        return np.ones(len(swap_RN), dtype=bool)
    # A score that a swap leaves undefined counts against the variant.
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isnan(change_R) | (np.abs(change_R) >= abs(observed) - 1e-12))
