"""The smallest loss that a paired test can detect, and the smallest loss that examples can rule out."""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import scipy
from numpy.typing import NDArray

POWER = 0.8
"""Power to detect the smallest detectable effect."""

_STEPS = 20
_ROUNDS = 200


def mcnemar_power(lost: float, won: float, examples: int, alpha: float) -> float:
    """Power of McNemar's exact two-sided test at level ``alpha``.

    Args:
        lost, won: Probabilities that an example is lost, and won; their sum is at most 1.
        examples: Number of examples.
        alpha: Level of the test.
    """
    discordant = lost + won
    if discordant <= 0:
        return 0.0
    spread = math.sqrt(examples * discordant * (1 - min(discordant, 1)))
    middle = examples * discordant
    # Beyond eight standard deviations, and eight more for the skewness of small counts, the probability is negligible.
    first, last = int(max(0, middle - 8 * spread - 8)), int(min(examples, middle + 8 * spread + 16))
    count_M = np.arange(first, last + 1)
    # Rounded up to a power of two, so that calls in a search share a few cached tables.
    largest_M = _largest_won(1 << last.bit_length(), alpha)[first : last + 1]
    possible_M = largest_M >= 0
    power_M = np.where(
        possible_M,
        scipy.special.bdtr(np.maximum(largest_M, 0), np.maximum(count_M, 1), min(won / discordant, 1.0)),
        0.0,
    )
    at_most_M = scipy.special.bdtr(np.arange(first - 1, last + 1).clip(min=0), examples, min(discordant, 1.0))
    at_most_M[0] = 0.0 if first == 0 else at_most_M[0]
    return float((np.diff(at_most_M) * power_M).sum())


@lru_cache(maxsize=64)
def _largest_won(limit: int, alpha: float) -> NDArray[np.float64]:
    """The largest number of won examples with a two-sided p-value of at most alpha, for 0 to ``limit`` discordant ones;
    -1 if there is none.
    """
    # scipy's binomial distribution only accepts whole numbers.
    count_M = np.arange(limit + 1)
    # Search downward from the normal approximation plus 3, which takes few steps.
    guess_M = np.floor(count_M / 2 + NormalDist().inv_cdf(alpha / 2) * np.sqrt(count_M) / 2) + 3
    guess_M = np.clip(guess_M, 0, np.maximum(np.floor(count_M / 2), 0))
    for _ in range(12):
        too_many_M = (guess_M >= 0) & (
            scipy.special.bdtr(np.maximum(guess_M, 0), np.maximum(count_M, 1), 0.5) > alpha / 2
        )
        if not too_many_M.any():
            break
        guess_M = guess_M - too_many_M
    return np.asarray(guess_M)


@lru_cache(maxsize=100_000)
def detectable_loss(flips: float, examples: int, alpha: float, power: float = POWER) -> float:
    """The smallest loss of accuracy that McNemar's exact test detects with the given power.

    Model: without an effect, predictions flip as often as observed, equally often to wrong and to right; the effect
    adds flips to wrong. With many flips it is close to d = (k^2 / N + sqrt(k^4 / N^2 + 4 k^2 f / N)) / 2, k = z(1 -
    alpha / 2) + z(power), f the share of flips; with few the exact test needs whole examples, and that formula's power
    is up to 0.97.

    Args:
        flips: Share of examples whose prediction flips, 0 to 1.
        examples: Number of examples.
        alpha: Level of the test.
        power: The power.

    Returns:
        A share of the examples; NaN if even the largest loss would not be detected.
    """
    # Lost plus won examples are at most all examples.
    low, high = 0.0, 1 - flips
    if mcnemar_power(flips / 2 + high, flips / 2, examples, alpha) < power:
        return math.nan
    for _ in range(_STEPS):
        centre = (low + high) / 2
        if mcnemar_power(flips / 2 + centre, flips / 2, examples, alpha) < power:
            low = centre
        else:
            high = centre
    return high


def detectable_change(stderr: float, step: float, examples: int, alpha: float, power: float = POWER) -> float:
    """The smallest change detected by a test of random swaps, with a standard error that grows with the change.

    The solution of d = z(1 - alpha / 2) sqrt(s^2 + w d + d^2 / N) + z(power) sqrt(s^2 + w d): swaps vary around 0, not
    around the change. For many examples it is d = (k^2 w + sqrt(k^4 w^2 + 4 k^2 s^2)) / 2, k = z(1 - alpha / 2) +
    z(power).

    Args:
        stderr: Standard error s without the change.
        step: What one example contributes to the change, w.
        examples: Number of examples N.
        alpha: Level of the test.
        power: The power.

    Returns:
        The change; NaN if there are too few examples to detect any.
    """
    level, reach = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    k = level + reach
    change = (k**2 * step + math.sqrt(k**4 * step**2 + 4 * k**2 * stderr**2)) / 2
    for _ in range(_ROUNDS):
        variance = stderr**2 + step * change
        after = level * math.sqrt(variance + change**2 / examples) + reach * math.sqrt(variance)
        if abs(after - change) <= 1e-9 * after:
            return after
        change = after
    return math.nan


def loss_ruled_out(examples: int, confidence: float) -> float:
    """The smallest loss of accuracy that paired examples rule out if no prediction changes, from 0 to 1.

    The one-sided exact limit of a binomial proportion without a success, as in
    :func:`~bertsecrets.statistics.non_inferiority.paired_loss`.
    """
    return float(1 - (1 - confidence) ** (1 / examples))


def examples_to_rule_out(loss: float, confidence: float) -> float:
    """Number of examples that rule out a loss of accuracy, above 0, if no prediction changes; the inverse of
    :func:`loss_ruled_out`.

    >>> round(examples_to_rule_out(0.01, 0.95), 1)
    298.1
    """
    # The logarithm is infinite for a loss of 1.
    return math.log(1 - confidence) / math.log(1 - min(loss, 0.999))
