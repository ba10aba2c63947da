"""Metrics under arbitrary weightings of the examples, for many variants at once.

Every metric is a function of sums of *features* over examples: bootstrap resamples (weights) and swaps of
predictions become matrix products.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
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
    parts = [
        _influences(metric, label_N, prediction_VN[first : first + variants])
        for first, variants in memory_parts(len(prediction_VN), len(label_N))
    ]
    return np.concatenate(parts)


def _influences(metric: Metric, label_N: Array, prediction_VN: Array) -> Array:
    if metric.of_ranks:
        mean_VF, feature_VNF = _rank_moments(label_N, prediction_VN)
    else:
        if metric.correlates:
            # A correlation does not depend on location and scale, but numerical derivatives do.
            label_N, prediction_VN = _standardised(label_N), _standardised(prediction_VN)
        feature_VNF = metric.features(label_N, prediction_VN)
        mean_VF = feature_VNF.mean(1)
    influence_VN = np.einsum("vnf,vf->vn", feature_VNF - mean_VF[:, None], _gradient(metric, mean_VF))
    return np.asarray(influence_VN - influence_VN.mean(-1, keepdims=True))


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
