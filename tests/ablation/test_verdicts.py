"""Verdicts on simulated data whose truth is known."""

import numpy as np
import pytest
from references import metric_value
from scipy.stats import norm

from bertsecrets.ablation.significance import bootstrap_changes, interval
from bertsecrets.ablation.verdicts import judge
from bertsecrets.errors import UserError

Draw = tuple[np.ndarray, np.ndarray, np.ndarray]


def draw(metric: str, count: int, generator: np.random.Generator) -> Draw:
    """Labels, clean predictions, and those of a variant that is truly worse."""
    if metric in ("pearson", "spearman"):
        label_N = generator.normal(size=count)
        shared_N = generator.normal(size=count)
        clean_N = label_N + 0.6 * shared_N
        return label_N, clean_N, label_N + 0.6 * shared_N + 0.4 * generator.normal(size=count)
    label_N = (generator.random(count) < 0.6).astype(float)
    clean_N = np.where(generator.random(count) < 0.85, label_N, 1 - label_N)
    flipped_N = generator.random(count) < np.where(clean_N == label_N, 0.12, 0.06)
    return label_N, clean_N, np.where(flipped_N, 1 - clean_N, clean_N)


def truth(metric: str) -> float:
    label_N, clean_N, variant_N = draw(metric, 2_000_000, np.random.default_rng(99))
    return metric_value(metric, label_N, variant_N) - metric_value(metric, label_N, clean_N)


def coverage(metric: str, simulations: int, count: int, resamples: int) -> float:
    expected, hits = truth(metric), 0
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, 7])
        label_N, clean_N, variant_N = draw(metric, count, generator)
        change_RV = bootstrap_changes(metric, label_N, clean_N, variant_N[None], resamples, generator)
        _, low_V, high_V = interval(change_RV, 0.95)
        hits += bool(low_V[0] <= expected <= high_V[0])
    return hits / simulations


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "pearson", "spearman"])
def test_intervals_cover_the_truth_roughly(metric: str) -> None:
    assert 0.89 <= coverage(metric, simulations=200, count=400, resamples=400) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "pearson", "spearman"])
def test_intervals_cover_the_truth(metric: str) -> None:
    found = coverage(metric, simulations=2000, count=500, resamples=1000)
    print(f"coverage of the 95 % interval, {metric}: {found:.4f}")  # noqa: T201
    assert 0.93 <= found <= 0.97


def null_discoveries(metric: str, simulations: int, variants: int, **settings: int) -> float:
    """Share of simulations in which anything is called significant although no variant changes anything but at random."""
    found = 0
    for simulation in range(simulations):
        generator = np.random.default_rng([simulation, 11])
        label_N = (generator.random(408) < 0.68).astype(float)
        # Clean predictions and variants err alike often: exchangeable, as the null hypothesis has it.
        wrong_VN = generator.random((variants + 1, 408)) < 0.05
        base_N = np.where(generator.random(408) < 0.85, label_N, 1 - label_N)
        prediction_VN = np.where(wrong_VN, 1 - base_N, base_N)
        verdicts = judge(
            metric, label_N, prediction_VN[0], prediction_VN[1:], resamples=100, seed=simulation, **settings
        )
        found += bool(verdicts.significant.any())
    return found / simulations


def test_few_false_discoveries() -> None:
    assert null_discoveries("accuracy", simulations=60, variants=156) <= 0.12


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("metric", "settings"), [("accuracy", {}), ("f1", {"permutations": 4999})])
def test_false_discovery_rate(metric: str, settings: dict[str, int]) -> None:
    variants = 156 if metric == "accuracy" else 40
    found = null_discoveries(metric, simulations=1000, variants=variants, **settings)
    print(f"simulations with a false discovery, {metric}: {found:.4f}")  # noqa: T201
    assert found <= 0.055


def test_by_hand() -> None:
    label_N = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0.0])
    clean_N = label_N.copy()
    variant_N = 1 - label_N
    verdicts = judge("accuracy", label_N, clean_N, np.stack([clean_N, variant_N]))
    assert verdicts.baseline == 1.0
    np.testing.assert_allclose(verdicts.score, [1, 0])
    assert verdicts.delta.tolist() == [0, -1]
    np.testing.assert_allclose(verdicts.p_value, [1, 2 * 0.5**10])
    np.testing.assert_allclose(verdicts.p_bh, [1, 4 * 0.5**10])
    np.testing.assert_allclose(verdicts.p_holm, [1, 4 * 0.5**10])
    np.testing.assert_allclose(verdicts.flips, [0, 1])
    np.testing.assert_allclose((verdicts.low[0], verdicts.high[0], verdicts.stderr[0]), 0, atol=1e-12)
    # Two tests at 5 % together: 2 * 0.5^n <= 0.025 needs n = 7 of the 10 examples.
    np.testing.assert_allclose(verdicts.smallest_effect, 0.7)
    assert verdicts.significant.tolist() == [False, True]


def test_smallest_effect_is_found_four_times_in_five() -> None:
    """A variant whose true change is the smallest effect is significant at the corrected level with 80 % power."""
    generator = np.random.default_rng(0)
    label_N, clean_N, variant_N = draw("pearson", 600, generator)
    verdicts = judge("pearson", label_N, clean_N, np.stack([variant_N] * 3), permutations=100)
    alpha = 0.05 / 3
    effect, error = verdicts.smallest_effect[0], verdicts.stderr[0]
    power = norm.sf(norm.isf(alpha / 2) - effect / error)
    assert power == pytest.approx(0.8, abs=1e-3)


def test_a_verdict_does_not_depend_on_its_neighbours() -> None:
    generator = np.random.default_rng(1)
    label_N, clean_N, variant_N = draw("f1", 300, generator)
    other_N = draw("f1", 300, generator)[2]
    alone = judge("f1", label_N, clean_N, variant_N[None])
    beside = judge("f1", label_N, clean_N, np.stack([other_N, variant_N]))
    for name in ("delta", "stderr", "low", "high", "p_value", "flips"):
        assert getattr(alone, name)[0] == pytest.approx(getattr(beside, name)[1], abs=1e-12), name


def test_bad_input() -> None:
    label_N, one_VN = np.zeros(5), np.zeros((1, 5))
    with pytest.raises(UserError, match="Unknown metric"):
        judge("recall", label_N, label_N, one_VN)
    with pytest.raises(UserError, match=r"shape \[5\] cannot be judged"):
        judge("accuracy", label_N, label_N, label_N)
    with pytest.raises(UserError, match="There are 5 labels, 4 clean predictions and 5"):
        judge("accuracy", label_N, label_N[:4], one_VN)
    with pytest.raises(UserError, match="1 examples are too few"):
        judge("accuracy", label_N[:1], label_N[:1], one_VN[:, :1])
    with pytest.raises(UserError, match="level is 95"):
        judge("accuracy", label_N, label_N, one_VN, level=95)
    with pytest.raises(UserError, match="resamples is 10"):
        judge("accuracy", label_N, label_N, one_VN, resamples=10)
