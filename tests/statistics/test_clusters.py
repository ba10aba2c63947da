"""Clusters beside statsmodels' cluster-robust covariance, enumerated signs, and plain loops."""

from itertools import product

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from bertsecrets.statistics.clusters import (
    by_cluster,
    cluster_sums,
    effective_count,
    few_p,
    few_tail,
    numbered,
    signed_sums,
)
from bertsecrets.statistics.student import mean_limits


def grouped(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that vary between groups of one to eight, and the groups in a random order."""
    generator = np.random.default_rng(seed)
    group_N = np.repeat(np.arange(count), generator.integers(1, 9, count))[:count]
    generator.shuffle(group_N)
    return generator.normal(size=count) + generator.normal(size=count)[group_N], group_N


@pytest.mark.parametrize("seed", range(3))
def test_the_standard_error_of_a_mean_is_the_cluster_robust_one(seed: int) -> None:
    value_N, group_N = grouped(120, seed)
    cluster_N = numbered(group_N)
    fit = sm.OLS(value_N, np.ones(120)).fit(cov_type="cluster", cov_kwds={"groups": group_N}, use_t=True)
    number_K = by_cluster(value_N, cluster_N)
    assert number_K.mean() == pytest.approx(value_N.mean())
    # statsmodels corrects by (N - 1) / (N - p), which is 1 for a mean, and K / (K - 1).
    assert number_K.std(ddof=1) / np.sqrt(len(number_K)) == pytest.approx(fit.bse[0])
    _, low, high = mean_limits(number_K, 0.05)
    assert [float(low), float(high)] == pytest.approx(fit.conf_int()[0])


def test_examples_of_their_own_are_clusters_of_one() -> None:
    value_XN = np.random.default_rng(0).normal(size=(2, 9))
    assert by_cluster(value_XN, np.arange(9)) == pytest.approx(value_XN)
    assert effective_count(np.arange(9)) == 9
    assert cluster_sums([[1, 2, 3]], np.array([1, 0, 1])).tolist() == [[2, 4]]


def test_signs_of_clusters_are_enumerated() -> None:
    net_VK = np.random.default_rng(0).integers(-4, 4, (20, 9))
    for p, net_K in zip(signed_sums(net_VK), net_VK, strict=True):
        sums = [abs(np.dot(signs, net_K)) for signs in product((-1, 1), repeat=9)]
        assert p == pytest.approx(np.mean([total >= abs(net_K.sum()) for total in sums]))


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (5, 0), (9, 3), (4, 4), (200, 160)])
def test_without_groups_signs_are_mcnemars_test(lost: int, won: int) -> None:
    expected = stats.binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert signed_sums([[-1] * lost + [1] * won + [0] * 7]) == pytest.approx([expected])


def test_few_clusters_have_the_limits_of_student() -> None:
    cluster_N = np.repeat(np.arange(6), 4)
    # Six equal clusters: t with five degrees of freedom, and a variance that is divided by five instead of six.
    reach = stats.norm.isf(few_tail(0.025, cluster_N))
    assert reach == pytest.approx(stats.t.isf(0.025, 5) * np.sqrt(6 / 5))
    assert few_p(few_tail(0.025, cluster_N), cluster_N) == pytest.approx(0.025)
    many_N = np.arange(100_000)
    assert few_tail(0.025, many_N) == pytest.approx(0.025, rel=1e-3)
