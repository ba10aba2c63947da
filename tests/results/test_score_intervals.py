"""Intervals of a score: over seeds and examples, worked by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from bertsecrets.results.scores import score_interval


def wilson(right: int, count: int) -> tuple[float, float]:
    limits = stats.binomtest(right, count).proportion_ci(method="wilson")
    return float(limits.low), float(limits.high)


@pytest.mark.parametrize("right", [353, 408])
def test_seeds_that_agree_have_the_interval_of_the_examples(right: int) -> None:
    interval = score_interval("accuracy", [right / 408] * 3, 408)
    assert interval.mean == pytest.approx(right / 408)
    assert (interval.low, interval.high) == pytest.approx(wilson(right, 408))


def test_the_variance_between_seeds_is_added_to_that_of_the_examples() -> None:
    values = [314 / 408, 321 / 408, 322 / 408]
    between = np.var(values, ddof=1) / 3
    interval = score_interval("accuracy", values, 408)
    for side, limit in ((0, interval.low), (1, interval.high)):
        errors = [abs(wilson(right, 408)[side] - right / 408) / stats.norm.ppf(0.975) for right in (314, 321, 322)]
        shared = (errors[0] * errors[1] + errors[0] * errors[2] + errors[1] * errors[2]) / 3
        # The spread of three seeds is Student's, and the noise that they share is normal: both add up.
        t_M = math.sqrt(between) * stats.t(2).ppf((np.arange(20_000) + 0.5) / 20_000)
        reach = abs(limit - np.mean(values))
        assert stats.norm.sf((reach - t_M) / math.sqrt(shared)).mean() == pytest.approx(0.025, rel=0.01)


@pytest.mark.parametrize("metric", ["f1", "auc", "matthews"])
def test_a_metric_without_an_interval_over_examples_has_one_over_seeds(metric: str) -> None:
    interval = score_interval(metric, [0.7, 0.8, math.nan], 408)
    reach = stats.t.ppf(0.975, 1) * np.std([0.7, 0.8], ddof=1) / math.sqrt(2)
    assert (interval.low, interval.high, interval.count) == pytest.approx((max(0, 0.75 - reach), 1.0, 2))
    assert math.isnan(score_interval(metric, [0.7], 408).low)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_a_correlation_of_one_seed_has_fishers_interval(metric: str) -> None:
    interval = score_interval(metric, [0.8], 103)
    # atanh 0.8 = 1.0986, give or take 0.196: tanh 0.9026 and tanh 1.2946.
    assert (interval.low, interval.high) == pytest.approx((0.718, 0.860), abs=5e-4)


def test_a_score_of_no_examples_has_no_interval() -> None:
    interval = score_interval("accuracy", [0.8], 0)
    assert interval.mean == 0.8
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


def test_limits_stay_inside_the_metrics_range() -> None:
    assert score_interval("accuracy", [0.02, 0.9], 50).high == 1.0
    assert score_interval("spearman", [-0.9, 0.9], 50).low == -1.0


def test_no_score_has_no_interval() -> None:
    interval = score_interval("accuracy", [math.nan], 408)
    assert interval.count == 0
    assert math.isnan(interval.mean)
    assert math.isnan(interval.low)
