"""One-sided tests of a loss due to few examples, and the smallest loss that they can rule out.

Their level is checked by enumeration for accuracy and by simulation for other metrics.
"""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
LossTest = Callable[[Array], Array]
"""One-sided p-values of V losses of at least a given size, ``[V]``, from one size each or one for all; negative sizes
are gains.
"""

_LEAST_P = 1e-12
"""Smaller p-values are rounded up to this; the quadrature error is smaller."""
_CUT = 1e-14
# 40 nodes already give p-values to six digits.
_NODE_Q, _WEIGHT_Q = np.polynomial.legendre.leggauss(64)
# 32 halvings leave 5e-10 of the range.
_STEPS = 32
_LEAST_CHANCE = 1e-9


def paired_loss(lost_V: ArrayLike, won_V: ArrayLike, examples: ArrayLike) -> LossTest:
    """Test of a loss of a paired proportion, lost minus won, by melded exact limits (Fay and Lumbard 2021).

    A loss is F (1 - 2 T): F the share of discordant pairs, T the share of won pairs among them. The p-value is the
    probability that it reaches the tested size if both are drawn independently from the confidence distributions of
    their Clopper-Pearson limits: F ~ Beta(m + 1, N - m), T ~ Beta(won, lost + 1), m = lost + won. This equals (1 -
    size)^N without discordant pairs, and McNemar's exact test for size 0. There is no known proof of the level;
    ``tests/statistics/test_non_inferiority.py`` enumerates outcomes.

    Args:
        lost_V: Pairs of which only the first is right.
        won_V: Pairs of which only the second is right.
        examples: Number of pairs, of all or of each.
    """

    def p_values(size: Array) -> Array:
        d, lost, won, n = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (size, lost_V, won_V, examples)))
        # For a gain, the lower limits of F make it small.
        loses = d > 0
        first, second = lost + won + loses, n - lost - won + ~loses
        a, b, reach = np.maximum(first, 1), np.maximum(second, 1), np.minimum(np.abs(d), 1)

        def few_won(share: Array) -> Array:
            """P(T <= (1 - size / share) / 2)."""
            most = np.clip((1 - d[..., None] / share) / 2, 0, 1)
            return np.asarray(scipy.special.betainc(np.maximum(won, 1)[..., None], lost[..., None] + 1, most))

        def density(logit: Array) -> Array:
            power = a[..., None] * scipy.special.log_expit(logit) + b[..., None] * scipy.special.log_expit(-logit)
            return np.asarray(
                np.exp(power - scipy.special.betaln(a, b)[..., None]) * few_won(scipy.special.expit(logit))
            )

        low, high = np.maximum(reach, scipy.special.betaincinv(a, b, _CUT)), scipy.special.betainccinv(a, b, _CUT)
        # The log odds of 1 are infinite.
        low, high = (scipy.special.logit(np.minimum(end, 1 - _CUT)) for end in (low, high))
        p = _integral(density, low, np.maximum(high, low)) + np.where(loses, 0, scipy.special.betainc(a, b, reach))
        p = np.where(won == 0, np.where(loses, scipy.special.betaincc(a, b, reach), 1), p)
        # All or no pairs are discordant.
        p = np.where(second == 0, np.where(won == 0, 1.0 * (d <= 1), few_won(np.ones((*d.shape, 1)))[..., 0]), p)
        return np.clip(np.where(first == 0, 1, p), _LEAST_P, 1)

    return p_values


def influenced_loss(delta_V: ArrayLike, influence_VN: ArrayLike, harm_V: ArrayLike) -> LossTest:
    """The same for a loss of any score, from the influence of every example: melded gamma limits (Fay and Feuer 1997).

    Harm and gain are sums of weighted events. The harm is drawn from the gamma distribution of its upper limits, which
    has an additional event of the largest weight, and the gain from that of its lower limits; their difference, centred
    at the observed change, is the loss.

    Args:
        delta_V: The observed changes.
        influence_VN: The influence of every example on them, with mean 0.
        harm_V: The largest loss that one example can cause, at least 0.
    """
    share_VN = np.asarray(influence_VN, np.float64) / np.shape(influence_VN)[-1]
    harm_2V, gain_2V = (
        np.stack([part_VN.sum(-1), (part_VN**2).sum(-1)])
        for part_VN in (np.maximum(-share_VN, 0), np.maximum(share_VN, 0))
    )
    return weighted_loss(delta_V, harm_2V, gain_2V, harm_V)


