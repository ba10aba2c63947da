"""Statistics over seeds: means with intervals, agreement between seeds, and differences between conditions."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from bertsecrets.errors import UserError
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.statistics.ranks import spearman

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean over replicates with its confidence limits (NaN for a single replicate)."""

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
    reach = float(scipy.stats.t.ppf((1 + level) / 2, len(defined) - 1) * defined.std(ddof=1) / np.sqrt(len(defined)))
    return Interval(mean, mean - reach, mean + reach, len(defined))


def intraclass_correlation(value_NR: ArrayLike) -> float:
    """ICC(2,1) of Shrout and Fleiss 1979: the share of variance between heads rather than between seeds.

    Two-way random effects, absolute agreement, single measurement.

    Args:
        value_NR: ``[heads, replicates]``; heads with an undefined value are ignored.

    Returns:
        At most 1; NaN with fewer than two heads or replicates, or without any variation.
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
    """Difference of two conditions, head by head.

    Args:
        delta_LH: Difference of the means.
        p_LH: P-value of no difference; NaN where undefined.
        over_seeds: Whether it was tested over seeds; otherwise over examples, which only applies to these two models.
    """

    delta_LH: Array
    p_LH: Array
    over_seeds: bool


def difference(first_RLH: Array, second_RLH: Array, first_stderr_LH: Array, second_stderr_LH: Array) -> Difference:
    """``first - second`` with a test for each head.

    With at least two replicates of each, Welch's t test over replicates; otherwise the difference of the means is
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
            # Replicates without variation are handled below.
            warnings.simplefilter("ignore", RuntimeWarning)
            p_LH = np.asarray(scipy.stats.ttest_ind(first_RLH, second_RLH, axis=0, equal_var=False).pvalue)
    else:
        variance_LH = first_stderr_LH**2 + second_stderr_LH**2
        with np.errstate(invalid="ignore", divide="ignore"):
            p_LH = 2 * scipy.stats.norm.sf(np.abs(delta_LH) / np.sqrt(variance_LH))
    # Equal constants do not differ; unequal constants differ with certainty.
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
    """Mean effects of V variants over seeds, with their uncertainty over seeds and examples.

    Args:
        delta: Means over the seeds, ``[V]``.
        stderr: Their standard errors over seeds and examples, each from its own seeds only, ``[V]``.
        error_VK, weight_VK: The error of each mean as a mixture of K normal ones: their standard deviations, and their
            weights, which sum to 1.
        margin: The largest acceptable loss; NaN for none.
        level: Level of the limits.
        largest: The largest possible change, to which limits are clipped.
        p_examples: P-values of a loss of at least the margin from the noise of examples only; 0 where unknown.
    """

    delta: Array
    stderr: Array
    error_VK: Array
    weight_VK: Array
    margin: float
    level: float
    largest: float = math.inf
    p_examples: Array | float = 0.0

    @cached_property
    def p_value(self) -> Array:
        """Two-sided p-values of no effect, ``[V]``."""
        return np.minimum(2 * self._beyond(np.abs(self.delta)), 1)

    @cached_property
    def p_margin(self) -> Array:
        """One-sided p-values of a loss of at least the margin, ``[V]``: the larger of seeds and examples, and examples
        only. NaN without a margin.
        """
        # A normal error is far too small if seeds share, or might share, a few lost examples.
        return np.maximum(self._beyond(self.delta + self.margin), self.p_examples)

    @cached_property
    def limits(self) -> tuple[Array, Array]:
        """Pointwise confidence limits of each variant, ``[V]`` each."""
        return self._limits((1 - self.level) / 2)

    @cached_property
    def limits_simultaneous(self) -> tuple[Array, Array]:
        """Simultaneous limits over all variants (Bonferroni), for variants selected by their effect."""
        return self._limits((1 - self.level) / (2 * len(self.delta)))

    def _limits(self, tail: float) -> tuple[Array, Array]:
        largest_V = self.error_VK.max(axis=1)
        low_V, high_V = np.zeros_like(largest_V), largest_V * float(scipy.stats.norm.isf(tail))
        # Bisection, because a quantile of a mixture has no closed form; it is below that of its widest component.
        for _ in range(_BISECTIONS):
            reach_V = (low_V + high_V) / 2
            beyond_V = self._beyond(reach_V) > tail
            low_V, high_V = np.where(beyond_V, reach_V, low_V), np.where(beyond_V, high_V, reach_V)
        return np.maximum(self.delta - high_V, -self.largest), np.minimum(self.delta + high_V, self.largest)

    def _beyond(self, distance_V: Array) -> Array:
        """Probability of an error above a distance, ``[V]``."""
        with np.errstate(over="ignore"):
            # Without variation, there is only the estimate.
            z_VK = distance_V[:, None] / np.maximum(self.error_VK, _TINY)
        return np.asarray((self.weight_VK * scipy.special.ndtr(-z_VK)).sum(axis=1))


