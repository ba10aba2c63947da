"""Rank correlation with intervals and tests."""

import math
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def spearman(first_N: ArrayLike, second_N: ArrayLike) -> float:
    """Spearman's rank correlation, with mean ranks for ties; NaN with fewer than three points or without variation.

    >>> spearman([1, 2, 3], [10, 20, 40])
    1.0
    """
    first_N, second_N = np.asarray(first_N, np.float64), np.asarray(second_N, np.float64)
    # scipy would warn, and call two points a correlation of 1.
    if len(first_N) < 3 or np.ptp(first_N) == 0 or np.ptp(second_N) == 0:
        return float("nan")
    return float(scipy.stats.spearmanr(first_N, second_N).statistic)


FEWEST_POINTS = 8
"""A correlation over fewer points is shown, but not tested."""

_PERMUTATIONS = 9999


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation over the points with both numbers.

    Args:
        rho: The correlation; NaN where undefined.
        low, high: 95 % limits (Fisher's z with the variance of Bonett and Wright 2000, for as many points as
            ``effective``); NaN below ``FEWEST_POINTS`` or four effective points.
        p_value: Two-sided p-value from 9,999 random orders, the same at every call; NaN below ``FEWEST_POINTS``.
        count: Number of points with both numbers.
        effective: Effective sample size: number of independent points whose correlation would vary as much by chance:
            ``1 + 1 / variance`` over the orders; NaN below ``FEWEST_POINTS``.
        within: For grids, the correlation within layers; None for points without layers.
    """

    rho: float
    low: float
    high: float
    p_value: float
    count: int
    effective: float
    within: "RankCorrelation | None" = None

    @property
    def claim(self) -> "RankCorrelation":
        """The correlation for claims: within layers, if there are layers."""
        return self.within or self

    @property
    def judged(self) -> bool:
        """Whether there are enough points for a test."""
        return math.isfinite(self.claim.p_value)

    @property
    def significant(self) -> bool:
        """Whether the correlation (within layers, for grids) differs from 0 at the 5 % level."""
        return self.judged and self.claim.p_value <= 0.05


def spearman_within(first_LH: ArrayLike, second_LH: ArrayLike) -> float:
    """Spearman's correlation within layers: Pearson's correlation of ranks in each layer minus their mean.

    With equally many heads per layer and no ties, it is the mean over layers. Heads with NaN are ignored; NaN without
    variation.

    >>> spearman_within([[1, 2, 3], [9, 8, 7]], [[1, 2, 3], [4, 5, 6]])
    0.0
    """
    first_LH, second_LH = np.asarray(first_LH, np.float64), np.asarray(second_LH, np.float64)
    defined_LH = np.isfinite(first_LH) & np.isfinite(second_LH)
    x_LH, y_LH = (_ranks_in_layers(value_LH, defined_LH) for value_LH in (first_LH, second_LH))
    scale = math.sqrt(float((x_LH**2).sum() * (y_LH**2).sum()))
    return float((x_LH * y_LH).sum()) / scale if scale else math.nan


def rank_correlation(first: ArrayLike, second: ArrayLike) -> RankCorrelation:
    """Spearman's rank correlation with its limits and p-value; points with NaN are ignored.

    Two numbers of a model's heads can correlate because both depend on depth. For grids ``[layers, heads]``, the
    correlation ``within`` layers is therefore tested as well: heads are ranked and permuted within their layer. For the
    total, layers keep their order: one grid's layers are shifted circularly, from a random layer and in a random
    direction (toroidal shift; Lotwick and Silverman 1982), and heads are permuted within them. This keeps its level for
    profiles that are smooth over depth, but not if both rise or fall steadily, for which no reordering of a few layers
    does (simulated in ``benchmarks/procedures.py``); only published statements use the total, and they say so.
    One-dimensional points are exchangeable.

    Args:
        first, second: Numbers of the same points, ``[N]`` or ``[layers, heads]``; for layers without heads, ``[layers,
            1]``.

    >>> rank_correlation(range(10), range(10)).p_value
    0.0001
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    defined = np.isfinite(first) & np.isfinite(second)
    rho, count = spearman(first[defined], second[defined]), int(defined.sum())
    generator = np.random.default_rng(0)
    if defined.ndim == 1:
        x_N, y_N = (_centred_ranks(value[defined]) for value in (first, second))
        order_PN = generator.permuted(np.broadcast_to(np.arange(count), (_PERMUTATIONS, count)), axis=1)
        every_N = np.ones(count, np.bool_)
        return _tested(rho, _correlations(x_N, y_N[order_PN], every_N, every_N[order_PN]), count)
    # Heads without both numbers are placed last in their layer, unaffected by permutations of the others.
    place_LH = np.argsort(~defined, axis=1, kind="stable")
    first, second, defined = (np.take_along_axis(value, place_LH, axis=1) for value in (first, second, defined))
    layers, heads = defined.shape
    key_PLH = np.where(defined, generator.random((_PERMUTATIONS, layers, heads)), 2.0)
    head_PLH = np.argsort(key_PLH, axis=2, kind="stable")
    x_LH, y_LH = (_ranks_in_layers(value, defined) for value in (first, second))
    chance_P = _correlations(
        x_LH, y_LH[np.arange(layers)[:, None], head_PLH], defined, np.broadcast_to(defined, head_PLH.shape)
    )
    compared = defined[defined.sum(axis=1) > 1]
    within = _tested(spearman_within(first, second), chance_P, int(compared.sum()))
    x_LH, y_LH = np.zeros(defined.shape), np.zeros(defined.shape)
    x_LH[defined], y_LH[defined] = _centred_ranks(first[defined]), _centred_ranks(second[defined])
    start_P1, step_P1 = (
        generator.integers(layers, size=(_PERMUTATIONS, 1)),
        generator.choice([-1, 1], (_PERMUTATIONS, 1)),
    )
    layer_PL1 = ((start_P1 + step_P1 * np.arange(layers)) % layers)[..., None]
    moved_PLH = layer_PL1, np.take_along_axis(head_PLH, layer_PL1, axis=1)
    chance_P = _correlations(x_LH, y_LH[moved_PLH], defined, defined[moved_PLH])
    return replace(_tested(rho, chance_P, count), within=within)


