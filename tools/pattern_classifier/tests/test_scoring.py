"""Scores of a classifier against scikit-learn, and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, f1_score, log_loss

from bertsecrets.patterns.classes import PATTERNS
from tools.pattern_classifier.reliability_figure import reliability_diagram
from tools.pattern_classifier.scoring import (
    ReliabilityBin,
    bootstrap_f1,
    calibration_error,
    confusion,
    f1_scores,
    fit_temperature,
    macro_f1,
    reliability,
)

NUMBERS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


@given(NUMBERS)
@settings(max_examples=50, deadline=None)
def test_f1_equals_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    label, predicted = np.array(pairs).T
    table = confusion(label, predicted)
    assert np.array_equal(table, confusion_matrix(label, predicted, labels=range(len(PATTERNS))))
    there = sorted(set(label))
    expected = f1_score(label, predicted, labels=there, average="macro", zero_division=0.0)
    assert float(macro_f1(table)) == pytest.approx(expected)
    assert np.isnan(f1_scores(table)).sum() == len(PATTERNS) - len(there)


def test_the_temperature_minimises_the_loss() -> None:
    generator = np.random.default_rng(0)
    logits = 4 * generator.normal(size=(300, 5))
    labels = np.array([generator.choice(5, p=np.exp(row / 3) / np.exp(row / 3).sum()) for row in logits])
    losses = []
    grid = np.linspace(1, 6, 101)
    for temperature in grid:
        scaled = np.exp(logits / temperature)
        losses.append(log_loss(labels, scaled / scaled.sum(1, keepdims=True), labels=range(5)))
    assert fit_temperature(logits, labels) == pytest.approx(grid[int(np.argmin(losses))], abs=0.06)


def test_calibration_by_hand() -> None:
    # Two maps at 0.95, one of them right; two at 0.55, both right.
    probability = np.array([[0.95, 0.05, 0, 0, 0]] * 2 + [[0.45, 0.55, 0, 0, 0]] * 2)
    bins = reliability(probability, [0, 1, 1, 1])
    assert [(one.accuracy, one.count) for one in bins] == [(1.0, 2), (0.5, 2)]
    assert calibration_error(bins) == pytest.approx((0.45 * 2 + 0.45 * 2) / 4)


def test_the_bootstrap_draws_groups_and_pairs_classifiers() -> None:
    generator = np.random.default_rng(1)
    group = [f"head {place}" for place in generator.integers(0, 30, 400)]
    label = generator.integers(0, 5, 400)
    good = np.where(generator.random(400) < 0.9, label, (label + 1) % 5)
    bad = np.where(generator.random(400) < 0.6, label, (label + 1) % 5)
    of_good, of_bad, difference = bootstrap_f1(label, [good, bad], group, resamples=400)
    assert of_good.value == pytest.approx(f1_score(label, good, average="macro"))
    assert of_bad.value == pytest.approx(f1_score(label, bad, average="macro"))
    assert difference.value == pytest.approx(of_good.value - of_bad.value)
    assert 0 < difference.low < difference.value < difference.high
    _, _, none = bootstrap_f1(label, [good, good], group, resamples=100)
    assert none.low == none.high == 0
    # With one group, every resample is the sample.
    whole, _, _ = bootstrap_f1(label, [good, bad], ["one"] * 400, resamples=50)
    assert whole.low == whole.high == pytest.approx(whole.value)


def test_the_reliability_diagram_draws_every_bin() -> None:
    bins = [ReliabilityBin(0.3, 0.0, 3), ReliabilityBin(0.9, 1.0, 40)]
    figure = reliability_diagram({"a": bins}, title="t", note="n")
    figure.draw_without_rendering()
    points = [line for line in figure.axes[0].lines if line.get_label() == "a"]
    assert [line.get_xydata().tolist() for line in points] == [[[0.3, 0.0], [0.9, 1.0]]]