_TINY = 1e-150
_BISECTIONS = 60
_FEWEST = 6
"""With fewer variants whose seeds differ, the distribution of variances over variants cannot be estimated."""
_ANYWHERE = 3.0
"""Weight, in variants, of a log-uniform component of the prior of variances."""
_STEP = 0.5
"""Grid step of the logarithm of variances."""
_STEPS = 100


def effects_over_seeds(
    delta_SV: Array, shared_V: Array, noise_V: Array, *, margin: float, level: float, largest: float = math.inf
) -> SeedEffects:
    """Mean effects over seeds on the same examples, with uncertainty for other seeds and other examples.

    The variance of a mean is ``s² / S + c``: the variance between the S observed effects includes the variation between
    seeds and each seed's own example noise, and ``c``, the mean covariance over examples of two seeds, adds the noise
    that they share. It is unbiased (a random-effects model with crossed seeds and examples; Searle, Casella and
    McCulloch 1992, chapter 5). A bootstrap of seeds and examples (Sellam et al. 2022) counts the example noise two or
    three times.

    A few seeds estimate s² poorly, so it is shrunk over all variants (empirical Bayes; Smyth 2004), and never below the
    example noise. It is modelled in proportion to the standard error over examples: variants that change more vary more
    over seeds, but a variant that changes little in these few seeds is not therefore certain. The prior is
    nonparametric, fitted by maximum likelihood on a grid (Ignatiadis and Sen 2025); an inverse gamma prior fits a few
    variants of large variance badly and calls them needed. P-values and limits are averaged over the posterior of
    variances. With few variants, or variants without noise, the prior is log-uniform, which gives Student's t with S -
    1 degrees of freedom if no noise is shared.

    Args:
        delta_SV: Effects of V variants with S seeds.
        shared_V: Mean covariance over examples of two seeds' effects; negative values count as 0, NaN as unknown.
        noise_V: Mean variance over examples of one seed's effect (both: :func:`noise_of_examples`).
        margin: The largest acceptable loss; NaN for none.
        level: Level of the limits.
        largest: The largest change that there can be.

    Raises:
        UserError: If there are fewer than two seeds.
    """
    seeds = len(delta_SV)
    if seeds < 2:
        raise UserError(
            f"An interval over seeds needs at least two seeds, but there is {seeds}; compare runs with more seeds."
        )
    observed_V, shared_V = delta_SV.var(axis=0, ddof=1), np.maximum(shared_V, 0)
    own_V = np.maximum(noise_V - shared_V, 0)
    telling_V = (observed_V > 0) & (noise_V > 0)
    if telling_V.sum() < _FEWEST:
        # A wide range, because two seeds exclude hardly any variance.
        telling_V, scale_V, least, most = np.zeros_like(telling_V), observed_V, -6.0, 46.0
    else:
        typical = math.exp(np.log(noise_V[telling_V]).mean())
        scale_V, least = np.where(noise_V > 0, np.sqrt(typical * noise_V), observed_V), math.log(0.01)
        most = math.log(100 * max(1.0, float((observed_V[telling_V] / scale_V[telling_V]).max())))
    variance_VK = np.maximum(scale_V[:, None] * np.exp(np.arange(least, most, _STEP)), own_V[:, None])
    return SeedEffects(
        delta_SV.mean(axis=0),
        np.sqrt(observed_V / seeds + shared_V),
        np.sqrt(variance_VK / seeds + shared_V[:, None]),
        _posterior(_likelihood(observed_V, variance_VK, seeds - 1), telling_V),
        margin,
        level,
        largest,
    )