@dataclass(frozen=True)
class Agreement:
    """Mean pairwise rank correlation over heads between several grids.

    Args:
        rho: The mean; NaN where undefined.
        low, high: 95 % limits; NaN with fewer than three layers.
        p_value: Two-sided p-value for equality with a threshold; NaN likewise.
    """

    rho: float
    low: float
    high: float
    p_value: float


def agreement(value_GLH: ArrayLike, threshold: float = 0.0) -> Agreement:
    """Agreement of grids on the order of heads, with an uncertainty over layers; heads with NaN are ignored.

    Heads of a layer resemble each other, so whole layers are deleted in turn (delete-one-group jackknife; Shao and Wu
    1989), and Fisher's z of the mean has Student's t with one degree of freedom less than layers.

    Args:
        value_GLH: At least two grids ``[grids, layers, heads]``.
        threshold: Threshold of the test, between -1 and 1.
    """
    value_GLH = np.asarray(value_GLH, np.float64)
    layers = np.flatnonzero(np.isfinite(value_GLH).all(0).any(1))
    rho = _mean_correlation(value_GLH[:, layers])
    without_L = np.array([_mean_correlation(value_GLH[:, layers[layers != layer]]) for layer in layers])
    if len(layers) < 3 or not np.isfinite([rho, *without_L]).all():
        return Agreement(rho, math.nan, math.nan, math.nan)
    # Fisher's z of 1 is infinite.
    z, edge, *z_L = np.arctanh(np.clip([rho, threshold, *without_L], -1 + 1e-12, 1 - 1e-12))
    stderr = math.sqrt((len(layers) - 1) * float(np.var(z_L)))
    reach = float(scipy.stats.t.isf(0.025, len(layers) - 1)) * stderr
    p_value = float(2 * scipy.stats.t.sf(abs(z - edge) / stderr, len(layers) - 1)) if stderr else float(z == edge)
    return Agreement(rho, math.tanh(z - reach), math.tanh(z + reach), p_value)


def _mean_correlation(value_GLH: Array) -> float:
    value_GN = value_GLH[:, np.isfinite(value_GLH).all(0)]
    return float(np.mean([spearman(first_N, second_N) for first_N, second_N in combinations(value_GN, 2)]))


def _centred_ranks(value_N: Array) -> Array:
    rank_N: Array = scipy.stats.rankdata(value_N) - (len(value_N) + 1) / 2
    return rank_N


def _ranks_in_layers(value_LH: Array, defined_LH: Mask) -> Array:
    """Ranks in each layer minus their mean; 0 where undefined."""
    rank_LH = np.zeros(value_LH.shape)
    for rank_H, value_H, defined_H in zip(rank_LH, value_LH, defined_LH, strict=True):
        rank_H[defined_H] = _centred_ranks(value_H[defined_H])
    return rank_LH


def _correlations(x: Array, y_P: Array, x_defined: Mask, y_defined_P: Mask) -> Array:
    """Pearson's correlation of numbers with others in each of P orders, over points with both; undefined numbers are
    0.
    """
    x_N, y_NP = x.ravel(), y_P.reshape(len(y_P), -1).T
    with_x_N, with_y_NP = x_defined.ravel().astype(np.float64), y_defined_P.reshape(len(y_P), -1).T.astype(np.float64)
    count_P, sum_x_P, sum_y_P = with_x_N @ with_y_NP, x_N @ with_y_NP, with_x_N @ y_NP
    with np.errstate(invalid="ignore", divide="ignore"):
        covariance_P = x_N @ y_NP - sum_x_P * sum_y_P / count_P
        variance_P = (x_N**2 @ with_y_NP - sum_x_P**2 / count_P) * (with_x_N @ y_NP**2 - sum_y_P**2 / count_P)
        # Rounding can leave a tiny variance instead of 0, which has no correlation.
        rho_P: Array = np.where(variance_P > 1e-9, covariance_P / np.sqrt(np.maximum(variance_P, 0)), 0.0)
    return rho_P


def _tested(rho: float, chance_P: Array, count: int) -> RankCorrelation:
    """A correlation compared with those of random orders."""
    if count < FEWEST_POINTS or not math.isfinite(rho):
        return RankCorrelation(rho, math.nan, math.nan, math.nan, count, math.nan)
    # Rounding must not separate equal correlations. The observed order counts as one more, so p is never 0.
    p_value = float(((np.abs(chance_P) >= abs(rho) - 1e-9).sum() + 1) / (_PERMUTATIONS + 1))
    # The mean square about 0, the correlation without association.
    spread = float((chance_P**2).mean())
    effective = min(1 + 1 / spread, float(count)) if spread else math.nan
    if not effective > 3:
        return RankCorrelation(rho, math.nan, math.nan, p_value, count, effective)
    reach = scipy.stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (effective - 3))
    # Fisher's z of 1 is infinite.
    middle = math.atanh(min(max(rho, -1 + 1e-12), 1 - 1e-12))
    return RankCorrelation(rho, math.tanh(middle - reach), math.tanh(middle + reach), p_value, count, effective)
