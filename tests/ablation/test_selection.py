"""The selection check on noise, and on a head that really is better disabled."""

from collections.abc import Mapping

import numpy as np
import pytest

from bertsecrets.ablation.judging import selection_check
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.errors import UserError
from bertsecrets.task_heads import METRICS


def noisy(variants: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    label_N = generator.integers(0, 2, count).astype(float)
    base_N = np.where(generator.random(count) < 0.8, label_N, 1 - label_N)
    flip_VN = generator.random((variants, count)) < 0.04
    return label_N, base_N, np.where(flip_VN, 1 - base_N, base_N)


def named(p_V: np.ndarray) -> Mapping[str, float]:
    return {str(index): float(p) for index, p in enumerate(p_V)}


def test_noise_promises_and_does_not_keep() -> None:
    for seed in range(5):
        label_N, clean_N, prediction_VN = noisy(144, 400, seed)
        # Flips at random lower a good model; half of the labels make them neutral.
        check = selection_check(
            METRICS["accuracy"],
            PairedPredictions(label_N, clean_N, prediction_VN),
            named(np.zeros(len(prediction_VN))),
            "zero",
            seed=seed,
        )
        assert not check.survives
        assert check.claimed > check.kept.value
        assert 0 < check.chosen <= 1


def test_a_head_that_truly_hurts_survives() -> None:
    label_N, clean_N, prediction_VN = noisy(30, 800, seed=1)
    mended_N = clean_N.copy()
    wrong = np.flatnonzero(clean_N != label_N)
    mended_N[wrong[: len(wrong) // 2]] = label_N[wrong[: len(wrong) // 2]]
    prediction_VN[17] = mended_N
    p_V = np.full(30, 0.5)
    p_V[17] = 0.01
    paired = PairedPredictions(label_N, clean_N, prediction_VN)
    check = selection_check(METRICS["accuracy"], paired, named(p_V), "zero", seed=0)
    assert check.survives
    assert check.p_value == 0.01
    # The halves share their examples with all other splits: the test on all examples must agree.
    assert not selection_check(METRICS["accuracy"], paired, named(np.full(30, 0.06)), "zero", seed=0).survives
    assert check.best == "17"
    assert check.chosen == 1.0
    # Both halves together hold the whole improvement.
    whole = float((mended_N == label_N).mean() - (clean_N == label_N).mean())
    assert (check.claimed + check.kept.value) / 2 == pytest.approx(whole, abs=1e-9)


def test_too_few_examples() -> None:
    paired = PairedPredictions(np.zeros(3), np.zeros(3), np.zeros((2, 3)))
    with pytest.raises(UserError, match="3 examples"):
        selection_check(METRICS["accuracy"], paired, named(np.zeros(2)), "zero", seed=0)