def _likelihood(observed_V: Array, variance_VK: Array, freedom: int) -> Array:
    """Likelihood of variances given an observed variance and its degrees of freedom, relative to the maximum, ``[V,
    K]``.
    """
    variance_VK = np.maximum(variance_VK, _TINY)
    log_VK = -freedom / 2 * (np.log(variance_VK) + observed_V[:, None] / variance_VK)
    return np.asarray(np.exp(log_VK - log_VK.max(axis=1, keepdims=True)))


def _posterior(likelihood_VK: Array, telling_V: NDArray[np.bool_]) -> Array:
    """Posterior probability of each variance, ``[V, K]``, with a maximum likelihood prior from informative variants;
    uniform without any.
    """
    size = likelihood_VK.shape[1]
    prior_K = np.full(size, 1 / size)
    # Expectation maximisation; the problem is concave.
    for _ in range(_STEPS if telling_V.any() else 0):
        posterior_VK = likelihood_VK[telling_V] * prior_K
        posterior_VK /= posterior_VK.sum(axis=1, keepdims=True)
        prior_K = posterior_VK.sum(axis=0) + _ANYWHERE / size
        prior_K /= prior_K.sum()
    posterior_VK = likelihood_VK * prior_K
    return np.asarray(posterior_VK / posterior_VK.sum(axis=1, keepdims=True))


def partial_conjunction(p_SV: ArrayLike, fewest: int) -> Array:
    """P-values for fewer than ``fewest`` of S seeds having the effect, ``[V]``.

    Simes' test of the S - ``fewest`` + 1 largest p-values (Benjamini and Heller 2008, section 2): with ``fewest`` = S
    the largest p-value, valid under any dependence; with 1, Simes' test over all. An effect significant for some number
    of seeds is significant for every smaller number. For fewer than S, the seeds' p-values must be independent or
    positively dependent, as in :func:`bertsecrets.statistics.corrections.least_false`.

    Args:
        p_SV: P-values of V effects with S seeds; NaN counts as 1.
        fewest: 1 to S.

    Raises:
        ValueError: If ``fewest`` is out of range.
    """
    p_SV = np.sort(np.nan_to_num(np.asarray(p_SV, np.float64), nan=1.0), axis=0)
    if not 1 <= fewest <= len(p_SV):
        raise ValueError(f"fewest is {fewest}; expected 1 to {len(p_SV)}")
    largest_KV = p_SV[fewest - 1 :]
    rank_K1 = np.arange(1, len(largest_KV) + 1)[:, None]
    return np.asarray((largest_KV * len(largest_KV) / rank_K1).min(axis=0))


