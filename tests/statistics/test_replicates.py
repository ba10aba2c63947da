"""Statistics over seeds against published cases and scipy."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize, special, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from bertsecrets.errors import UserError
from bertsecrets.statistics.replicates import (
    corrected_together,
    difference,
    effects_over_seeds,
    interval_over_seeds,
    intraclass_correlation,
    mean_interval,
    noise_of_examples,
    partial_conjunction,
    rank_agreement,
    seeds_shown,
)

SHROUT_FLEISS = np.array([[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]])
"""Table 2 of Shrout and Fleiss 1979: six targets, four judges."""


def test_intraclass_correlation_of_the_published_case() -> None:
    assert intraclass_correlation(SHROUT_FLEISS) == pytest.approx(0.29, abs=0.005)


def test_identical_seeds_agree_wholly_and_undefined_cases_are_nan() -> None:
    value_NR = np.repeat(np.arange(6.0)[:, None], 3, axis=1)
    assert intraclass_correlation(value_NR) == pytest.approx(1)
    assert rank_agreement(value_NR) == (pytest.approx(1), pytest.approx(1))
    assert np.isnan(intraclass_correlation(np.ones((6, 3))))
    assert np.isnan(intraclass_correlation(value_NR[:, :1]))
    assert np.isnan(rank_agreement(np.ones((6, 3)))[0])


def test_heads_without_a_value_are_left_out() -> None:
    with_gap = np.vstack([SHROUT_FLEISS.astype(float), [np.nan, 1, 2, 3]])
    assert intraclass_correlation(with_gap) == intraclass_correlation(SHROUT_FLEISS)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9), st.floats(0.5, 0.99))
@settings(max_examples=50, deadline=None)
def test_interval_equals_that_of_statsmodels(values: list[float], level: float) -> None:
    result = mean_interval([*values, np.nan], level)
    low, high = DescrStatsW(np.array(values)).tconfint_mean(1 - level)
    assert (result.mean, result.count) == (pytest.approx(np.mean(values), abs=1e-9), len(values))
    assert (result.low, result.high) == (pytest.approx(low, abs=1e-7), pytest.approx(high, abs=1e-7))


def test_one_seed_has_no_interval() -> None:
    result = mean_interval([0.5])
    assert (result.mean, result.count) == (0.5, 1)
    assert np.isnan(result.low)
    assert mean_interval([np.nan]).count == 0


def test_rank_agreement_is_the_mean_over_all_pairs() -> None:
    value_NR = np.random.default_rng(1).standard_normal((20, 4))
    rhos = [stats.spearmanr(value_NR[:, a], value_NR[:, b])[0] for a in range(4) for b in range(a)]
    assert rank_agreement(value_NR) == (pytest.approx(np.mean(rhos)), pytest.approx(min(rhos)))


def test_difference_over_seeds_is_welch() -> None:
    generator = np.random.default_rng(2)
    first, second = generator.standard_normal((4, 2, 3)), generator.standard_normal((3, 2, 3)) + 1.5
    result = difference(first, second, np.ones((2, 3)), np.ones((2, 3)))
    p_N = [
        stats.ttest_ind(first[:, layer, head], second[:, layer, head], equal_var=False).pvalue
        for layer in range(2)
        for head in range(3)
    ]
    assert result.over_seeds
    assert np.allclose(result.p_LH.ravel(), p_N)
    assert np.allclose(result.delta_LH, first.mean(0) - second.mean(0))


def test_difference_of_single_runs_is_tested_over_examples() -> None:
    first, second = np.array([[[0.5, 0.6, 0.7]]]), np.array([[[0.4, 0.6, np.nan]]])
    result = difference(first, second, np.full((1, 3), 0.03), np.full((1, 3), 0.04))
    assert not result.over_seeds
    assert result.p_LH[0, 0] == pytest.approx(2 * stats.norm.sf(0.1 / 0.05))
    assert result.p_LH[0, 1] == pytest.approx(1)
    assert np.isnan(result.p_LH[0, 2])


def test_several_comparisons_are_corrected_over_the_heads_of_all() -> None:
    generator = np.random.default_rng(3)
    ones = np.ones((1, 2, 3))
    shifts = (0.0, 0.5, 3.0)
    raw = [difference(generator.normal(shift, 1, (1, 2, 3)), 0 * ones, ones[0], ones[0]) for shift in shifts]
    raw[1].p_LH[0, 0] = np.nan
    together = corrected_together(raw)
    p_N = np.concatenate([test.p_LH.ravel() for test in raw])
    expected_N = np.full(18, np.nan)
    expected_N[np.isfinite(p_N)] = multipletests(p_N[np.isfinite(p_N)], method="fdr_bh")[1]
    assert np.allclose(np.concatenate([test.p_LH.ravel() for test in together]), expected_N, equal_nan=True)
    assert [test.delta_LH.tolist() for test in together] == [test.delta_LH.tolist() for test in raw]


def test_constants_that_differ_differ_beyond_doubt() -> None:
    ones, twos = np.ones((2, 1, 2)), np.array([[[2.0, 1.0]], [[2.0, 1.0]]])
    result = difference(ones, twos, np.zeros((1, 2)), np.zeros((1, 2)))
    assert result.p_LH.tolist() == [[0.0, 1.0]]


def _crossed(
    seeds: int, between: float, shared: float, own: float, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Effects of 0 with noise between seeds, of examples that seeds share, and of examples that each has to itself;
    resamples.
    """
    shared_V, own_SV = shared * generator.normal(size=count), own * generator.normal(size=(seeds, count))
    delta_SV = between * generator.normal(size=(seeds, count)) + shared_V + own_SV
    resampled_SRV = delta_SV[:, None] + shared * generator.normal(size=(200, count))
    return delta_SV, resampled_SRV + own * generator.normal(size=resampled_SRV.shape)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(
    ("between", "shared", "own"), [(0, 1, 0), (1, 1, 0), (5, 1, 0), (0, 1, 2), (1, 1, 2), (0, 0.3, 1)]
)
def test_intervals_over_seeds_cover_the_truth_and_their_variance_is_unbiased(
    seeds: int, between: float, shared: float, own: float
) -> None:
    generator = np.random.default_rng([seeds, int(10 * between), int(10 * shared), int(10 * own)])
    delta_SV, resampled_SRV = _crossed(seeds, between, shared, own, 1000, generator)
    effects = effects_over_seeds(delta_SV, *noise_of_examples(resampled_SRV), margin=0.01, level=0.95)
    low_V, high_V = effects.limits
    assert 0.935 <= ((low_V <= 0) & (high_V >= 0)).mean() <= 0.985
    truth = (between**2 + own**2) / seeds + shared**2
    assert (effects.stderr**2).mean() == pytest.approx(truth, rel=0.1)