def weighted_loss(delta_V: ArrayLike, harm_2V: ArrayLike, gain_2V: ArrayLike, largest_V: ArrayLike) -> LossTest:
    """The same from the sums of weights, and of squared weights, of harmful and gainful events, ``[2, V]`` each."""
    delta, largest = np.asarray(delta_V, np.float64), np.asarray(largest_V, np.float64)
    harm, harm_squares = np.asarray(harm_2V, np.float64)
    gain, gain_squares = np.asarray(gain_2V, np.float64)
    a, scale = _gamma(harm + largest, harm_squares + largest**2)
    of_gain, scale_of_gain = _gamma(gain, gain_squares)

    def p_values(size: Array) -> Array:
        d = np.asarray(size, np.float64) + delta + harm - gain

        def density(log: Array) -> Array:
            drawn = np.exp(log)
            power = a[..., None] * log - drawn - scipy.special.gammaln(a)[..., None]
            left = np.maximum(drawn * scale[..., None] - d[..., None], 0) / scale_of_gain[..., None]
            return np.asarray(np.exp(power) * scipy.special.gammainc(of_gain[..., None], left))

        beyond = np.maximum(d, 0) / scale
        high = np.log(scipy.special.gammainccinv(a, _CUT))
        low = np.log(np.maximum(beyond, scipy.special.gammaincinv(a, _CUT)))
        p = _integral(density, low, np.maximum(high, low))
        p = np.where(gain > 0, p, scipy.special.gammaincc(a, beyond))
        # If harm is impossible.
        alone = np.where(gain > 0, scipy.special.gammainc(of_gain, np.maximum(-d, 0) / scale_of_gain), 1.0 * (d <= 0))
        p = np.clip(np.where(harm + largest > 0, p, alone), _LEAST_P, 1)
        return np.where(np.isnan(d), np.nan, p)

    return p_values


def _gamma(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Shape and scale of a gamma distribution; 1 and 1 for a mean of 0."""
    some = mean > 0
    return (
        np.divide(mean**2, variance, out=np.ones_like(mean), where=some),
        np.divide(variance, mean, out=np.ones_like(mean), where=some),
    )


def _integral(density: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Integral from ``low`` to ``high`` of a function of points ``[..., Q]``."""
    half = (high - low) / 2
    return np.asarray(half * (density((low + half)[..., None] + half[..., None] * _NODE_Q) * _WEIGHT_Q).sum(-1))


def with_unseen_losses(test: LossTest, step: float, chance_VK: ArrayLike, changes_K: ArrayLike) -> LossTest:
    """A test that allows for unobserved changes by treating all of them as losses.

    Args:
        test: The test of the observed changes.
        step: The largest loss of one unobserved change.
        chance_VK, changes_K: Probability of each number of unobserved changes; the remainder to 1 may be any loss.
    """
    chance_KV, changes = np.asarray(chance_VK, np.float64).T, np.asarray(changes_K)
    likely_K = (chance_KV >= _LEAST_CHANCE).any(1)
    chance_KV, changes = chance_KV[likely_K], changes[likely_K]

    def p_values(size: Array) -> Array:
        seen = sum(chance_V * test(size - k * step) for chance_V, k in zip(chance_KV, changes, strict=True))
        return np.asarray(np.minimum(seen + np.maximum(1 - chance_KV.sum(0), 0), 1))

    return p_values


def smallest_ruled_out(test: LossTest, alpha: float, most: float) -> Array:
    """The smallest losses with p-values of at most ``alpha``, ``[V]``, in ``-most`` to ``most``; NaN if undefined."""
    undefined = np.isnan(test(np.array(most)))
    low, high = np.full(undefined.shape, -most), np.full(undefined.shape, most)
    for _ in range(_STEPS):
        centre = (low + high) / 2
        out = test(centre) <= alpha
        low, high = np.where(out, low, centre), np.where(out, centre, high)
    return np.where(undefined, np.nan, high)