def seeds_shown(p_SV: ArrayLike, level: float, *, family_wise: bool = True) -> NDArray[np.int64]:
    """Lower bound on the number of S seeds with each of V effects; 0 for none, ``[V]``.

    All numbers of seeds and all effects are one family of partial conjunctions. Family-wise: p-values of at most
    ``level`` divided by the number of effects not yet significant in all S seeds are rejected, repeatedly until nothing
    changes (a sequentially rejective procedure; Goeman and Solari 2010). An effect's p-values increase with the number
    of seeds, so any false claim about an effect includes that about its largest number. Otherwise by Benjamini and
    Hochberg (1995).

    Args:
        p_SV: As for :func:`partial_conjunction`.
        level: Family-wise error rate, or false discovery rate.
        family_wise: Which of the two to control.
    """
    p_UV = np.stack([partial_conjunction(p_SV, fewest) for fewest in range(1, len(np.asarray(p_SV)) + 1)])
    if not family_wise:
        return np.asarray((corrected(p_UV) <= level).sum(axis=0))
    open_count = p_UV.shape[1]
    while True:
        shown_UV = p_UV <= level / max(1, open_count)
        if (remaining := int((~shown_UV[-1]).sum())) == open_count:
            return np.asarray(shown_UV.sum(axis=0))
        open_count = remaining


def noise_of_examples(resampled_SRV: Array) -> tuple[Array, Array]:
    """Mean covariance over examples of the effects of two different seeds, and mean variance of one seed's, ``[V]``
    each.

    NaN with fewer than two complete resamples; the covariance also with one seed.

    Args:
        resampled_SRV: Effects of V variants with S seeds under R resamples of the examples, the same resamples for
            every seed. Resamples with an undefined effect are ignored.
    """
    seeds = len(resampled_SRV)
    complete_RV = np.isfinite(resampled_SRV).all(axis=0)
    complete_SRV = np.where(complete_RV, resampled_SRV, np.nan)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice|Degrees of freedom", RuntimeWarning)
        # The variance of a sum is the sum of all covariances; subtracting the variances leaves those of different
        # seeds.
        of_sum_V = np.nanvar(complete_SRV.sum(axis=0), axis=0, ddof=1)
        variance_V = np.nanvar(complete_SRV, axis=1, ddof=1).sum(axis=0)
    shared_V = (of_sum_V - variance_V) / (seeds * (seeds - 1) or np.nan)
    known_V = complete_RV.sum(axis=0) >= 2
    return np.where(known_V, shared_V, np.nan), np.where(known_V, variance_V / seeds, np.nan)


def noise_of_errors(error_SV: ArrayLike) -> tuple[Array, Array]:
    """The same if only standard errors are known: errors of different seeds are treated as perfectly correlated.

    Args:
        error_SV: Standard errors over examples of V numbers with S seeds, at least two.

    >>> [noise.round(3).tolist() for noise in noise_of_errors([[0.1], [0.3]])]
    [[0.03], [0.05]]
    """
    error_SV = np.asarray(error_SV, np.float64)
    seeds, squares_V = len(error_SV), (np.asarray(error_SV, np.float64) ** 2).sum(axis=0)
    return np.asarray((error_SV.sum(axis=0) ** 2 - squares_V) / (seeds * (seeds - 1))), squares_V / seeds


def interval_over_seeds(interval_S3: ArrayLike, level: float, *, symmetric: bool = False) -> Interval:
    """The mean of seeds on the same examples, with an interval over seeds and examples, from each seed's interval over
    examples.

    The seeds' errors are treated as perfectly correlated. A single seed keeps its interval; NaN where a limit is
    unknown.

    Args:
        interval_S3: Each seed's number and the limits of its interval at ``level``.
        level: Level of the limits, 0 to 1.
        symmetric: Whether the interval of several seeds is symmetric; otherwise it can be asymmetric, e.g. near the
            ends of a metric.

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
        noise = noise_of_errors(stderr_of_width(2 * reach_S2, level))
        effect = effects_over_seeds(value_S2, *noise, margin=0.0, level=level)
        low_2, high_2 = effect.limits
        mean, low, high = float(effect.delta[0]), float(low_2[0]), float(high_2[1])
    return Interval(mean, low, high, len(interval_S3))


def _complete(value_NR: ArrayLike) -> Array:
    array_NR = np.asarray(value_NR, np.float64)
    return array_NR[np.isfinite(array_NR).all(axis=1)]