def test_the_covariance_between_seeds_is_the_mean_of_numpys_over_all_pairs() -> None:
    resampled_SRV = np.random.default_rng(2).normal(size=(4, 30, 3))
    resampled_SRV += np.random.default_rng(3).normal(size=(30, 3))
    expected_V = [
        np.mean([np.cov(resampled_SRV[a, :, v], resampled_SRV[b, :, v])[0, 1] for a, b in combinations(range(4), 2)])
        for v in range(3)
    ]
    shared_V, noise_V = noise_of_examples(resampled_SRV)
    assert shared_V == pytest.approx(np.array(expected_V))
    assert noise_V == pytest.approx(np.array([[np.var(each, ddof=1) for each in each_VR] for each_VR in
                                              resampled_SRV.transpose(0, 2, 1)]).mean(0))  # fmt: skip


def test_an_effect_over_seeds_without_noise_of_examples_is_students_test() -> None:
    delta_SV = np.random.default_rng(0).normal(-0.02, 0.01, (5, 4))
    effects = effects_over_seeds(delta_SV, np.zeros(4), np.zeros(4), margin=0.01, level=0.9)
    assert effects.p_value == pytest.approx(stats.ttest_1samp(delta_SV, 0).pvalue)
    assert effects.p_margin == pytest.approx(stats.ttest_1samp(delta_SV, -0.01, alternative="greater").pvalue)
    limits = stats.ttest_1samp(delta_SV, 0).confidence_interval(0.9)
    assert effects.limits == (pytest.approx(limits.low), pytest.approx(limits.high))
    limits = stats.ttest_1samp(delta_SV, 0).confidence_interval(1 - 0.1 / 4)
    assert effects.limits_simultaneous == (pytest.approx(limits.low), pytest.approx(limits.high))


def test_the_noise_that_few_variants_share_is_normal() -> None:
    """Error of a mean: s / sqrt(S) times Student's t with S - 1 degrees of freedom, plus normal noise (Behrens and
    Fisher).
    """
    delta_SV = np.array([[-0.03, -0.03], [-0.01, -0.01], [-0.02, -0.02]])
    between, shared = 0.01 / np.sqrt(3), 0.004
    effects = effects_over_seeds(delta_SV, np.full(2, shared**2), np.full(2, shared**2), margin=0.0, level=0.95)
    t_M = stats.t(2).ppf((np.arange(200_000) + 0.5) / 200_000)
    expected = 2 * stats.norm.sf((0.02 - between * t_M) / shared).mean()
    assert effects.p_value == pytest.approx([expected] * 2, rel=1e-3)


