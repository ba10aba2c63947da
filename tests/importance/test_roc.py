"""The area under the ROC curve against scipy's rank test, and its interval."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bertsecrets.importance.sink_heads import area_under_curve


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
)
def test_the_area_is_that_of_the_rank_test_inside_its_interval(positive: list[int], negative: list[int]) -> None:
    labels = [True] * len(positive) + [False] * len(negative)
    area = area_under_curve([*positive, *negative], labels)
    u = stats.mannwhitneyu(positive, negative).statistic
    assert area.value == pytest.approx(u / (len(positive) * len(negative)))
    assert 0 <= area.low <= area.value <= area.high <= 1
    assert area.high - area.low > 0.05
    mirrored = area_under_curve([-score for score in (*positive, *negative)], labels)
    assert (mirrored.value, mirrored.low, mirrored.high) == pytest.approx(
        (1 - area.value, 1 - area.high, 1 - area.low), abs=1e-6
    )


def test_one_class_has_no_area() -> None:
    area = area_under_curve([0.1, 0.2], [True, True])
    assert math.isnan(area.value)
    assert area.n == 2


def test_the_interval_covers_the_true_area() -> None:
    """Two normal distributions one apart: the area is P(X > Y) = Phi(1 / sqrt(2))."""
    generator = np.random.default_rng(0)
    truth = stats.norm.cdf(1 / math.sqrt(2))
    labels = np.arange(25) < 12
    hits = 0
    for _ in range(120):
        area = area_under_curve(generator.normal(size=25) + labels, labels)
        hits += area.low <= truth <= area.high
    assert hits / 120 >= 0.88
