"""Predictions of a model and of its variants on the same examples, and the changes of score between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.ablation.scoring import Array, Weights, influences, weighted_scores

_UNSEEN = 32
"""More unseen changes than this count as all."""


@dataclass(frozen=True)
class Unseen:
    """What a screened sweep left out, and what its audit says about that.

    Args:
        left_V: Number of examples on which each variant was not evaluated.
        audited: Number of random pairs of a variant and an example that were evaluated as a check.
        missed: How many of them had another prediction.
    """

    left_V: NDArray[np.int64]
    audited: int
    missed: int

    def chances_VK(self) -> Array:
        """Probability that 0 to K - 1 changes of each variant were not seen.

        Beta-binomial: the rate of changes among the pairs left out follows its posterior after the audit, with Jeffreys' prior.
        """
        changes_K = np.arange(_UNSEEN)
        open_ = (self.missed + 0.5, self.audited - self.missed + 0.5)
        return np.asarray(stats.betabinom.pmf(changes_K, self.left_V[:, None], *open_))


@dataclass(frozen=True)
class PairedPredictions:
    """Predictions of the unedited model and of V variants on the same N labelled examples, float64.

    Args:
        label_N: Gold labels: class indices or scores.
        clean_N: Predictions of the unedited model, of the same kind.
        prediction_VN: Predictions of each variant.
        unseen: What a screened sweep left out; None if nothing: limits and tests of a margin allow for it.
    """

    label_N: Array
    clean_N: Array
    prediction_VN: Array
    unseen: Unseen | None = field(default=None, kw_only=True)

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.label_N)

    @property
    def both_VN(self) -> Array:
        """The clean predictions, then those of the variants, ``[1 + V, N]``."""
        return np.concatenate([self.clean_N[None], self.prediction_VN])

    def of(self, variants: Sequence[int]) -> "PairedPredictions":
        """Those of some of the variants."""
        index, unseen = list(variants), self.unseen
        left = None if unseen is None else Unseen(unseen.left_V[index], unseen.audited, unseen.missed)
        return PairedPredictions(self.label_N, self.clean_N, self.prediction_VN[index], unseen=left)

    def discordant(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of examples that each variant loses, and wins, ``[V]`` each."""
        right_N, right_VN = self.clean_N == self.label_N, self.prediction_VN == self.label_N
        return (right_N & ~right_VN).sum(-1), (~right_N & right_VN).sum(-1)

    def changes(self, metric: str) -> Array:
        """Change of the metric from the clean predictions to each variant's, ``[V]``."""
        return np.asarray(self.weighted_changes(metric, np.ones((1, self.count)))[0])

    def weighted_changes(self, metric: str, weight_RN: Weights) -> Array:
        """The same under R weightings of the examples, ``[R, V]``; see :func:`bertsecrets.ablation.scoring.weighted_scores`."""
        score_RV = weighted_scores(metric, self.label_N, self.both_VN, weight_RN)
        return score_RV[:, 1:] - score_RV[:, :1]

    def influences(self, metric: str) -> Array:
        """Influence of every example on these changes, ``[V, N]``; see :func:`bertsecrets.ablation.scoring.influences`."""
        influence_VN = influences(metric, self.label_N, self.both_VN)
        return np.asarray(influence_VN[1:] - influence_VN[0])
