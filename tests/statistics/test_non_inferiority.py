"""One-sided tests of a loss: their definition by simulation, their level by enumeration of all outcomes, hand-worked
values.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.verdicts import draw, truth
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.verdicts import losses_ruled_out
from bertsecrets.statistics.corrections import corrected, least_false
from bertsecrets.statistics.non_inferiority import (
    influenced_loss,
    paired_loss,
    smallest_ruled_out,
)
from bertsecrets.task_heads import METRICS

Array = np.ndarray
LEVELS = (0.05, 0.025, 0.01, 0.001, 0.05 / 72, 0.05 / 144)


def p_of(lost: int, won: int, examples: int, loss: float) -> float:
    return float(paired_loss([lost], [won], examples)(np.array(loss))[0])


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(24, 300), st.floats(-0.1, 0.2), st.integers(0, 10**6))
def test_the_p_value_is_the_chance_that_melded_limits_reach_the_loss(
    lost: int, won: int, examples: int, loss: float, seed: int
) -> None:
    generator, both = np.random.default_rng(seed), lost + won
    first, second = (both + 1, examples - both) if loss > 0 else (both, examples - both + 1)
    share_R = np.ones(200_000) * (first > 0) if not first or not second else generator.beta(first, second, 200_000)
    won_R = generator.beta(won, lost + 1, 200_000) if won else 0.0
    assert p_of(lost, won, examples, loss) == pytest.approx((share_R * (1 - 2 * won_R) >= loss).mean(), abs=0.006)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (3, 5), (7, 2), (0, 4), (40, 0), (20, 20)])
def test_of_no_loss_it_is_mcnemars_exact_test(lost: int, won: int) -> None:
    expected = stats.binomtest(won, lost + won, alternative="greater").pvalue if lost + won else 1.0
    assert p_of(lost, won, 40, 0.0) == pytest.approx(expected, rel=1e-9)


def test_hand_worked() -> None:
    """Without a changed answer a model that loses the margin is seen with probability (1 - margin)^N."""
    assert p_of(0, 0, 298, 0.01) > 0.05 >= p_of(0, 0, 299, 0.01) == pytest.approx(0.99**299)
    (loss,) = smallest_ruled_out(paired_loss([0], [0], 400), 0.05 / 72, 1.0)
    assert loss == pytest.approx(1 - (0.05 / 72) ** (1 / 400), abs=1e-8)
    assert round(100 * float(loss), 2) == 1.80
    # Only losses: Clopper and Pearson's upper limit.
    assert p_of(3, 0, 500, 0.02) == pytest.approx(stats.binom.cdf(3, 500, 0.02))
    # All pairs are discordant: twice a binomial proportion.
    assert p_of(12, 8, 20, 0.3) == pytest.approx(stats.binom.sf(7, 20, 0.35))
    assert (p_of(20, 0, 20, 1.0), p_of(0, 20, 20, 0.5)) == (1.0, pytest.approx(stats.binom.sf(19, 20, 0.25)))


def acceptances(examples: int, loss: float, alpha: float, most_won: int) -> Array:
    """The largest number of lost pairs, for 0, 1, ... won ones, with which the loss is ruled out; -1 for none."""
    won_W = np.arange(most_won + 1)
    low_W, high_W = np.full(len(won_W), -1), examples - won_W + 1
    while (high_W - low_W > 1).any():
        centre_W = (low_W + high_W) // 2
        out_W = (paired_loss(centre_W.clip(0), won_W, examples)(np.array(loss)) <= alpha) & (high_W - low_W > 1)
        low_W, high_W = np.where(out_W, centre_W, low_W), np.where(out_W | (high_W - low_W <= 1), high_W, centre_W)
    return low_W


def level(examples: int, loss: float, alpha: float, won: float) -> float:
    """Probability that a loss of exactly this size is ruled out, if this share of pairs is won."""
    most = int(min(examples, examples * won + 8 * np.sqrt(examples * won) + 20))
    lost_W, won_W = acceptances(examples, loss, alpha, most), np.arange(most + 1)
    chance_W = stats.binom.pmf(won_W, examples, won) * stats.binom.cdf(
        lost_W, examples - won_W, (won + loss) / (1 - won)
    )
    return float(chance_W.sum())


def test_the_level_is_the_sum_over_the_table_of_all_outcomes() -> None:
    """The sum over won pairs above, against every cell of a multinomial distribution and every p-value by itself."""
    lost, won = (grid.ravel() for grid in np.meshgrid(np.arange(31), np.arange(31)))
    lost, won = lost[lost + won <= 30], won[lost + won <= 30]
    chance = stats.multinomial.pmf(np.stack([lost, won, 30 - lost - won], 1), 30, [0.3, 0.1, 0.6])
    p_X = paired_loss(lost, won, 30)(np.array(0.2))
    assert level(30, 0.2, 0.1, 0.1) == pytest.approx(chance[p_X <= 0.1].sum(), abs=1e-12)


def check_level(examples: int, loss: float) -> None:
    shares = np.unique(np.concatenate([[0], np.geomspace(1e-5, 0.1, 16), np.linspace(0, (1 - loss) / 2, 5)]))
    # Of 5,000 pairs a tenth that is won stands for more.
    for won in shares[shares <= (0.5 if examples <= 1000 else 0.1)]:
        for alpha in LEVELS:
            assert level(examples, loss, alpha, won) <= alpha * (1 + 1e-6), (examples, loss, alpha, won)


@pytest.mark.parametrize(("examples", "loss"), [(20, 0.05), (230, 0.01), (400, 0.01)])
def test_a_loss_of_the_margin_is_ruled_out_at_most_as_often_as_stated(examples: int, loss: float) -> None:
    """By enumeration; mid-p limits rule out one point with probability 0.099 at 230 examples."""
    check_level(examples, loss)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("examples", [20, 50, 100, 300, 655, 1000, 5000])
@pytest.mark.parametrize("loss", [0.0025, 0.01, 0.02, 0.05])
def test_the_level_at_all_sizes_and_margins(examples: int, loss: float) -> None:
    check_level(examples, loss)


def test_the_bound_of_closed_testing_keeps_its_level() -> None:
    """72 heads that all lose one point, in sweeps of 655 examples: with mid-p 0.097 of the sweeps spare one."""
    for count, won in ((655, 0.0), (655, 0.002), (400, 0.0), (5000, 0.02)):
        kinds = np.random.default_rng(count).multinomial(count, [won + 0.01, won, 0.99 - 2 * won], size=(2000, 72))
        pairs, which = np.unique(kinds[..., :2].reshape(-1, 2), axis=0, return_inverse=True)
        p_RV = paired_loss(*pairs.T, count)(np.array(0.01))[which].reshape(2000, 72)
        wrong = np.mean([least_false(p_V, 0.05) > 0 for p_V in p_RV])
        # 3.5 standard errors.
        assert wrong <= 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / 2000), (count, won, wrong)
        # Where all null hypotheses are true, the false discovery rate is the chance of any.
        assert np.mean([(corrected(p_V) <= 0.05).any() for p_V in p_RV]) == wrong


def test_melded_gamma_limits_by_simulation() -> None:
    generator, size = np.random.default_rng(1), 400_000
    influence_VN = np.zeros((3, 200))
    influence_VN[0, :7], influence_VN[1, :2] = [-1, -1, -1, 0, 0, 1, 1], [-1, -0.4]
    influence_VN[2] = 0.3 * generator.normal(size=200)
    influence_VN -= influence_VN.mean(1, keepdims=True)
    change_V, harm_V = np.array([-0.005, -0.007, 0.003]), np.array([0.006, 0.006, 0.002])
    test = influenced_loss(change_V, influence_VN, harm_V)
    for loss in (0.03, 0.01, 0.0, -0.01):
        for v, p in enumerate(test(np.array(loss))):
            parts = [np.maximum(sign * influence_VN[v] / 200, 0) for sign in (-1, 1)]
            means = [parts[0].sum() + harm_V[v], parts[1].sum()]
            variances = [(parts[0] ** 2).sum() + harm_V[v] ** 2, (parts[1] ** 2).sum()]
            harm_R, gain_R = (
                generator.gamma(mean**2 / variance, variance / mean, size)
                for mean, variance in zip(means, variances, strict=True)
            )
            beyond_R = harm_R - parts[0].sum() - (gain_R - parts[1].sum())
            assert p == pytest.approx((beyond_R - change_V[v] >= loss).mean(), abs=0.004)


def test_many_small_influences_give_the_normal_test() -> None:
    influence_N = np.random.default_rng(0).normal(size=4000)
    influence_N -= influence_N.mean()
    z_X = np.array([-1.0, 0.5, 2.0, 3.0])
    error = influence_N.std() / np.sqrt(4000)
    p_X = [float(influenced_loss([0.1], influence_N[None], [1e-5])(np.array(-0.1 + z * error))[0]) for z in z_X]
    np.testing.assert_allclose(stats.norm.isf(p_X), z_X, atol=0.05)


def test_what_cannot_change_or_is_undefined() -> None:
    influence_VN = np.array([[0.0] * 50, [0.0] * 50, [np.nan] * 50])
    p_V = influenced_loss([0.0, 0.0, np.nan], influence_VN, [0.02, 0.0, 0.1])(np.array(0.05))
    # One event of the largest weight: an exponential distribution.
    assert p_V[0] == pytest.approx(np.exp(-2.5))
    assert p_V[1] < 1e-9
    assert np.isnan(p_V[2])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.2, 0.05, 0.05 / 72]))
def test_the_smallest_loss_that_is_ruled_out_has_the_p_value(lost: int, won: int, alpha: float) -> None:
    test = paired_loss([lost], [won], 120)
    (loss,) = smallest_ruled_out(test, alpha, 1.0)
    assert test(np.array(loss + 1e-6))[0] <= alpha * (1 + 1e-3) or loss == 1.0
    assert test(np.array(loss - 1e-6))[0] >= alpha * (1 - 1e-3)


@pytest.mark.parametrize("harmful", [1.0, 0.5])
@pytest.mark.parametrize(("count", "flips"), [(100, 0.02), (400, 0.005), (400, 0.02)])
def test_losses_of_f1_are_ruled_out_at_most_as_often_as_stated(count: int, flips: float, harmful: float) -> None:
    generator = np.random.default_rng([count, int(1000 * flips)])
    loss = -truth("f1", flips, harmful)
    bounds = [
        losses_ruled_out(METRICS["f1"], PairedPredictions(*draw("f1", flips, harmful, count, generator)), 0.05)
        for _ in range(20)
    ]
    wrong_X = np.concatenate(bounds) <= loss
    assert wrong_X.mean() <= 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / len(wrong_X))
