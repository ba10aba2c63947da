"""Looking at growing data several times without claiming more than one look would."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Array = NDArray[np.float64]

# 40 nodes already give the same levels to the last digit.
_NODE_P, _WEIGHT_P = np.polynomial.legendre.leggauss(160)
_LARGEST = 0.98
"""Larger p-values are taken for 1."""

_WIDEST = 8.5
"""Beyond so many standard deviations a boundary is not reached."""


@lru_cache(maxsize=256)
def nominal_levels(shares: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Two-sided level of each look, so that all looks together err with probability ``alpha``.

    Each side spends alpha / 2 by the function of Lan and DeMets (1983) that behaves like O'Brien and Fleming's boundaries,
    2 - 2 Phi(z(1 - alpha / 4) / sqrt(t)): little is spent early, and the last level is close to alpha. Boundaries from the joint
    distribution of a random walk (Armitage, McPherson and Rowe 1969), by Gauss-Legendre quadrature.

    Args:
        shares: Share of the examples seen at each look, rising to 1.
        alpha: The error rate of all looks, between 0 and 1.

    Raises:
        ValueError: If the shares do not rise from above 0 to 1.
    """
    share_K = np.asarray(shares, np.float64)
    if not len(share_K) or share_K[0] <= 0 or share_K[-1] != 1 or (np.diff(share_K) <= 0).any():
        raise ValueError(f"the shares {list(shares)} do not rise to 1")
    spent_K = 4 * stats.norm.sf(stats.norm.isf(alpha / 4) / np.sqrt(share_K))
    levels: list[float] = []
    walk_G, density_G, weight_G = np.zeros(1), np.ones(1), np.ones(1)
    for look, (share, spend) in enumerate(zip(share_K, np.diff(spent_K, prepend=0.0), strict=True)):
        step = float(np.sqrt(share - (share_K[look - 1] if look else 0.0)))

        low, high = 0.0, _WIDEST
        # Bisection for the boundary that spends this look's share: 40 halvings of 8.5 leave 1e-11.
        for _ in range(40):
            edge = (low + high) / 2 * np.sqrt(share)
            beyond_G = special.ndtr((walk_G - edge) / step) + special.ndtr((-edge - walk_G) / step)
            more = float((density_G * weight_G * beyond_G).sum()) > spend
            low, high = ((low + high) / 2, high) if more else (low, (low + high) / 2)
        levels.append(float(2 * stats.norm.sf(high)))
        # What goes on: paths within the boundary.
        edge = high * np.sqrt(share)
        next_G = edge * _NODE_P
        density_G = stats.norm.pdf((next_G[:, None] - walk_G) / step) @ (density_G * weight_G) / step
        walk_G, weight_G = next_G, edge * _WEIGHT_P
    return tuple(levels)


@dataclass(frozen=True)
class Look:
    """One of several looks at growing data.

    Args:
        index: Which one, from 0.
        shares: Share of the examples seen at each look, rising to 1.
    """

    index: int
    shares: tuple[float, ...]

    def two_sided(self, p: ArrayLike) -> Array:
        """The smallest error rates of all looks at which this one would reject, from two-sided p-values of any shape.

        They are valid p-values whichever look a test stops at, and can be corrected for many tests like any others.
        """
        p_values = np.asarray(p, np.float64)
        if len(self.shares) == 1:
            return p_values
        # A table of 60 rates instead of a search for each p-value: levels are smooth in the rate.
        alpha_A = np.geomspace(1e-8, _LARGEST, 60)
        level_A = np.array([nominal_levels(self.shares, float(alpha))[self.index] for alpha in alpha_A])
        with np.errstate(divide="ignore"):
            alpha = np.exp(np.interp(np.log(p_values), np.log(level_A), np.log(alpha_A), right=0.0))
        # No rate of all looks is below the level of one; interpolation must not make it so.
        return np.where(np.isnan(p_values), np.nan, np.maximum(alpha, p_values))

    def one_sided(self, p: ArrayLike) -> Array:
        """The same from one-sided p-values; those above 0.2 are approximate, as a walk may then cross both boundaries."""
        p_values = np.asarray(p, np.float64)
        if len(self.shares) == 1:
            return p_values
        doubled = self.two_sided(np.minimum(2 * p_values, 1))
        return np.where(doubled > _LARGEST, 1.0, doubled / 2)

    def level(self, alpha: float) -> float:
        """The two-sided level of limits that hold with 1 - ``alpha`` whichever look a test stops at."""
        return alpha if len(self.shares) == 1 else nominal_levels(self.shares, alpha)[self.index]


ONLY_LOOK = Look(0, (1.0,))
"""All examples at once."""


def chance_of_a_verdict(
    delta_V: ArrayLike,
    variance_V: ArrayLike,
    seen: int,
    examples: int,
    margin: float,
    *,
    rate: float = 0.05,
    alpha: float = 0.05,
    family_wise: bool = True,
    tests: int | None = None,
    shown: tuple[int, int] = (0, 0),
) -> Array:
    """Probability that all examples would show a loss, or rule out one of the margin, given some of them; ``[V]``.

    The estimate on all N examples, given that on n of them, is predicted as normal around it with variance s^2 (N - n) / (n N)
    (a flat prior; s^2 the variance of one example's effect). Each one-sided test is taken at twice the level that its correction would
    apply if all effects stayed as they are.

    Args:
        delta_V: Change of score on the examples seen.
        variance_V: Variance of one example's effect, positive.
        seen, examples: Number of examples seen, and of all.
        margin: The loss that matters, positive.
        rate: False discovery rate (Benjamini and Hochberg 1995) of the tests against the margin.
        alpha: Error rate of the tests of a loss.
        family_wise: Whether that is the family-wise one (Holm 1979), else the false discovery rate.
        tests: Number of variants that are corrected together; None for V.
        shown: Of the others of these, how many are already shown to be needed, and dispensable.
    """
    delta, variance = np.asarray(delta_V, np.float64), np.asarray(variance_V, np.float64)
    error = np.sqrt(variance / examples)
    spread = np.sqrt(variance * (examples - seen) / (seen * examples))
    count = tests or len(delta)
    of_loss = _family_wise_level if family_wise else _false_discovery_level
    reach = stats.norm.isf(of_loss(stats.norm.sf(-delta / error), alpha, count, shown[0]))
    needed = stats.norm.cdf((-reach * error - delta) / spread)
    p_margin_V = stats.norm.sf((delta + margin) / error)
    reach = stats.norm.isf(_false_discovery_level(p_margin_V, rate, count, shown[1]))
    dispensable = stats.norm.sf((-margin + reach * error - delta) / spread)
    return np.asarray(np.minimum(needed + dispensable, 1))


def _false_discovery_level(p_V: Array, rate: float, tests: int, shown: int) -> float:
    """Twice the largest p-value that would count as shown; at most the rate."""
    within = np.sort(p_V) <= rate * (np.arange(len(p_V)) + 1 + shown) / tests
    largest = int(np.flatnonzero(within)[-1]) + 1 if within.any() else 0
    return min(rate, 2 * rate * max(1, largest + shown) / tests)


def _family_wise_level(p_V: Array, alpha: float, tests: int, shown: int) -> float:
    """Twice the level at which the next hypothesis would be tested, step-down; at most alpha."""
    beyond = np.sort(p_V) > alpha / (tests - shown - np.arange(len(p_V)))
    rejected = int(beyond.argmax()) if beyond.any() else len(p_V)
    return min(alpha, 2 * alpha / max(1, tests - shown - rejected))
