"""Which of the many small changes of score are more than noise."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.scoring import Array, check_metric, weighted_scores
from bertsecrets.ablation.significance import bootstrap_changes, interval, mcnemar_exact, swap_test
from bertsecrets.errors import UserError
from bertsecrets.statistics.corrections import benjamini_hochberg, holm

_POWER = 0.8


@dataclass(frozen=True)
class Verdicts:
    """The judged effects of V variants.

    Args:
        baseline: Score of the unedited model.
        score, delta: Score of each variant, and its difference from the baseline.
        stderr, low, high: Bootstrap standard error and confidence limits of ``delta``.
        p_value, p_bh, p_holm: P-values of the paired test, raw and adjusted over the V variants.
        flips: Share of examples with another predicted class; for scores, mean absolute change of the prediction.
        smallest_effect: The smallest absolute ``delta`` detectable with 80 % power at the level corrected for V
            tests.
        significant: Whether ``p_bh`` is at most the false discovery rate.
        level, false_discovery_rate: The requested level and rate.
    """

    baseline: float
    score: Array
    delta: Array
    stderr: Array
    low: Array
    high: Array
    p_value: Array
    p_bh: Array
    p_holm: Array
    flips: Array
    smallest_effect: Array
    significant: NDArray[np.bool_]
    level: float
    false_discovery_rate: float


def judge(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    *,
    level: float = 0.95,
    false_discovery_rate: float = 0.05,
    resamples: int = 2000,
    permutations: int = 9999,
    seed: int = 0,
) -> Verdicts:
    """Judge the change of score from the clean predictions to those of each variant.

    Intervals come from a paired bootstrap over examples, p-values from McNemar's exact test for accuracy and from
    random swaps of predictions for every other metric. The smallest effect is (z(1 - a / 2V) + z(0.8)) standard errors,
    a = 1 - level, and for accuracy at least the n / N examples that the exact test needs: the least n with
    2 * 0.5^n <= a / V. A variant's results do not depend on the other variants, except for the adjusted p-values
    and the smallest effect.

    Args:
        metric: ``accuracy``, ``f1``, ``matthews``, ``pearson`` or ``spearman``.
        label_N: Gold labels: class indices or scores.
        clean_N: Predictions of the unedited model, of the same kind.
        prediction_VN: Predictions of each variant.
        level: Level of the intervals, between 0 and 1.
        false_discovery_rate: Largest significant ``p_bh``.
        resamples, permutations: Number of bootstrap resamples, and of random swaps.
        seed: Seed of both.

    Raises:
        UserError: If shapes do not fit, there is nothing to judge, or a setting is out of its range.
    """
    check_metric(metric)
    label_N, clean_N, prediction_VN = (
        np.asarray(array, dtype=np.float64) for array in (label_N, clean_N, prediction_VN)
    )
    _check(label_N, clean_N, prediction_VN, level, false_discovery_rate, resamples, permutations)
    count, variants = len(label_N), len(prediction_VN)
    whole_1N = np.ones((1, count))
    baseline = float(weighted_scores(metric, label_N, clean_N[None], whole_1N)[0, 0])
    score_V = weighted_scores(metric, label_N, prediction_VN, whole_1N)[0]
    # Sums in another order may differ in the last digit: unchanged predictions get exactly the baseline.
    score_V = np.where((prediction_VN == clean_N).all(-1), baseline, score_V)
    change_RV = bootstrap_changes(metric, label_N, clean_N, prediction_VN, resamples, np.random.default_rng([seed, 0]))
    stderr_V, low_V, high_V = interval(change_RV, level)
    if metric == "accuracy":
        p_V = mcnemar_exact(clean_N == label_N, prediction_VN == label_N)
    else:
        p_V = swap_test(metric, label_N, clean_N, prediction_VN, permutations, np.random.default_rng([seed, 1]))
    p_bh_V = benjamini_hochberg(p_V)
    alpha = (1 - level) / variants
    smallest_V = (NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(_POWER)) * stderr_V
    if metric == "accuracy":
        smallest_V = np.maximum(smallest_V, math.ceil(math.log2(2 / alpha)) / count)
    moved_VN = prediction_VN - clean_N
    flips_V = np.mean(moved_VN != 0 if metric in ("accuracy", "f1", "matthews") else np.abs(moved_VN), axis=-1)
    return Verdicts(
        baseline=baseline,
        score=score_V,
        delta=score_V - baseline,
        stderr=stderr_V,
        low=low_V,
        high=high_V,
        p_value=p_V,
        p_bh=p_bh_V,
        p_holm=holm(p_V),
        flips=flips_V,
        smallest_effect=smallest_V,
        significant=p_bh_V <= false_discovery_rate,
        level=level,
        false_discovery_rate=false_discovery_rate,
    )


def _check(
    label_N: Array, clean_N: Array, prediction_VN: Array, level: float, rate: float, resamples: int, permutations: int
) -> None:
    if prediction_VN.ndim != 2 or not len(prediction_VN):
        raise UserError(
            f"Predictions of shape {list(prediction_VN.shape)} cannot be judged; give [variants, examples]."
        )
    if len(label_N) < 2:
        raise UserError(f"{len(label_N)} examples are too few to judge a change by; give at least two.")
    if clean_N.shape != label_N.shape or prediction_VN.shape[1:] != label_N.shape:
        raise UserError(
            f"There are {len(label_N)} labels, {len(clean_N)} clean predictions and {prediction_VN.shape[1]} of each "
            "variant; give the same examples to all."
        )
    for name, value in (("level", level), ("false_discovery_rate", rate)):
        if not 0 < value < 1:
            raise UserError(f"{name} is {value}; expected a number between 0 and 1.")
    for name, number in (("resamples", resamples), ("permutations", permutations)):
        if number < 100:
            raise UserError(f"{name} is {number}; expected at least 100.")
