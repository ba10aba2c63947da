"""Weighted metrics against scikit-learn and scipy on sets that really hold each example that often."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import metric_value
from scipy.stats import pearsonr

from bertsecrets.ablation.predictions import find_metric, influences, largest_flip, weighted_scores
from bertsecrets.errors import UserError
from bertsecrets.task_heads import METRICS


@settings(max_examples=60, deadline=None)
@given(
    metric=st.sampled_from(["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman"]),
    seed=st.integers(0, 10_000),
    count=st.integers(3, 40),
    tied=st.booleans(),
)
def test_equal_the_metric_of_the_resampled_set(metric: str, seed: int, count: int, tied: bool) -> None:
    generator = np.random.default_rng(seed)
    if metric in ("pearson", "spearman"):
        label_N = generator.normal(3, 1, count)
        prediction_VN = label_N + generator.normal(size=(3, count))
        if tied:
            label_N, prediction_VN = label_N.round(), prediction_VN.round()
    else:
        classes = 3 if metric in ("macro_f1", "matthews") and tied else 2
        label_N = generator.integers(0, classes, count).astype(float)
        prediction_VN = generator.integers(0, classes, (3, count)).astype(float)
    drawn_RN = generator.integers(0, count, (4, count))
    weight_RN = np.stack([np.bincount(drawn, minlength=count) for drawn in drawn_RN]).astype(float)
    found_RV = weighted_scores(METRICS[metric], label_N, prediction_VN, weight_RN)
    for r, drawn in enumerate(drawn_RN):
        for v in range(3):
            expected = metric_value(metric, label_N[drawn], prediction_VN[v][drawn])
            np.testing.assert_allclose(found_RV[r, v], expected, atol=1e-9)


def test_numbers_far_from_zero_keep_their_digits() -> None:
    generator = np.random.default_rng(0)
    label_N = 1e6 + generator.normal(size=200)
    prediction_N = 1e6 + generator.normal(size=200) + label_N - 1e6
    result = weighted_scores(METRICS["pearson"], label_N, prediction_N[None], np.ones((1, 200)))[0, 0]
    assert result == pytest.approx(pearsonr(prediction_N, label_N).statistic, abs=1e-9)


def test_unknown_metric() -> None:
    with pytest.raises(UserError, match=r"Unknown metric 'acuracy'.*accuracy"):
        find_metric("acuracy")


@pytest.mark.parametrize("metric", sorted(name for name, metric in METRICS.items() if not metric.of_statistics))
def test_influences_are_the_effects_of_a_little_more_weight(metric: str) -> None:
    generator = np.random.default_rng(0)
    if metric in ("pearson", "spearman"):
        label_N = np.round(generator.normal(size=40), 1)
        prediction_VN = np.round(label_N + 0.6 * generator.normal(size=(2, 40)), 1)
    else:
        label_N = generator.integers(0, 3 if metric in ("macro_f1", "matthews") else 2, 40).astype(float)
        prediction_VN = np.where(generator.random((2, 40)) < 0.7, label_N, generator.integers(0, 2, 40))
    weight_NN = np.ones((40, 40)) + 40e-5 * np.eye(40)
    change_NV = weighted_scores(METRICS[metric], label_N, prediction_VN, weight_NN) - weighted_scores(
        METRICS[metric], label_N, prediction_VN, np.ones((1, 40))
    )
    np.testing.assert_allclose(influences(METRICS[metric], label_N, prediction_VN), change_NV.T / 1e-5, atol=2e-3)


@pytest.mark.parametrize("metric", ["f1", "macro_f1", "matthews"])
@pytest.mark.parametrize("predicted", [0.0, 0.02, 0.5, 1.0], ids=["none", "few", "half", "all"])
def test_the_largest_flip_equals_a_loop_over_examples(metric: str, predicted: float) -> None:
    generator = np.random.default_rng(3)
    label_N = (generator.random(60) < 0.3).astype(float)
    prediction_N = (generator.random(60) < predicted).astype(float)
    score = metric_value(metric, label_N, prediction_N)
    largest = 0.0
    for index in range(60):
        other_N = prediction_N.copy()
        other_N[index] = 1 - other_N[index]
        largest = max(largest, abs(metric_value(metric, label_N, other_N) - score))
    assert largest_flip(METRICS[metric], label_N, prediction_N) == pytest.approx(largest)
    assert largest > 0


def test_constant_predictions_have_no_influence_on_matthews() -> None:
    label_N = np.tile([0.0, 1.0], 10)
    assert np.all(influences(METRICS["matthews"], label_N, np.zeros((1, 20))) == 0)
