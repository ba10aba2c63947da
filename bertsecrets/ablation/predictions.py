"""Predictions of a model and its variants on the same examples, and their scores under any weighting of the examples.

Every metric is a function of sums of *features* over examples: bootstrap resamples (weights) and swaps of
predictions become matrix products.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.statistics.clusters import Clusters, by_cluster, cluster_sums, effective_count, numbered
from bertsecrets.task_heads import METRICS
from bertsecrets.task_heads.metric import Array, Metric, moments

Weights = NDArray[np.float64] | NDArray[np.integer[Any]]

_AT_ONCE = 4_000_000
"""Number of values, such as weights of resamples, held in memory at a time."""

_STEP = 1e-6
"""Step of numerical derivatives."""


def find_metric(name: str) -> Metric:
    """The metric with this name; raises UserError if there is none."""
    if name not in METRICS:
        raise UserError(f"Unknown metric '{name}'; {choices(name, METRICS)}.")
    return METRICS[name]


def judged_metrics(task: Task) -> list[Metric]:
    """The metrics of a task for which effects are tested: all but those of a ranking (``auc``)."""
    return [task.head.metrics[name] for name in task.metrics if name in task.head.metrics]


def weighted_scores(metric: Metric, label_N: Array, prediction_VN: Array, weight_RN: Weights) -> Array:
    """The metric of V predictions under R weightings of the N examples, ``[R, V]`` float64.

    An integer weight gives exactly the score of a set with that many copies of the example. NaN where a correlation is
    undefined; 0 where F1 or Matthews' correlation is.

    Args:
        metric: The metric.
        label_N: Gold labels: class indices or scores.
        prediction_VN: Predictions of the same kind.
        weight_RN: Non-negative, each row with a positive sum.
    """
    score_RV = np.empty((len(weight_RN), len(prediction_VN)))
    for first, rows in memory_parts(len(weight_RN), len(label_N)):
        part_RN = np.asarray(weight_RN[first : first + rows], np.float64)
        for start, variants in memory_parts(len(prediction_VN), len(label_N)):
            part_VN = prediction_VN[start : start + variants]
            score_RV[first : first + rows, start : start + variants] = _scores(metric, label_N, part_VN, part_RN)
    return score_RV


def memory_parts(rows: int, examples: int, most: int | None = None, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Split rows into parts that fit into memory; yield the first row and the number of rows of each part.

    Args:
        rows: Number of rows.
        examples: Number of examples, the length of a row.
        most: Largest number of rows in a part; None for no limit other than memory.
        multiple: The number of rows in every part but the last is a multiple of this; divides ``most``.
    """
    size = max(1, _AT_ONCE // max(1, examples) // multiple) * multiple
    size = size if most is None else min(size, most)
    for first in range(0, rows, size):
        yield first, min(size, rows - first)


def scores(metric: Metric, label_N: Array, prediction_VN: Array) -> Array:
    """The metric of V predictions on all examples, ``[V]``; arguments as for :func:`weighted_scores`."""
    return np.asarray(weighted_scores(metric, label_N, prediction_VN, np.ones((1, len(label_N))))[0])


def _scores(metric: Metric, label_N: Array, prediction_VN: Array, weight_RN: Array) -> Array:
    whole_R1 = weight_RN.sum(-1, keepdims=True)
    if metric.of_ranks:
        return _spearman(label_N, prediction_VN, weight_RN / whole_R1)
    feature_VNF = metric.features(label_N, prediction_VN)
    # Divided after summing, so that counts stay integers and equal counts give equal scores.
    sum_RVF = np.einsum("rn,vnf->rvf", weight_RN, feature_VNF, optimize=True)
    return metric.score(sum_RVF / whole_R1[..., None])


def _spearman(label_N: Array, prediction_VN: Array, weight_RN: Array) -> Array:
    y_RN = weighted_ranks(label_N, weight_RN)
    y_RN -= (weight_RN * y_RN).sum(-1, keepdims=True)
    spread_y_R = (weight_RN * y_RN**2).sum(-1)
    columns = []
    for prediction_N in prediction_VN:
        x_RN = weighted_ranks(prediction_N, weight_RN)
        x_RN -= (weight_RN * x_RN).sum(-1, keepdims=True)
        spread_x_R = (weight_RN * x_RN**2).sum(-1)
        defined_R = (spread_x_R > 1e-14) & (spread_y_R > 1e-14)
        root_R = np.sqrt(np.where(defined_R, spread_x_R * spread_y_R, 1.0))
        columns.append(np.where(defined_R, (weight_RN * x_RN * y_RN).sum(-1) / root_R, np.nan))
    return np.stack(columns, -1)


def weighted_ranks(value_N: Array, weight_RN: Array) -> Array:
    """Mid-ranks under each weighting, ``[R, N]``, up to a constant: the weight below a value plus half of its own.

    scipy.stats.rankdata does not support weights.
    """
    _, index_N = np.unique(value_N, return_inverse=True)
    order_N = np.argsort(index_N, kind="stable")
    first_U = np.flatnonzero(np.diff(index_N[order_N], prepend=-1))
    tied_RU = np.add.reduceat(weight_RN[:, order_N], first_U, axis=1)
    # Mid-ranks: half of the tied weight lies below.
    rank_RU = np.cumsum(tied_RU, axis=1) - tied_RU / 2
    return np.asarray(rank_RU[:, index_N])


def influences(metric: Metric, label_N: Array, prediction_VN: Array) -> Array:
    """Empirical influence of every example on the metric, ``[V, N]``, with mean 0 (Hampel 1974; Efron 1982, chapter 6).

    N times the effect of slightly more weight on one example: the metric's standard error is the root mean square of
    its influences divided by the square root of N. NaN where the metric is undefined.

    Args:
        metric: The metric.
        label_N: Gold labels: class indices or scores.
        prediction_VN: Predictions of the same kind.
    """
    if metric.correlates and not metric.of_ranks:
        # A correlation does not depend on location and scale, but numerical derivatives do.
        label_N, prediction_VN = _standardised(label_N), _standardised(prediction_VN)
    parts = []
    for first, variants in memory_parts(len(prediction_VN), len(label_N)):
        part_VN = prediction_VN[first : first + variants]
        if metric.of_ranks:
            mean_VF, feature_VNF = _rank_moments(label_N, part_VN)
        else:
            feature_VNF = metric.features(label_N, part_VN)
            mean_VF = feature_VNF.mean(1)
        influence_VN = np.einsum("vnf,vf->vn", feature_VNF - mean_VF[:, None], _gradient(metric, mean_VF))
        parts.append(influence_VN - influence_VN.mean(-1, keepdims=True))
    return np.concatenate(parts)


def largest_moves(metric: Metric, label_N: Array, prediction_N: Array) -> tuple[float, float]:
    """The largest loss and gain (at least 0), to first order, if one prediction were the smallest or largest one."""
    if metric.of_statistics:
        feature_NF = metric.features(label_N, prediction_N[None])[0]
        spread_F = np.ptp(feature_NF, axis=0) / len(feature_NF)
        move = float(np.abs(_gradient(metric, feature_NF.mean(0)[None])[0]) @ spread_F)
        return move, move
    change_VN = _moves(metric, label_N, prediction_N)
    return max(0.0, -float(change_VN.min())), max(0.0, float(change_VN.max()))


def largest_flip(metric: Metric, label_N: Array, prediction_N: Array) -> float:
    """The largest change in either direction if one example's prediction were another class that occurs, or by one
    event.

    Computed exactly: if few examples are predicted to be of a class, a score changes by much more than its derivatives
    predict.
    """
    if metric.of_statistics:
        return float(np.abs(_steps(metric, label_N, prediction_N)).max())
    features, score = metric.features, metric.score
    classes = np.unique(np.concatenate([label_N, prediction_N, metric.classes]))
    kind_K2, count_K = np.unique(np.stack([label_N, prediction_N], 1), axis=0, return_counts=True)
    # All pairs of an occurring label and a class, so that the features cover all classes that occur.
    label_KC = np.broadcast_to(kind_K2[:, :1], (len(kind_K2), len(classes)))
    other_KCF = features(label_KC.ravel(), np.tile(classes, len(kind_K2))[None])[0].reshape(*label_KC.shape, -1)
    predicted_KF = other_KCF[np.arange(len(kind_K2)), np.searchsorted(classes, kind_K2[:, 1])]
    sum_F = count_K @ predicted_KF
    changed_KC = score((sum_F - predicted_KF[:, None] + other_KCF) / len(label_N))
    return float(np.abs(changed_KC - score(sum_F[None] / len(label_N))[0]).max())


def typical_harm(metric: Metric, label_N: Array, prediction_N: Array) -> float:
    """The typical loss w of a class metric, to first order, if a right prediction were wrong: sum of w^2 / sum of w
    over right predictions.

    Flips that lose d in total then have the variance w d. 0 if nothing can be lost.
    """
    if metric.of_statistics:
        return max(0.0, -float(_steps(metric, label_N, prediction_N).min()))
    harm_VN = np.maximum(-_moves(metric, label_N, prediction_N)[:, np.asarray(prediction_N == label_N)], 0)
    return float((harm_VN**2).sum() / harm_VN.sum()) if harm_VN.any() else 0.0


def _steps(metric: Metric, label_N: Array, statistic_NF: Array) -> Array:
    """The change of score that each of a metric's steps makes, given some statistics."""
    feature_NF = metric.features(label_N, statistic_NF[None])[0]
    stepped_KF = np.maximum(feature_NF.sum(0) + np.array(metric.steps), 0)
    return metric.score(stepped_KF / len(feature_NF)) - metric.score(feature_NF.mean(0)[None])


def _moves(metric: Metric, label_N: Array, prediction_N: Array) -> Array:
    """Changes of the metric, to first order, if one example's prediction were another, ``[predictions, N]``."""
    label_N, prediction_N = np.asarray(label_N, np.float64), np.asarray(prediction_N, np.float64)
    if not metric.of_classes:
        if metric.of_ranks:
            label_N, prediction_N = (weighted_ranks(x_N, np.ones((1, len(x_N))))[0] for x_N in (label_N, prediction_N))
        label_N, prediction_N = _standardised(label_N), _standardised(prediction_N)
        others = [prediction_N.min(), prediction_N.max()]
    else:
        others = list(np.unique(np.concatenate([label_N, prediction_N])))
    candidate_VN = np.stack([prediction_N, *(np.full_like(prediction_N, other) for other in others)])
    features = metric.features if metric.of_classes else moments
    feature_VNF = features(label_N, candidate_VN)
    gradient_F = _gradient(metric, feature_VNF[0].mean(0)[None])[0]
    moves_VN: Array = np.nan_to_num((feature_VNF[1:] - feature_VNF[0]) @ gradient_F / len(label_N))
    return moves_VN


def _standardised(value: Array) -> Array:
    spread = value.std(-1, keepdims=True)
    return np.asarray((value - value.mean(-1, keepdims=True)) / np.where(spread > 0, spread, 1))


def _gradient(metric: Metric, mean_VF: Array) -> Array:
    """Central differences of a score with respect to its features."""
    gradient_VF = np.zeros_like(mean_VF)
    for feature in range(mean_VF.shape[-1]):
        above_VF, below_VF = mean_VF.copy(), mean_VF.copy()
        above_VF[:, feature] += _STEP
        below_VF[:, feature] -= _STEP
        gradient_VF[:, feature] = (metric.score(above_VF) - metric.score(below_VF)) / (2 * _STEP)
    if metric.no_derivative is not None:
        # ``largest_flip`` covers the change by one prediction there.
        gradient_VF[metric.no_derivative(mean_VF)] = 0
    return gradient_VF


def _rank_moments(label_N: Array, prediction_VN: Array) -> tuple[Array, Array]:
    """Moments of mid-ranks as shares, and the terms whose means' derivatives by weight are the influences.

    A moment of ranks is a mean over pairs or triples of examples: an example counts once for itself, and once for every
    rank that it shifts.
    """
    y_N, above_y = _rank_and_shift(label_N)
    columns, means = [], []
    for prediction_N in prediction_VN:
        x_N, above_x = _rank_and_shift(prediction_N)
        term_NF = np.stack(
            [
                np.ones_like(x_N),
                x_N + above_x(np.ones_like(x_N)),
                y_N + above_y(np.ones_like(y_N)),
                x_N**2 + 2 * above_x(x_N),
                y_N**2 + 2 * above_y(y_N),
                x_N * y_N + above_x(y_N) + above_y(x_N),
            ],
            -1,
        )
        moment_F = np.array([1, x_N.mean(), y_N.mean(), (x_N**2).mean(), (y_N**2).mean(), (x_N * y_N).mean()])
        columns.append(term_NF - term_NF.mean(0) + moment_F)
        means.append(moment_F)
    return np.stack(means), np.stack(columns)


def _rank_and_shift(value_N: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Mid-ranks in 0..1, and a function: the mean over all examples of a number, of those above each, half of its
    ties.
    """
    _, index_N, size_U = np.unique(value_N, return_inverse=True, return_counts=True)
    rank_U = (np.cumsum(size_U) - size_U / 2) / len(value_N)

    def above(number_N: Array) -> Array:
        tied_U = np.bincount(index_N, weights=number_N, minlength=len(size_U))
        return np.asarray((tied_U[::-1].cumsum()[::-1] - tied_U / 2)[index_N] / len(value_N))

    return rank_U[index_N], above


_EACH = 16
"""Numbers of unseen changes up to this one are exact; larger numbers are rounded up, by at most :data:`_ROUNDED`."""
_ROUNDED = 1.15


@dataclass(frozen=True)
class Unseen:
    """The number of examples that a screened sweep left out for each variant, and the size of that variant's audit.

    Args:
        left_V: Number of examples on which each variant was not evaluated.
        audited_V: Number of random examples on which it was evaluated as a check. None of their predictions changed:
            otherwise the variant is evaluated on all examples, and none are left.
    """

    left_V: NDArray[np.int64]
    audited_V: NDArray[np.int64]

    def chances_VK(self) -> tuple[Array, NDArray[np.int64]]:
        """Probabilities of numbers of unseen changes, by variant, and these numbers, ``[K]``.

        The probability of k or more is that of an audit that finds none of k changes: the confidence distribution of
        Clopper and Pearson's upper limit in a finite population. The audit of one variant says nothing about another.
        """
        most = int(self.left_V.max(initial=0))
        steps = int(np.log(max(most / _EACH, 1)) / np.log(_ROUNDED))
        rounded = np.ceil(_EACH * _ROUNDED ** np.arange(1, steps + 1)).astype(np.int64)
        changes_K = np.unique(np.concatenate([np.arange(min(_EACH, most) + 1), rounded[rounded < most], [most]]))
        more_VK = _chance_of_none(changes_K + 1, self.left_V[:, None], self.audited_V[:, None])
        return np.diff(1 - more_VK, axis=1, prepend=0), changes_K

    def bound(self, level: float) -> int:
        """The largest number of unseen changes that any single variant may have, at this confidence for each."""
        bound = 0
        for left, audited in {*zip(self.left_V.tolist(), self.audited_V.tolist(), strict=True)}:
            bound = max(bound, int((_chance_of_none(np.arange(1, left + 1), left, audited) > 1 - level).sum()))
        return bound


def _chance_of_none(changes: ArrayLike, left: ArrayLike, audited: ArrayLike) -> Array:
    """Probability that this many changes are all among the pairs left out, and none among the audited pairs."""
    changes, left, audited = (np.asarray(value, np.float64) for value in (changes, left, audited))
    fit = np.minimum(changes, left)
    log = (
        scipy.special.gammaln(left + 1)
        - scipy.special.gammaln(left - fit + 1)
        + scipy.special.gammaln(left + audited - fit + 1)
        - scipy.special.gammaln(left + audited + 1)
    )
    return np.where(changes <= left, np.exp(log), 0.0)


@dataclass(frozen=True)
class PairedPredictions:
    """Predictions of the unedited model and of V variants on the same N labelled examples, float64.

    For a task head that counts statistics, a prediction is a row of them, and ``clean_N`` and ``prediction_VN`` have
    one more dimension.

    Args:
        label_N: Gold labels: class indices or scores; not used if they are already included in the statistics.
        clean_N: Predictions of the unedited model, of the same kind.
        prediction_VN: Predictions of each variant.
        unseen: What a screened sweep left out, which limits and tests against a margin allow for; None if nothing.
        group_N: The group of each example; only groups are independent of each other. None if examples are.
    """

    label_N: Array
    clean_N: Array
    prediction_VN: Array
    unseen: Unseen | None = field(default=None, kw_only=True)
    group_N: NDArray[np.int64] | None = field(default=None, kw_only=True)

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.label_N)

    @property
    def cluster_N(self) -> Clusters | None:
        """The groups, numbered from 0; None if examples are independent."""
        return None if self.group_N is None else numbered(self.group_N)

    @property
    def units(self) -> int:
        """Number of independent units: of groups if there are any, else of examples."""
        return self.count if self.group_N is None else len(np.unique(self.group_N))

    @property
    def unit_size(self) -> float:
        """Examples per unit: 1, or the size of an average group, weighted by size."""
        cluster_N = self.cluster_N
        return 1.0 if cluster_N is None else self.count / effective_count(cluster_N)

    @property
    def both_VN(self) -> Array:
        """The clean predictions, then those of the variants, ``[1 + V, N]``."""
        return np.concatenate([self.clean_N[None], self.prediction_VN])

    def of(self, variants: Sequence[int]) -> "PairedPredictions":
        """The predictions of some of the variants."""
        index, unseen = list(variants), self.unseen
        left = None if unseen is None else Unseen(unseen.left_V[index], unseen.audited_V[index])
        return replace(self, prediction_VN=self.prediction_VN[index], unseen=left)

    def on(self, member_N: NDArray[np.bool_]) -> "PairedPredictions":
        """The predictions on some of the examples, for an exact sweep."""
        group_N = None if self.group_N is None else self.group_N[member_N]
        return PairedPredictions(
            self.label_N[member_N], self.clean_N[member_N], self.prediction_VN[:, member_N], group_N=group_N
        )

    def by_unit(self, value_XN: Array) -> Array:
        """Values per unit instead of per example, with the same mean (see :func:`by_cluster`)."""
        cluster_N = self.cluster_N
        return value_XN if cluster_N is None else by_cluster(value_XN, cluster_N)

    def moved(self, metric: Metric) -> NDArray[np.bool_]:
        """Which predictions of each variant differ from the clean ones, ``[V, N]``, as far as a metric reads them."""
        if not metric.of_statistics:
            return np.asarray(self.prediction_VN != self.clean_N)
        clean_1NF, feature_VNF = (
            metric.features(self.label_N, answer_VNF) for answer_VNF in (self.clean_N[None], self.prediction_VN)
        )
        return np.asarray((feature_VNF != clean_1NF).any(-1))

    def discordant(self, metric: Metric) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of examples that each variant loses and wins, ``[V]`` each, for a metric of events."""
        right_N, *_ = metric.right(self.label_N, self.clean_N[None])
        right_VN = metric.right(self.label_N, self.prediction_VN)
        return (right_N & ~right_VN).sum(-1), (~right_N & right_VN).sum(-1)

    def net_wins(self, metric: Metric) -> NDArray[np.int64]:
        """Number of examples that each variant wins minus those that it loses, per unit, ``[V, U]``, for a metric of
        events.
        """
        net_VN = 1 * metric.right(self.label_N, self.prediction_VN) - metric.right(self.label_N, self.clean_N[None])
        return net_VN if self.cluster_N is None else cluster_sums(net_VN, self.cluster_N).astype(np.int64)

    def scores(self, metric: Metric) -> tuple[float, Array]:
        """The score of the unedited model, and those of the variants, ``[V]``."""
        baseline = float(scores(metric, self.label_N, self.clean_N[None])[0])
        # Sums in a different order may differ in the last digit; unchanged predictions get exactly the baseline.
        unchanged_V = ~self.moved(metric).any(-1)
        return baseline, np.where(unchanged_V, baseline, scores(metric, self.label_N, self.prediction_VN))

    def is_defined(self, metric: Metric) -> bool:
        """Whether any prediction can have a score other than 0."""
        if metric.of_statistics:
            return metric.defined(metric.features(self.label_N, self.clean_N[None])[0])
        return metric.defined(self.label_N)

    def changes(self, metric: Metric) -> Array:
        """Change of the metric from the clean predictions to each variant's, ``[V]``."""
        return np.asarray(self.weighted_changes(metric, np.ones((1, self.count)))[0])

    def weighted_changes(self, metric: Metric, weight_RN: Weights) -> Array:
        """The same under R weightings of the examples, ``[R, V]``; see
        :func:`weighted_scores`.
        """
        score_RV = weighted_scores(metric, self.label_N, self.both_VN, weight_RN)
        return score_RV[:, 1:] - score_RV[:, :1]

    def influences(self, metric: Metric) -> Array:
        """Influence of every unit on these changes, ``[V, U]``; see :func:`influences`."""
        influence_VN = influences(metric, self.label_N, self.both_VN)
        return self.by_unit(influence_VN[1:] - influence_VN[0])
