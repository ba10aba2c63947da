"""Statistics over seeds: means with intervals, agreement between seeds, differences between conditions."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertsecrets.errors import UserError
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.statistics.ranks import spearman

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean over replicates with its confidence limits, which are NaN for a single replicate."""

    mean: float
    low: float
    high: float
    count: int


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Mean of the defined values with Student's t interval at ``level``.

    >>> mean_interval([1.0, 2.0, 3.0]).high.__round__(3)
    4.484
    """
    defined = np.asarray(values, np.float64)
    defined = defined[np.isfinite(defined)]
    if not len(defined):
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(defined.mean())
    if len(defined) == 1:
        return Interval(mean, np.nan, np.nan, 1)
    reach = float(stats.t.ppf((1 + level) / 2, len(defined) - 1) * defined.std(ddof=1) / np.sqrt(len(defined)))
    return Interval(mean, mean - reach, mean + reach, len(defined))


def intraclass_correlation(value_NR: ArrayLike) -> float:
    """ICC(2,1) of Shrout and Fleiss 1979: the share of variance between heads rather than between seeds.

    Two-way random effects, absolute agreement, single measurement.

    Args:
        value_NR: ``[heads, replicates]``; heads with an undefined value are left out.

    Returns:
        At most 1; NaN with fewer than two heads or replicates, or where nothing varies at all.
    """
    value_NR = _complete(value_NR)
    heads, replicates = value_NR.shape
    if heads < 2 or replicates < 2:
        return float("nan")
    grand = value_NR.mean()
    between = replicates * ((value_NR.mean(axis=1) - grand) ** 2).sum() / (heads - 1)
    columns = heads * ((value_NR.mean(axis=0) - grand) ** 2).sum() / (replicates - 1)
    rest_NR = value_NR - value_NR.mean(axis=1, keepdims=True) - value_NR.mean(axis=0) + grand
    rest = (rest_NR**2).sum() / ((heads - 1) * (replicates - 1))
    total = between + (replicates - 1) * rest + replicates * (columns - rest) / heads
    return float((between - rest) / total) if total else float("nan")


def rank_agreement(value_NR: ArrayLike) -> tuple[float, float]:
    """Mean and smallest Spearman correlation of head scores between any two replicates; NaN where undefined."""
    value_NR = _complete(value_NR)
    pairs = list(combinations(range(value_NR.shape[1]), 2))
    if not pairs:
        return float("nan"), float("nan")
    rhos = [spearman(value_NR[:, a], value_NR[:, b]) for a, b in pairs]
    return float(np.mean(rhos)), float(np.min(rhos))


@dataclass(frozen=True)
class Difference:
    """One condition less another, head by head.

    Args:
        delta_LH: Difference of the means.
        p_LH: P-value of no difference; NaN where undefined.
        over_seeds: Whether it was tested over seeds; else over examples, which says something about these two models only.
    """

    delta_LH: Array
    p_LH: Array
    over_seeds: bool


def difference(first_RLH: Array, second_RLH: Array, first_stderr_LH: Array, second_stderr_LH: Array) -> Difference:
    """``first - second`` with a test for each head.

    With two replicates or more of each it is Welch's t test over replicates; otherwise the difference of the means is
    compared with its standard error over examples.

    Args:
        first_RLH, second_RLH: Values ``[replicates, layers, heads]``.
        first_stderr_LH, second_stderr_LH: Standard errors over examples of one replicate, used in the second case.
    """
    delta_LH = first_RLH.mean(axis=0) - second_RLH.mean(axis=0)
    over_seeds = min(len(first_RLH), len(second_RLH)) > 1
    if over_seeds:
        variance_LH = first_RLH.var(axis=0, ddof=1) / len(first_RLH) + second_RLH.var(axis=0, ddof=1) / len(second_RLH)
        with warnings.catch_warnings():
            # Replicates without any spread are handled below.
            warnings.simplefilter("ignore", RuntimeWarning)
            p_LH = np.asarray(stats.ttest_ind(first_RLH, second_RLH, axis=0, equal_var=False).pvalue)
    else:
        variance_LH = first_stderr_LH**2 + second_stderr_LH**2
        with np.errstate(invalid="ignore", divide="ignore"):
            p_LH = 2 * stats.norm.sf(np.abs(delta_LH) / np.sqrt(variance_LH))
    # Equal constants differ by nothing; unequal constants differ beyond doubt.
    p_LH = np.where(variance_LH == 0, np.where(delta_LH == 0, 1.0, 0.0), p_LH)
    return Difference(delta_LH, p_LH, over_seeds)


def corrected_together(differences: Sequence[Difference]) -> list[Difference]:
    """Differences whose p-values are corrected over the heads of all of them (Benjamini and Hochberg 1995)."""
    adjusted_N = corrected(np.concatenate([difference.p_LH.ravel() for difference in differences]))
    ends = np.cumsum([difference.p_LH.size for difference in differences])[:-1]
    return [
        replace(difference, p_LH=p_N.reshape(difference.p_LH.shape))
        for difference, p_N in zip(differences, np.split(adjusted_N, ends), strict=True)
    ]


@dataclass(frozen=True)
class SeedEffects:
    """Mean effects over seeds with an uncertainty over seeds and examples, ``[V]`` each.

    Args:
        delta: Means over the seeds.
        stderr, low, high: Standard errors over seeds and examples, and confidence limits.
        p_value: Two-sided p-values of no effect.
        p_margin: One-sided p-values of a loss of the margin or more.
    """

    delta: Array
    stderr: Array
    low: Array
    high: Array
    p_value: Array
    p_margin: Array


def effects_over_seeds(delta_SV: Array, covariance_V: Array, *, margin: float, level: float) -> SeedEffects:
    """Mean effects over seeds, all judged on the same examples, as a statement about other seeds and other examples.

    The variance of a mean is ``s² / S + c``: the variance between the S observed effects holds the spread between seeds and
    the noise of examples that each seed has to itself, and ``c``, the mean covariance over examples of two seeds, adds the
    noise that they share. It is unbiased (a random-effects model with crossed seeds and examples; Searle, Casella and
    McCulloch 1992, chapter 5). A bootstrap of seeds and examples (Sellam et al. 2022) counts the noise of examples twice or
    three times. The limits are those of Student's t with the degrees of freedom of Satterthwaite (1946): S - 1 if all spread is
    between seeds, and many if all is shared.

    Args:
        delta_SV: Effects of V variants with S seeds.
        covariance_V: Mean covariance over examples of two seeds' effects (:func:`covariance_between_seeds`); negative ones
            count as 0, NaN as unknown.
        margin: The loss that matters.
        level: Level of the limits.

    Raises:
        UserError: If there are fewer than two seeds.
    """
    seeds = len(delta_SV)
    if seeds < 2:
        raise UserError(
            f"An interval over seeds needs two seeds or more, but there is {seeds}; compare runs of more seeds."
        )
    delta_V, between_V = delta_SV.mean(axis=0), delta_SV.var(axis=0, ddof=1) / seeds
    variance_V = between_V + np.maximum(covariance_V, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom_V = np.where(between_V > 0, variance_V**2 / (between_V**2 / (seeds - 1)), np.inf)
        stderr_V = np.sqrt(variance_V)
        p_V = 2 * stats.t.sf(np.abs(delta_V) / stderr_V, freedom_V)
        p_margin_V = stats.t.sf((delta_V + margin) / stderr_V, freedom_V)
    reach_V = stats.t.ppf((1 + level) / 2, freedom_V) * stderr_V
    # Without any spread the estimate is all there is.
    p_V = np.where(variance_V == 0, np.where(delta_V == 0, 1.0, 0.0), p_V)
    p_margin_V = np.where(variance_V == 0, np.where(delta_V > -margin, 0.0, 1.0), p_margin_V)
    return SeedEffects(delta_V, stderr_V, delta_V - reach_V, delta_V + reach_V, p_V, p_margin_V)


def partial_conjunction(p_SV: ArrayLike, fewest: int) -> Array:
    """P-values of fewer than ``fewest`` of S seeds having the effect, ``[V]``.

    Simes' test of the S - ``fewest`` + 1 largest p-values (Benjamini and Heller 2008, section 2): with ``fewest`` = S the largest p-value,
    which is valid however the seeds depend on each other; with 1 that of Simes over all. An effect shown for some number of seeds is
    shown for every smaller one. For fewer than S, the seeds' p-values must be independent or positively dependent, as in
    :func:`bertsecrets.statistics.closed_testing.least_false`.

    Args:
        p_SV: P-values of V effects with S seeds; NaN counts as 1.
        fewest: 1 to S.

    Raises:
        ValueError: If ``fewest`` lies outside of that.
    """
    p_SV = np.sort(np.nan_to_num(np.asarray(p_SV, np.float64), nan=1.0), axis=0)
    if not 1 <= fewest <= len(p_SV):
        raise ValueError(f"fewest is {fewest}; expected 1 to {len(p_SV)}")
    largest_KV = p_SV[fewest - 1 :]
    rank_K1 = np.arange(1, len(largest_KV) + 1)[:, None]
    return np.asarray((largest_KV * len(largest_KV) / rank_K1).min(axis=0))


def covariance_between_seeds(resampled_SRV: Array) -> Array:
    """Mean covariance over examples of the effects of two different seeds, ``[V]``.

    NaN with one seed, and with fewer than two complete resamples.

    Args:
        resampled_SRV: Effects of V variants with S seeds under R resamples of the examples, the same resamples for every
            seed. A resample in which the effect of a seed is undefined is left out.
    """
    seeds = len(resampled_SRV)
    complete_RV = np.isfinite(resampled_SRV).all(axis=0)
    complete_SRV = np.where(complete_RV, resampled_SRV, np.nan)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice|Degrees of freedom", RuntimeWarning)
        # The variance of a sum is the sum of all covariances; less the variances, those of different seeds remain.
        of_sum_V = np.nanvar(complete_SRV.sum(axis=0), axis=0, ddof=1)
        variance_V = np.nanvar(complete_SRV, axis=1, ddof=1).sum(axis=0)
    pairs = seeds * (seeds - 1) or np.nan
    return np.where(complete_RV.sum(axis=0) < 2, np.nan, (of_sum_V - variance_V) / pairs)


def shared_noise(error_SV: ArrayLike) -> Array:
    """Mean covariance over examples of two different seeds' numbers, ``[V]``, if their errors go the same way: the most it can be.

    For numbers of the same examples of which only the standard errors are known.

    Args:
        error_SV: Standard errors over examples of V numbers with S seeds, two or more.

    >>> shared_noise([[0.1], [0.3]]).round(3).tolist()
    [0.03]
    """
    error_SV = np.asarray(error_SV, np.float64)
    seeds = len(error_SV)
    return np.asarray((error_SV.sum(axis=0) ** 2 - (error_SV**2).sum(axis=0)) / (seeds * (seeds - 1)))


def interval_over_seeds(interval_S3: ArrayLike, level: float, *, symmetric: bool = False) -> Interval:
    """The mean of seeds that answer the same examples, over seeds and examples, from each seed's interval over examples.

    The errors of the seeds count as going the same way. One seed keeps its own interval; NaN where a limit is unknown.

    Args:
        interval_S3: Each seed's number and the limits of its interval at ``level``.
        level: Level of the limits, 0 to 1.
        symmetric: Whether the two sides of several seeds' interval are alike; else they may differ, e.g. near the ends of a metric.

    >>> interval_over_seeds([[0.5, 0.4, 0.7], [0.5, 0.4, 0.7]], 0.95)
    Interval(mean=0.5, low=0.4, high=0.7, count=2)
    """
    interval_S3 = np.asarray(interval_S3, np.float64).reshape(-1, 3)
    if not len(interval_S3):
        return mean_interval([])
    mean, low, high = map(float, interval_S3[0])
    if len(interval_S3) > 1:
        value_S2, reach_S2 = interval_S3[:, [0, 0]], np.abs(interval_S3[:, 1:] - interval_S3[:, :1])
        if symmetric:
            reach_S2[:] = (interval_S3[:, 2:] - interval_S3[:, 1:2]) / 2
        noise_2 = shared_noise(stderr_of_width(2 * reach_S2, level))
        effect = effects_over_seeds(value_S2, noise_2, margin=0.0, level=level)
        mean, low, high = float(effect.delta[0]), float(effect.low[0]), float(effect.high[1])
    return Interval(mean, low, high, len(interval_S3))


def _complete(value_NR: ArrayLike) -> Array:
    array_NR = np.asarray(value_NR, np.float64)
    return array_NR[np.isfinite(array_NR).all(axis=1)]
