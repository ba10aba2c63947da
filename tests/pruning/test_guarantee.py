"""Non-inferiority by simulation, fixed-sequence testing and the number of examples."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.verdicts import p_against_margin
from bertsecrets.data.task import Task
from bertsecrets.pruning.guarantee import class_changes, classes_of, examples_needed, guarantee, p_of_classes
from bertsecrets.task_heads import METRICS
from bertsecrets.task_heads.sequence import ACCURACY


def results(lost_V: list[float], won: float, examples: int, seed: int, right: float = 0.8) -> PairedPredictions:
    """Models that lose and win single predictions of a whole model with these probabilities."""
    chance = np.random.default_rng(seed)
    label_N = chance.integers(0, 2, examples).astype(np.float64)
    clean_N = np.where(chance.random(examples) < right, label_N, 1 - label_N)
    is_right_N = clean_N == label_N
    rows = []
    for lost in lost_V:
        flips_N = chance.random(examples) < np.where(is_right_N, lost / right, won / (1 - right))
        rows.append(np.where(flips_N, 1 - clean_N, clean_N))
    return PairedPredictions(label_N, clean_N, np.stack(rows))


def test_a_model_at_the_margin_passes_as_rarely_as_stated() -> None:
    # The true loss is exactly the margin: passing is an error.
    passed = int((guarantee(results([0.04] * 1000, 0.02, 600, 0), ACCURACY, 0.02, 0.9).p_V <= 0.1).sum())
    # The models share their labels: how many examples can be lost varies a little with them. An exact test passes fewer
    # than a tenth.
    assert 40 <= passed <= 120


def test_models_after_a_failure_are_not_passed() -> None:
    data = results([0.0, 0.3, 0.0], 0.0, 500, 0)
    outcome = guarantee(data, ACCURACY, 0.02, 0.95)
    assert outcome.passed == 1
    assert list(outcome.p_V <= 0.05) == [True, False, True]
    assert outcome.needed == math.inf


@pytest.mark.slow
def test_stated_numbers_of_examples_give_the_stated_power() -> None:
    few = results([0.03], 0.02, 4000, 0)
    count = examples_needed(few, 0, ACCURACY, 0.03, 0.95)
    change_V = few.changes(ACCURACY)
    discordant = float((few.prediction_VN[0] != few.clean_N).mean())
    lost = (discordant - change_V[0]) / 2
    # New examples each time: models of the same examples pass or fail together.
    passed = [
        guarantee(results([lost], discordant - lost, int(count), seed), ACCURACY, 0.03, 0.95).passed
        for seed in range(1, 301)
    ]
    assert sum(passed) / len(passed) == pytest.approx(0.8, abs=0.08)


def test_unchanged_predictions_need_as_many_examples_as_the_exact_limits() -> None:
    data = results([0.0], 0.0, 50, 0)
    outcome = guarantee(data, ACCURACY, 0.01, 0.95)
    assert outcome.passed == 0
    count = outcome.needed
    assert count is not None
    for examples, passes in ((int(count) + 1, 1), (int(count) - 2, 0)):
        assert guarantee(results([0.0], 0.0, examples, 0), ACCURACY, 0.01, 0.95).passed == passes


@pytest.mark.parametrize("metric", ["matthews", "f1"])
def test_other_metrics_are_tested_too(metric: str) -> None:
    # 2,000 examples, of which half a percent change.
    outcome = guarantee(results([0.0025, 0.2], 0.0025, 2000, 1), METRICS[metric], 0.05, 0.95)
    assert outcome.passed == 1
    assert outcome.bound_V[0] < 0.05 < outcome.bound_V[1]


def three_classes(lost_C: Sequence[int], won_C: Sequence[int], right: int = 180, wrong: int = 20) -> PairedPredictions:
    """A model that loses and wins so many examples of each of three classes."""
    label, clean, smaller = [], [], []
    for name, (lost, won) in enumerate(zip(lost_C, won_C, strict=True)):
        label += [name] * (right + wrong)
        clean += [name] * right + [9] * wrong
        smaller += [9] * lost + [name] * (right - lost + won) + [9] * (wrong - won)
    label_N, clean_N, smaller_N = (np.array(values, float) for values in (label, clean, smaller))
    return PairedPredictions(label_N, clean_N, smaller_N[None])


CLASSES = Task.read("task", {"name": "nli", "metrics": ["accuracy"], "texts": 2, "labels": ["yes", "maybe", "no"]})


def test_a_class_that_loses_is_named_and_can_refuse_a_model() -> None:
    # Of 600 examples the model loses 31 of one class and wins 20 of another: 1.8 points in all.
    data = three_classes([31, 0, 0], [0, 20, 0])
    assert guarantee(data, ACCURACY, 0.04, 0.95).passed == 1
    assert guarantee(data, ACCURACY, 0.04, 0.95, class_margin=0.1).passed == 0
    assert guarantee(data, ACCURACY, 0.04, 0.95, class_margin=0.3).passed == 1
    refused = guarantee(data, ACCURACY, 0.04, 0.95, class_margin=0.1)
    # More examples are no remedy where only a class fails.
    assert refused.needed is None
    rows = class_changes(data, CLASSES, 0.95)
    assert [(row.group, row.examples, row.whole) for row in rows] == [
        (f"class {name}", 200, 0.9) for name in ("yes", "maybe", "no")
    ]
    assert [row.smaller for row in rows] == pytest.approx([149 / 200, 1.0, 0.9])
    # One of three intervals at 95 % together: 2.5 % / 3 on either side of the normal approximation.
    lost = 31 / 200
    reach = stats.norm.isf(0.025 / 3) * math.sqrt(lost * (1 - lost) / 200)
    assert (rows[0].change.low, rows[0].change.high) == pytest.approx((-lost - reach, -lost + reach), abs=0.012)
    assert p_of_classes(data, 0.1)[0] == max(
        p_against_margin(ACCURACY, data_of_class, 0.1)[0] for data_of_class in classes_of(data)
    )