def test_variances_are_learned_from_all_variants() -> None:
    """The most likely prior by another optimiser, and p-values and limits by loops."""
    generator = np.random.default_rng(5)
    noise_V = generator.uniform(0.5, 2, 20) * 1e-4
    true_V = noise_V * np.where(np.arange(20) % 4 == 0, 30.0, 1.0)
    delta_SV = np.sqrt(true_V) * generator.standard_normal((3, 20))
    delta_SV[:, 3] = 0.01
    shared_V = noise_V / 2
    effects = effects_over_seeds(delta_SV, shared_V, noise_V, margin=0.01, level=0.95)
    observed_V = delta_SV.var(0, ddof=1)
    scale_V = np.sqrt(noise_V * stats.gmean(np.delete(noise_V, 3)))
    most = np.delete(observed_V / scale_V, 3).max()
    ratio_K = np.exp(np.arange(np.log(0.01), np.log(100 * most), 0.5))
    density_VK = np.array(
        [
            [
                stats.chi2(2).pdf(2 * observed / variance) / variance
                for variance in np.maximum(scale * ratio_K, noise / 2)
            ]
            for observed, noise, scale in zip(observed_V, noise_V, scale_V, strict=True)
        ]
    )
    telling_V = np.arange(20) != 3

    def loss(value_K: np.ndarray) -> float:
        prior_K = special.softmax(value_K)
        likely = np.log((density_VK[telling_V] * 1e-3) @ prior_K).sum()
        return -float(likely + 3 / len(ratio_K) * np.log(prior_K).sum())

    prior_K = special.softmax(optimize.minimize(loss, np.zeros(len(ratio_K)), method="BFGS").x)
    error_VK = np.sqrt(np.maximum(scale_V[:, None] * ratio_K, noise_V[:, None] / 2) / 3 + shared_V[:, None])
    low_V, high_V = effects.limits
    for v in range(20):
        posterior_K = density_VK[v] * prior_K / (density_VK[v] @ prior_K)
        mean = delta_SV[:, v].mean()
        assert effects.p_value[v] == pytest.approx(2 * posterior_K @ stats.norm.sf(abs(mean) / error_VK[v]), rel=0.02)
        assert effects.p_margin[v] == pytest.approx(posterior_K @ stats.norm.sf((mean + 0.01) / error_VK[v]), rel=0.02)
        assert posterior_K @ stats.norm.sf((high_V[v] - mean) / error_VK[v]) == pytest.approx(0.025, rel=0.02)
        assert high_V[v] - mean == pytest.approx(mean - low_V[v])


def test_without_spread_the_estimate_is_certain_and_one_seed_is_too_few() -> None:
    same = np.array([[0.0, -0.05]] * 3)
    effects = effects_over_seeds(same, np.zeros(2), np.zeros(2), margin=0.01, level=0.95)
    assert (effects.p_value.tolist(), effects.p_margin.tolist()) == ([1.0, pytest.approx(0)], [0.0, 1.0])
    with pytest.raises(UserError, match="needs at least two seeds, but there is 1"):
        effects_over_seeds(same[:1], np.zeros(2), np.zeros(2), margin=0.01, level=0.95)


def test_a_resample_without_a_value_is_left_out_for_all_seeds() -> None:
    resampled_SRV = np.random.default_rng(0).standard_normal((3, 200, 2)).cumsum(axis=0)
    one_missing = resampled_SRV.copy()
    one_missing[1, 17, 0] = np.nan
    kept, whole = (noise_of_examples(part) for part in (np.delete(resampled_SRV, 17, axis=1), resampled_SRV))
    for found_V, kept_V, whole_V in zip(noise_of_examples(one_missing), kept, whole, strict=True):
        assert found_V == pytest.approx([kept_V[0], whole_V[1]])
    few = np.full_like(resampled_SRV, np.nan)
    few[:, 0] = -0.5
    unknown = effects_over_seeds(few[:, 0], *noise_of_examples(few), margin=0.01, level=0.95)
    assert np.isnan([unknown.stderr, unknown.p_value, *unknown.limits]).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.data())
