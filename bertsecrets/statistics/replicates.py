"""Statistics over seeds: means with intervals, agreement between seeds, differences between conditions."""

import warnings
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertsecrets.statistics.corrections import corrected
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
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(known.mean())
    if len(known) == 1:
        return Interval(mean, np.nan, np.nan, 1)
    reach = float(stats.t.ppf((1 + level) / 2, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    return Interval(mean, mean - reach, mean + reach, len(known))


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
        p_LH: P-value of no difference, corrected over the heads (Benjamini and Hochberg 1995); NaN where undefined.
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
    return Difference(delta_LH, corrected(p_LH), over_seeds)


def _complete(value_NR: ArrayLike) -> Array:
    array_NR = np.asarray(value_NR, np.float64)
    return array_NR[np.isfinite(array_NR).all(axis=1)]
