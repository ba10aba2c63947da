"""Two-sided confidence intervals of a change due to a few examples: mid-p, with the nominal coverage on average over
small counts.
"""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Limits = tuple[Array, Array]
Tail = Callable[[Array], Limits]

# 40 halvings leave 1e-12 of the range.
_STEPS = 40
_TAILS = np.geomspace(1e-6, 0.5, 64)


def proportion_limits(count_V: ArrayLike, examples: ArrayLike, tail: ArrayLike) -> Limits:
    """Mid-p limits of proportions (Lancaster 1961; Berry and Armitage 1995), ``[V]`` each.

    The limits are the quantiles of the mean of Beta(x, n - x + 1) and Beta(x + 1, n - x), x of n examples.

    Args:
        count_V: Counts, 0 to ``examples``.
        examples: Number of examples, one for all or one each.
        tail: Probability outside each limit, at most 0.5.
    """
    x, examples = np.asarray(count_V, np.float64), np.asarray(examples)

    def below(p: Array) -> Array:
        # P(X > x) + P(X = x) / 2 under the proportion p; a count of 0 or n has a limit at 0 or 1.
        above = np.where(x > 0, scipy.special.betainc(np.maximum(x, 1), examples - np.maximum(x, 1) + 1, p), 1.0)
        last = np.minimum(x, examples - 1)
        most = np.where(x < examples, scipy.special.betainc(last + 1, examples - last, p), 0.0)
        return (above + most) / 2

    # The mean of two distributions has no closed quantile function.
    return _between(below, np.asarray(tail, np.float64), x / examples, np.ones_like(x))


def weighted_limits(total_V: ArrayLike, variance_V: ArrayLike, largest_V: ArrayLike, tail: ArrayLike) -> Limits:
    """Mid-p gamma limits of sums of weights of events (Fay and Feuer 1997; Fay and Kim 2017), ``[V]`` each.

    The limits are the quantiles of the mean of two gamma distributions: one with the mean and variance of the sum, and
    one with those of the sum plus one event of the largest weight. For equal weights they are the mid-p limits of a
    Poisson count.

    Args:
        total_V: Sums of the weights w of the events, at least 0.
        variance_V: Sums of w squared.
        largest_V: The largest possible weight of an event.
        tail: Probability outside each limit, at most 0.5.
    """
    total, variance, largest = (np.asarray(array, np.float64) for array in (total_V, variance_V, largest_V))
    more, spread = total + largest, variance + largest**2

    def below(y: Array) -> Array:
        fewer = np.where(total > 0, scipy.special.gammainc(*_shape(total, variance, y)), 1.0)
        return (fewer + np.where(more > 0, scipy.special.gammainc(*_shape(more, spread, y)), 1.0)) / 2

    # Bisection needs an end beyond the limit: a gamma distribution has almost no mass 40 deviations above its mean.
    most = more + 40 * np.sqrt(spread) + 40 * largest
    return _between(below, np.asarray(tail, np.float64), total, most)


def stderr_of_width(width_V: ArrayLike, level: ArrayLike) -> Array:
    """Standard errors of normal estimates from the widths of their two-sided intervals.

    >>> round(float(stderr_of_width(3.92, 0.95)), 2)
    1.0
    """
    return np.asarray(np.asarray(width_V) / (2 * scipy.special.ndtri((1 + np.asarray(level)) / 2)))