def test_partial_conjunction_is_the_worst_test_of_subsets(p: list[float], data: st.DataObject) -> None:
    """Fewer than u seeds have an effect if some S - u + 1 of them have none: the largest p-value of Simes' test over
    all such sets.
    """
    fewest = data.draw(st.integers(1, len(p)))

    def simes(chosen: tuple[float, ...]) -> float:
        return min(len(chosen) * value / (rank + 1) for rank, value in enumerate(sorted(chosen)))

    expected = max(simes(chosen) for chosen in combinations(p, len(p) - fewest + 1))
    assert partial_conjunction(np.array(p)[:, None], fewest)[0] == pytest.approx(expected)


def test_partial_conjunction_by_hand() -> None:
    p_SV = np.array([[0.01, np.nan], [0.02, 0.01], [0.5, 0.02]])
    assert partial_conjunction(p_SV, 3).tolist() == [0.5, 1.0]
    assert partial_conjunction(p_SV, 2) == pytest.approx([0.04, 0.04])
    assert partial_conjunction(p_SV, 1) == pytest.approx([0.03, 0.03])
    assert partial_conjunction(p_SV[:1], 1).tolist() == [0.01, 1.0]
    for fewest in (0, 4):
        with pytest.raises(ValueError, match="expected 1 to 3"):
            partial_conjunction(p_SV, fewest)


@settings(max_examples=100, deadline=None)
@given(arrays(float, (2, 3), elements=st.sampled_from([0.001, 0.01, 0.02, 0.03, 0.06, 0.5])))
def test_in_how_many_seeds_effects_are_shown_is_closed_testing(p_SV: np.ndarray) -> None:
    """All intersections of "fewer than u of 2 seeds" over three effects, each by Bonferroni over the effects that it
    names.
    """
    family = {(v, u): float(partial_conjunction(p_SV, u)[v]) for v in range(3) for u in (1, 2)}
    kept = [
        named
        for size in range(1, 7)
        for named in combinations(family, size)
        if min(family[one] for one in named) > 0.05 / len({v for v, _ in named})
    ]
    expected = [max((u for u in (1, 2) if not any((v, u) in named for named in kept)), default=0) for v in range(3)]
    assert seeds_shown(p_SV, 0.05).tolist() == expected
    p_UV = np.stack([partial_conjunction(p_SV, u) for u in (1, 2)])
    rejected_UV = multipletests(p_UV.ravel(), 0.05, method="fdr_bh")[0].reshape(2, 3)
    assert seeds_shown(p_SV, 0.05, family_wise=False).tolist() == rejected_UV.sum(0).tolist()


@pytest.mark.parametrize("symmetric", [False, True])
def test_an_interval_over_seeds_holds_their_spread_and_the_noise_they_share(symmetric: bool) -> None:
    value_S, low_S, high_S = np.array([0.80, 0.84, 0.85]), np.array([0.75, 0.80, 0.79]), np.array([0.83, 0.86, 0.88])
    found = interval_over_seeds(np.stack([value_S, low_S, high_S], axis=1), 0.95, symmetric=symmetric)
    half_S = (high_S - low_S) / 2
    expected = []
    for reach_S in (half_S, half_S) if symmetric else (value_S - low_S, high_S - value_S):
        error_S = reach_S / stats.norm.ppf(0.975)
        # Errors that go the same way: the covariance of two seeds is the product of their standard errors.
        shared = np.mean([error_S[0] * error_S[1], error_S[0] * error_S[2], error_S[1] * error_S[2]])
        between = value_S.var(ddof=1) / 3
        t_M = stats.t(2).ppf((np.arange(2000) + 0.5) / 2000)
        # The quantile of a sum of both errors, from its distribution on a grid.
        reach_G = np.linspace(0, 0.2, 2001)
        beyond_G = stats.norm.sf((reach_G[:, None] - np.sqrt(between) * t_M) / np.sqrt(shared)).mean(axis=1)
        expected.append(np.interp(-0.025, -beyond_G, reach_G))
    assert found.count == 3
    np.testing.assert_allclose(
        [found.mean, found.mean - found.low, found.high - found.mean], [value_S.mean(), *expected], rtol=2e-3
    )


def test_an_interval_of_one_seed_is_its_own_and_unknown_limits_stay_unknown() -> None:
    one = interval_over_seeds([[0.5, 0.4, 0.7]], 0.95)
    assert (one.mean, one.low, one.high, one.count) == (0.5, 0.4, 0.7, 1)
    unknown = interval_over_seeds([[0.5, 0.4, 0.7], [0.6, np.nan, np.nan]], 0.95)
    assert unknown.mean == pytest.approx(0.55)
    assert np.isnan([unknown.low, unknown.high]).all()
