"""Clustered examples, such as the sentences of one review: only clusters are independent."""

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Clusters = NDArray[np.int64]
"""The cluster of each of N examples, from 0 to K - 1."""


def numbered(group_N: ArrayLike) -> Clusters:
    """Clusters from arbitrary group labels, in order of the labels."""
    return np.unique(np.asarray(group_N), return_inverse=True)[1].astype(np.int64).ravel()


def cluster_sums(value_XN: ArrayLike, cluster_N: Clusters) -> Array:
    """Sums of numbers over the examples of each cluster, ``[..., K]``."""
    value = np.asarray(value_XN, np.float64)
    sum_KX = np.zeros((int(cluster_N.max()) + 1, *value.shape[:-1]))
    np.add.at(sum_KX, cluster_N, np.moveaxis(value, -1, 0))
    return np.moveaxis(sum_KX, 0, -1)


def by_cluster(value_XN: ArrayLike, cluster_N: Clusters) -> Array:
    """One number per cluster, ``[..., K]``, from one number per example.

    Their mean is the mean over all examples, and its standard error over clusters is cluster-robust: the examples'
    deviations from the mean, summed in each cluster, times K / N (the linearised ratio of two sums; Cochran 1977,
    section 9A).

    >>> by_cluster([1.0, 0.0, 1.0, 2.0], np.array([0, 0, 0, 1]))
    array([0.5, 1.5])
    """
    value = np.asarray(value_XN, np.float64)
    mean = value.mean(-1, keepdims=True)
    clusters = int(cluster_N.max()) + 1
    return np.asarray(mean + cluster_sums(value - mean, cluster_N) * clusters / len(cluster_N))


def effective_count(cluster_N: Clusters) -> float:
    """Effective number of equal-sized clusters: N squared over the sum of squared sizes (Kish 1965).

    >>> effective_count(np.array([0, 0, 1, 1])), effective_count(np.array([0, 0, 0, 1]))
    (2.0, 1.6)
    """
    return float(len(cluster_N) ** 2 / (np.bincount(cluster_N) ** 2).sum())


def few_tail(tail: ArrayLike, cluster_N: Clusters) -> Array:
    """The normal tail whose limits extend as far as those of Student's t at ``tail``.

    A variance over few clusters is too small by a factor K / (K - 1), and itself uncertain: it has
    :func:`effective_count` minus one, but at least one, degrees of freedom.
    """
    spread, freedom = _few(cluster_N)
    return np.asarray(scipy.special.ndtr(-scipy.stats.t.isf(np.asarray(tail, np.float64), freedom) * spread))


def few_p(p_value: ArrayLike, cluster_N: Clusters) -> Array:
    """One-sided p-values of Student's t from those of a normal error: the inverse of :func:`few_tail`."""
    spread, freedom = _few(cluster_N)
    return np.asarray(scipy.stats.t.sf(-scipy.special.ndtri(np.asarray(p_value, np.float64)) / spread, freedom))


def _few(cluster_N: Clusters) -> tuple[float, float]:
    clusters = int(cluster_N.max()) + 1
    return float(np.sqrt(clusters / max(clusters - 1, 1))), max(effective_count(cluster_N) - 1, 1.0)


def signed_sums(net_VK: ArrayLike) -> Array:
    """Two-sided exact p-values of sums of whole numbers with random signs, ``[V]``.

    McNemar's exact test for clusters: without a change, each cluster's wins minus losses is as likely negative as
    positive. With one example per cluster it is McNemar's test.

    >>> signed_sums([[-1, -1, -1, 0], [-3, -2, 1, 0]])
    array([0.25, 0.5 ])
    """
    net = np.asarray(net_VK, np.int64)
    p_V = np.ones(len(net))
    for row, net_K in enumerate(net):
        # The number of positive signs among clusters of each size is binomial, and sizes are independent.
        sizes_U, counts_U = np.unique(np.abs(net_K[net_K != 0]), return_counts=True)
        mass = np.ones(1)
        for size, count in zip(sizes_U, counts_U, strict=True):
            binomial = np.zeros(2 * size * count + 1)
            binomial[:: 2 * size] = scipy.stats.binom.pmf(np.arange(count + 1), count, 0.5)
            mass = np.convolve(mass, binomial)
        total = int(np.abs(net_K).sum())
        value = np.arange(-total, total + 1)
        p_V[row] = min(1.0, float(mass[np.abs(value) >= abs(int(net_K.sum()))].sum()))
    return p_V
