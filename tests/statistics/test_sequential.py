"""Looks at growing data against published boundaries and simulated walks."""

import numpy as np
import pytest
from scipy.stats import norm

from bertsecrets.statistics.sequential import ONLY_LOOK, Look, chance_of_a_verdict, nominal_levels

QUARTERS = (0.25, 0.5, 0.75, 1.0)


def test_boundaries_are_the_published_ones() -> None:
    """Two-sided boundaries of the O'Brien-Fleming-like spending function with alpha 0.05 (Jennison and Turnbull 2000, ch. 7)."""
    assert norm.isf(np.array(nominal_levels(QUARTERS, 0.05)) / 2) == pytest.approx(
        [4.333, 2.963, 2.359, 2.014], abs=5e-4
    )
    assert norm.isf(np.array(nominal_levels((0.5, 1.0), 0.05)) / 2) == pytest.approx([2.963, 1.969], abs=5e-4)


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.4])
def test_walks_cross_the_boundaries_as_often_as_promised(alpha: float) -> None:
    shares = (0.2, 0.5, 0.6, 1.0)
    generator = np.random.default_rng(3)
    step_RK = generator.normal(size=(400_000, 4)) * np.sqrt(np.diff(shares, prepend=0.0))
    z_RK = step_RK.cumsum(1) / np.sqrt(shares)
    crossed = (2 * norm.sf(np.abs(z_RK)) <= np.array(nominal_levels(shares, alpha))).any(1).mean()
    assert crossed == pytest.approx(alpha, abs=4 * np.sqrt(alpha / 400_000))


def test_p_values_are_valid_whichever_look_stops() -> None:
    """The smallest p-value of all looks, of walks without a drift, is below x at most with probability x."""
    generator = np.random.default_rng(4)
    walk_RK = (generator.normal(size=(100_000, 4)) / 2).cumsum(1) / np.sqrt(QUARTERS)
    looks = [Look(index, QUARTERS) for index in range(4)]
    two_R = np.min([look.two_sided(2 * norm.sf(np.abs(walk_RK[:, i]))) for i, look in enumerate(looks)], axis=0)
    one_R = np.min([look.one_sided(norm.sf(walk_RK[:, i])) for i, look in enumerate(looks)], axis=0)
    for level in (0.001, 0.01, 0.05, 0.2):
        error = 4 * np.sqrt(level / 100_000)
        assert (two_R <= level).mean() == pytest.approx(level, abs=error)
        assert (one_R <= level).mean() <= level + error


def test_four_looks_make_no_more_family_wise_errors_than_one() -> None:
    """Sweeps of 72 heads without an effect: the share with a p-value of 0.05 / 72 or less, of walks looked at four times."""
    generator = np.random.default_rng(6)
    sweeps, heads = 20_000, 72
    walk, one, corrected, uncorrected = np.zeros((sweeps, heads)), *np.zeros((3, sweeps), bool)
    for index, share in enumerate(QUARTERS):
        walk += generator.normal(size=walk.shape) / 2
        p_RH = 2 * norm.sf(np.abs(walk) / np.sqrt(share))
        one = (p_RH <= 0.05 / heads).any(1)
        uncorrected |= one
        corrected |= (Look(index, QUARTERS).two_sided(p_RH) <= 0.05 / heads).any(1)
    alone = 1 - (1 - 0.05 / heads) ** heads
    error = 4 * np.sqrt(alone / sweeps)
    assert one.mean() == pytest.approx(alone, abs=error)
    assert corrected.mean() == pytest.approx(alone, abs=error)
    # Without the correction this test would fail.
    assert uncorrected.mean() > 0.05 + error


def test_p_values_and_limits_agree() -> None:
    for index in range(4):
        look = Look(index, QUARTERS)
        level = look.level(0.05)
        assert level == pytest.approx(nominal_levels(QUARTERS, 0.05)[index])
        assert look.two_sided(level) == pytest.approx(0.05, rel=0.01)
        assert np.isnan(look.two_sided(np.nan))
    assert ONLY_LOOK.two_sided(0.03) == ONLY_LOOK.one_sided(0.03) == 0.03
    assert ONLY_LOOK.level(0.05) == 0.05


@pytest.mark.parametrize("shares", [(), (0.0, 1.0), (0.5, 0.5, 1.0), (0.5, 0.9)])
def test_shares_that_do_not_rise_to_one_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="do not rise to 1"):
        nominal_levels(shares, 0.05)


def test_the_chance_of_a_verdict_is_that_of_simulated_ends() -> None:
    """One variant: both tests at level 0.05, the mean of the rest drawn around that of the examples seen."""
    generator = np.random.default_rng(5)
    seen, examples, variance, margin = 100, 400, 0.04, 0.01
    rest = examples - seen
    for delta in (-0.05, -0.02, 0.0, 0.03):
        mean_R = delta + np.sqrt(variance / seen) * generator.normal(size=200_000)
        rest_R = mean_R + np.sqrt(variance / rest) * generator.normal(size=200_000)
        end_R = (seen * delta + rest * rest_R) / examples
        error = np.sqrt(variance / examples)
        shown_R = (end_R / error < -norm.isf(0.05)) | ((end_R + margin) / error > norm.isf(0.05))
        result = chance_of_a_verdict([delta], [variance], seen, examples, margin)[0]
        assert result == pytest.approx(shown_R.mean(), abs=0.005)


@pytest.mark.parametrize(("family_wise", "level"), [(True, 0.05 / 7), (False, 0.05 * 4 / 10)])
def test_a_loss_is_predicted_at_twice_the_level_of_its_correction(family_wise: bool, level: float) -> None:
    """Of ten variants two are needed, one is about to be, and the last is open: Holm's next level is a seventh, and Benjamini and
    Hochberg's that of the fourth p-value."""
    error, spread = np.sqrt(0.04 / 400), np.sqrt(0.04 * 300 / (100 * 400))
    delta = np.array([-0.2, -0.0225])
    # Without a margin that could be ruled out, only a loss can be shown.
    result = chance_of_a_verdict(
        delta, np.full(2, 0.04), 100, 400, margin=1e-9, tests=10, shown=(2, 0), rate=1e-12, family_wise=family_wise
    )
    p_open = norm.sf(0.0225 / error)
    assert (p_open <= level) == (not family_wise)
    expected = norm.cdf((-norm.isf(min(0.05, 2 * level)) * error + 0.0225) / spread)
    assert result[1] == pytest.approx(expected, abs=1e-6)
