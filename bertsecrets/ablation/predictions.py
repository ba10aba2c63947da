"""Predictions of a model and its variants on the same examples, and the changes of score between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from bertsecrets.ablation.scoring import Weights, influences, scores, weighted_scores
from bertsecrets.statistics.clusters import Clusters, by_cluster, cluster_sums, effective_count, numbered
from bertsecrets.task_heads.metric import Array, Metric

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
        :func:`bertsecrets.ablation.scoring.weighted_scores`.
        """
        score_RV = weighted_scores(metric, self.label_N, self.both_VN, weight_RN)
        return score_RV[:, 1:] - score_RV[:, :1]

    def influences(self, metric: Metric) -> Array:
        """Influence of every unit on these changes, ``[V, U]``; see :func:`bertsecrets.ablation.scoring.influences`."""
        influence_VN = influences(metric, self.label_N, self.both_VN)
        return self.by_unit(influence_VN[1:] - influence_VN[0])