def _shape(mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(variance > 0, variance / mean, 1.0)
        return np.where(mean > 0, mean / scale, 1.0), y / scale


def _between(below: Callable[[Array], Array], tail: Array, middle: Array, most: Array) -> Limits:
    """The points with ``below`` equal to the tail and to 1 - tail, by bisection on 0 .. middle and middle .. most."""
    limits = []
    for left, right, target in ((np.zeros_like(middle), middle, tail), (middle, most, 1 - tail)):
        for _ in range(_STEPS):
            centre = (left + right) / 2
            under = below(centre) < target
            left, right = np.where(under, centre, left), np.where(under, right, centre)
        limits.append((left + right) / 2)
    return limits[0], limits[1]


def paired_proportions(lost_V: ArrayLike, won_V: ArrayLike, examples: ArrayLike) -> Tail:
    """Limits of the difference of two paired proportions, won minus lost, as a function of the tail.

    The mid-p limits of the two discordant proportions, combined in quadrature (Newcombe 1998, method 10; Zou and Donner
    2008) with the correlation of two cells of a multinomial distribution. They have positive width even without
    discordant pairs.

    Args:
        lost_V: Pairs in which only the first is right.
        won_V: Pairs in which only the second is right.
        examples: Number of pairs, one for all or one each.
    """
    examples = np.asarray(examples)
    lost, won = np.asarray(lost_V, np.float64), np.asarray(won_V, np.float64)
    p_lost, p_won = lost / examples, won / examples
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = -np.sqrt(p_lost * p_won / ((1 - p_lost) * (1 - p_won)))
    # 0 / 0 if every pair is lost, or won: the two cells then exclude each other.
    correlation = np.maximum(np.nan_to_num(correlation, nan=-1.0), -1.0)

    def limits(tail: Array) -> Limits:
        lost_limits, won_limits = (proportion_limits(count, examples, tail) for count in (lost, won))
        return _joined(p_won - p_lost, p_lost, lost_limits, p_won, won_limits, correlation)

    return limits


def influenced_change(delta_V: ArrayLike, influence_VN: ArrayLike, harm_V: ArrayLike, gain_V: ArrayLike) -> Tail:
    """Limits of a change of any score from the influence of every example, as a function of the tail.

    If few examples change, harm and gain are sums of few weighted events, with :func:`weighted_limits` combined in
    quadrature (Zou and Donner 2008). If many change a little, the limits are normal, with the variance of the
    influences (the infinitesimal jackknife).

    Args:
        delta_V: The observed changes.
        influence_VN: The influence of every example on them, with mean 0; the standard error is its root mean square
            divided by the square root of N.
        harm_V, gain_V: The largest loss and gain that one example can cause, at least 0.
    """
    delta = np.asarray(delta_V, np.float64)
    share_VN = np.asarray(influence_VN, np.float64) / np.shape(influence_VN)[-1]
    parts = []
    for part_VN, largest in ((-share_VN, harm_V), (share_VN, gain_V)):
        kept_VN = np.maximum(part_VN, 0)
        parts.append((kept_VN.sum(-1), (kept_VN**2).sum(-1), np.asarray(largest, np.float64)))

    def limits(tail: Array) -> Limits:
        (harm, *_), (gain, *_) = parts
        harm_limits, gain_limits = (weighted_limits(*part, tail) for part in parts)
        return _joined(delta, harm, harm_limits, gain, gain_limits, np.zeros_like(delta))

    return limits


def _joined(
    delta: Array, lost: Array, lost_limits: Limits, won: Array, won_limits: Limits, correlation: Array
) -> Limits:
    def reach(first: Array, second: Array) -> Array:
        return np.sqrt(np.maximum(first**2 + second**2 - 2 * correlation * first * second, 0))

    # An undefined change has no limits.
    low = delta - reach(won - won_limits[0], lost_limits[1] - lost)
    high = delta + reach(won_limits[1] - won, lost - lost_limits[0])
    return np.where(np.isnan(delta), np.nan, low), np.where(np.isnan(delta), np.nan, high)


def at_many_tails(limits: Tail, variants: int) -> Limits:
    """Limits of V effects at 64 tails from one in a million to one half, ``[64, V]`` each."""
    return limits(np.broadcast_to(_TAILS[:, None], (len(_TAILS), variants)))


def with_unseen(limits: Limits, step: float, chance_VK: ArrayLike, changes_K: ArrayLike, most: float) -> Tail:
    """Limits that allow for unobserved changes, as a function of the tail.

    The lower limit treats all of them as losses, the upper limit as gains: each is a quantile of a mixture of
    confidence distributions shifted by these numbers of steps.

    Args:
        limits: From :func:`at_many_tails`.
        step: The largest effect of one unobserved change.
        chance_VK, changes_K: Probability of each number of unobserved changes; the remainder to 1 counts as ``most``.
        most: The largest possible change.
    """
    low_TV, high_TV = limits
    chance_VK, shift_K = np.asarray(chance_VK, np.float64), step * np.asarray(changes_K, np.float64)
    mixed = [
        _mixture(low_TV, high_TV, shift_K, chance_VK, most),
        # The upper limits are the negated lower limits of the negated effects.
        _mixture(-high_TV, -low_TV, shift_K, chance_VK, most),
    ]

    def within(tail: Array) -> Limits:
        log_tail = np.log(np.asarray(tail, np.float64))
        low, fall = (
            # np.interp takes one table at a time, and each effect has its own.
            np.stack([np.interp(log_tail[..., v], np.log(_TAILS), of_TV[:, v]) for v in range(of_TV.shape[1])], -1)
            for of_TV in mixed
        )
        return low, -fall

    return within


def _mixture(low_TV: Array, high_TV: Array, shift_K: Array, chance_VK: Array, most: float) -> Array:
    """Lower limits of the mixture at all tails, ``[T, V]``."""
    share_T = np.concatenate([_TAILS, 1 - _TAILS[-2::-1]])
    point_TV = np.concatenate([low_TV, high_TV[-2::-1]])
    mixed_TV = np.full_like(low_TV, np.nan)
    for v in np.flatnonzero(np.isfinite(point_TV).all(axis=0)):
        point_X = np.unique(point_TV[:, v, None] - shift_K)
        # Below its last point, a distribution has almost no mass, and the remaining probability is lowest.
        below_KX = np.interp(point_X + shift_K[:, None], point_TV[:, v], share_T, left=0.0)
        below_X = chance_VK[v] @ below_KX + max(1 - chance_VK[v].sum(), 0.0)
        positive = below_X > 0
        mixed_TV[:, v] = np.interp(np.log(_TAILS), np.log(below_X[positive]), point_X[positive])
        mixed_TV[below_X[0] > _TAILS, v] = -most
    return mixed_TV
