"""The planner keeps its promise: simulated power is that of the sweeps that it speaks of."""

import math
from dataclasses import replace

import numpy as np
import pytest
from ablation.analyses import JUDGED
from scipy import stats

from bertsecrets.ablation.planner import (
    CORRELATION,
    SET,
    SPARED,
    TIMES,
    Pilot,
    _rank_power,
    _rates,
    _score_sweeps,
    count_tests,
    draw_flips,
    plan_power,
    seed_model,
)
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.seeds import RunSweep
from bertsecrets.ablation.significance import bootstrap_changes
from bertsecrets.ablation.verdicts import Judging, judge, p_of_losses
from bertsecrets.errors import UserError
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED
from bertsecrets.statistics.non_inferiority import paired_loss
from bertsecrets.statistics.ranks import spearman_within
from bertsecrets.task_heads import METRICS

Array = np.ndarray


def predictions(lost_V: Array, won_V: Array, count: int) -> tuple[Array, Array, Array]:
    """Labels, clean predictions and variants' predictions: half are right, of which each variant loses the first
    ones.
    """
    label_N, clean_N = np.zeros(count), np.repeat([0.0, 1.0], [count - count // 2, count // 2])
    prediction_VN = np.tile(clean_N, (len(lost_V), 1))
    for row_N, lost, won in zip(prediction_VN, lost_V, won_V, strict=True):
        row_N[:lost] = 1.0
        row_N[count - won :] = 0.0
    return label_N, clean_N, prediction_VN


def swept(verdicts: tuple[str, ...], label_N: Array, clean_N: Array, prediction_VN: Array, **other: object) -> RunSweep:
    row = {**JUDGED, "low": -0.01, "high": 0.01, "p_value": 1.0}
    rows = [{**row, "verdict": verdict, "layer": v // 4, "head": v % 4, **other} for v, verdict in enumerate(verdicts)]
    return RunSweep(label_N, clean_N, prediction_VN, name="run", rows=rows, index_N=np.arange(len(label_N)))


def pilot(lost_V: list[int], won_V: list[int], count: int = 400, **other: object) -> Pilot:
    data = predictions(np.array(lost_V), np.array(won_V), count)
    verdicts = judge(METRICS["accuracy"], PairedPredictions(*data), Judging(resamples=100)).verdict
    return Pilot.of([swept(verdicts, *data, **other)])


def test_tests_of_counts_are_those_of_predictions() -> None:
    generator = np.random.default_rng(0)
    for size, rate in ((400, 0.01), (3200, 0.02)):
        lost_V, won_V = generator.binomial(size, rate, (2, 300))
        data = predictions(lost_V, won_V, size)
        expected = judge(METRICS["accuracy"], PairedPredictions(*data), Judging(resamples=2))
        p_loss_MRV, *against_margin = count_tests(lost_V[None, None], won_V[None, None], [size], 0.01)
        np.testing.assert_allclose(p_loss_MRV[0, 0], p_of_losses(expected.delta, expected.p_value), rtol=1e-9)
        for p_MRV, expected_V in zip(against_margin, (expected.p_loss, expected.p_unchanged), strict=True):
            np.testing.assert_allclose(p_MRV[0, 0], expected_V, rtol=1e-9)


def test_flips_are_drawn_at_their_rates() -> None:
    lost_R, won_R = draw_flips(1000, np.full(4000, 0.3), np.full(4000, 0.6), np.random.default_rng(1))
    assert lost_R.mean() == pytest.approx(300, abs=1)
    assert won_R.mean() == pytest.approx(600, abs=1)
    # The cells of a multinomial: -n p q.
    assert np.cov(lost_R, won_R)[0, 1] == pytest.approx(-180, rel=0.1)


def test_the_power_to_remove_a_set_is_the_sum_over_what_may_be_seen() -> None:
    """Set flips are a stated share of the examples, as many lost as won: exact power by enumeration."""
    planned = plan_power(pilot([4] * 4, [4] * 4), repeats=300, times=(1, 2))
    share = planned.pilot.set_flips
    for size, power in zip(planned.sizes, planned.goals[SET], strict=True):
        lost, won = (grid.ravel() for grid in np.meshgrid(np.arange(120), np.arange(120)))
        chance = stats.multinomial.pmf(
            np.stack([lost, won, size - lost - won], 1), size, [share / 2, share / 2, 1 - share]
        )
        likely = chance > 1e-7
        shown = paired_loss(lost[likely], won[likely], size)(np.array(0.01)) <= 0.05
        assert power == pytest.approx((chance[likely] * shown).sum(), abs=0.09)


def test_a_run_page_suggests_the_number_of_its_plan() -> None:
    """The page of a run simulates fewer sizes than a plan: those that both have get the same numbers."""
    lost_V = [0, 0, 0, 2, 3, 1, 4, 2]
    of_run, of_plan = (plan_power(pilot(lost_V, lost_V[::-1]), times=times) for times in (TIMES[:4], TIMES[:6]))
    np.testing.assert_array_equal(of_run.settled[1], of_plan.settled[1][:4])
    np.testing.assert_array_equal(of_run.single_RM, of_plan.single_RM[:, :4])


def test_another_margin_opens_and_settles_heads() -> None:
    """Twelve heads of which one loses 1.5 points at 400 examples, at margins that the exact test tells apart."""
    data = predictions(np.array([0] * 11 + [6]), np.array([0] * 12), 400)
    sweep = swept((INCONCLUSIVE,) * 12, *data)
    # No loss in 400 examples rules out a rate of 1 - .05 ** (1 / 400), 0.75 points.
    for margin, open_heads in ((0.005, 12), (0.02, 1), (0.05, 0)):
        assert Pilot.of([sweep], margin=margin).undecided_SV.sum() == open_heads
    with pytest.raises(UserError, match=r"ablation\.margin=null.*margin=1"):
        Pilot.of([swept((INCONCLUSIVE,) * 12, *data, margin=None)])


def test_more_examples_settle_more_and_a_smaller_margin_takes_more() -> None:
    lost_V = [0, 0, 0, 2, 3, 1, 4, 2]
    planned = plan_power(pilot(lost_V, lost_V[::-1]), repeats=100)
    settled_M = planned.settled[1]
    assert settled_M[-1] > 0.9 > 0.5 > settled_M[0]
    assert (np.diff(settled_M) > -0.1).all()
    assert planned.examples(planned.goals[SPARED]) < planned.examples(planned.goals[NEEDED])
    half = plan_power(pilot(lost_V, lost_V[::-1], margin=0.005), repeats=100)
    assert half.examples(half.goals[SPARED]) > 2 * planned.examples(planned.goals[SPARED])
    record = planned.record()
    assert record["undecided"] == sum(code == INCONCLUSIVE for code in planned.pilot.verdict_SV[0])
    assert 400 < record["examples"] < 25_600


@pytest.mark.parametrize("count", [290, 300, 400])
def test_no_promise_is_of_the_examples_that_told_nothing(count: int) -> None:
    """Sweeps of 300 new examples settle most of these heads; these 300 have settled none."""
    planned = plan_power(pilot([1, 1, 1, 2] * 3, [0] * 12, count), repeats=60)
    assert planned.pilot.undecided_SV.all()
    assert planned.settled[1][0] == 0
    assert planned.single_RM.shape == (60, len(planned.sizes))
    np.testing.assert_allclose(planned.single_RM.mean(0), planned.settled[1])
    promised, (low, high) = planned.examples(planned.settled[1]), planned.examples_range()
    assert count < low <= promised <= high
    # A fifth of the simulated sweeps lies outside of the range.
    each = np.array([planned.examples(share_M) for share_M in planned.single_RM])
    assert ((each < low).mean(), (each > high).mean()) == (pytest.approx(0.1, abs=0.1), pytest.approx(0.1, abs=0.1))


def test_a_margin_that_no_number_of_examples_shows_has_no_number() -> None:
    planned = plan_power(pilot([8] * 8, [8] * 8, margin=1e-5), repeats=50)
    assert math.isinf(planned.examples(planned.goals[SPARED]))
    assert planned.record()["spared"] is None


def test_without_a_flip_some_are_still_possible() -> None:
    planned = plan_power(pilot([0] * 8, [0] * 8, count=60), repeats=100)
    assert planned.pilot.undecided_SV.all()
    assert 60 < planned.examples(planned.settled[1]) < 1000


def test_the_power_of_a_rank_correlation_is_that_of_simulated_measures() -> None:
    generator = np.random.default_rng(8)
    true_RLH = generator.standard_normal((1000, 6, 12))
    change_RLH = true_RLH + 0.7 * generator.standard_normal(true_RLH.shape)
    measure_RLH = CORRELATION * true_RLH + math.sqrt(1 - CORRELATION**2) * generator.standard_normal(true_RLH.shape)
    rho_R = np.array([spearman_within(*pair) for pair in zip(measure_RLH, change_RLH, strict=True)])
    layers = replace(pilot([0] * 72, [0] * 72), layers=tuple(np.repeat(np.arange(6), 12).tolist()))
    power = _rank_power(layers, true_RLH.reshape(1000, -1), change_RLH.reshape(1000, -1))
    assert power == pytest.approx((rho_R >= stats.norm.isf(0.025) / math.sqrt(66)).mean(), abs=0.04)


def test_few_examples_are_refused() -> None:
    with pytest.raises(UserError, match="on 29 examples; at least 30"):
        pilot([0, 1], [1, 0], 29)


def scored(
    count: int, noise_V: Array, generator: np.random.Generator, examples: np.random.Generator | None = None
) -> tuple[Array, Array, Array]:
    """Labels, clean predictions and those of heads, each of which adds to the error of the model, or takes from it."""
    label_N, other_N = (examples or generator).standard_normal((2, count))
    clean_N = label_N + 0.5 * other_N
    move_VN = 0.15 * generator.standard_normal((len(noise_V), count))
    return label_N, clean_N, clean_N + move_VN + noise_V[:, None] * other_N


def swept_scores(data: tuple[Array, Array, Array]) -> RunSweep:
    judged = judge(METRICS["pearson"], PairedPredictions(*data), Judging(resamples=100, permutations=400))
    return swept(judged.verdict, *data, metric="pearson")


def test_a_correlation_is_planned_by_normal_errors() -> None:
    """The error of a change is that of resampling; the power to remove a set is the normal distribution's."""
    data = scored(400, np.linspace(-0.05, 0.05, 8), np.random.default_rng(3))
    shown = Pilot.of([swept_scores(data)])
    resampled_RV = bootstrap_changes(METRICS["pearson"], PairedPredictions(*data), 2000, np.random.default_rng(0))
    np.testing.assert_allclose(np.sqrt(shown.variance_SV[0]), resampled_RV.std(0), rtol=0.1)
    planned = plan_power(shown, repeats=2000, times=(1, 4, 16))
    error_M = math.sqrt(shown.set_flips) / np.sqrt([1, 4, 16])
    np.testing.assert_allclose(planned.goals[SET], stats.norm.cdf(0.01 / error_M - 1.645), atol=0.04)
    assert (np.diff(planned.settled[1]) > -0.05).all()
    # Over seeds, an effect that they share stays, and what differs between them is averaged.
    sweeps = [
        swept_scores(scored(100, np.linspace(-0.05, 0.05, 8), np.random.default_rng(seed), np.random.default_rng(9)))
        for seed in (4, 5, 6)
    ]
    settled = plan_power(Pilot.of(sweeps), repeats=40, times=(1, 16)).settled
    assert settled[10][1] > settled[2][0]


def test_heads_that_change_few_scores_are_tested_as_sweeps_test_them() -> None:
    """Their p-values allow for an example of the largest possible harm, however little the pilot's examples change."""
    label_N, clean_N, prediction_VN = scored(150, np.zeros(8), np.random.default_rng(6))
    prediction_VN[:4, 10:] = clean_N[10:]
    sweep = swept_scores((label_N, clean_N, prediction_VN))
    tested = judge(sweep.metric, sweep, Judging.of(sweep.rows[0]))
    (p_margin_V,) = _score_sweeps(Pilot.of([sweep]), np.zeros(1, int), [150], np.random.default_rng(0))[4][0]
    np.testing.assert_allclose(p_margin_V[:4], tested.p_loss[:4], rtol=1e-6)
    np.testing.assert_allclose(p_margin_V[4:8], tested.p_loss[4:], rtol=0.1)
    assert (tested.p_loss[:4] > 0.3).all()


def test_one_head_that_flips_does_not_fix_the_share_of_losses() -> None:
    """Two thirds of one head's flips are losses, which leaves open whether two thirds of the further ones are."""
    few, many = (pilot([16 * times, *[0] * 35], [8 * times, *[0] * 35], 150 * times) for times in (1, 40))
    drawn = [_rates(shown, np.zeros(2000, int), np.random.default_rng(0)) for shown in (few, many)]
    spread, certain = ((lost_RV[:, 0] / (lost_RV + won_RV)[:, 0]).std() for lost_RV, won_RV in drawn)
    # The standard deviation of a beta distribution after 24 flips, as without other heads.
    assert spread == pytest.approx(stats.beta(16.5, 8.5).std(), rel=0.1)
    assert certain < spread / 4


@pytest.mark.slow
def test_the_promised_share_is_settled_for_a_correlation() -> None:
    """Pilots of a known population of scores, grown to the size that is promised to settle 80 %."""
    generator = np.random.default_rng(7)
    settled, undecided = 0, 0
    for simulation in range(50):
        noise_V = generator.normal(0, 0.02, 24)
        seen = scored(150, noise_V, generator)
        first = swept_scores(seen)
        open_heads = [v for v, row in enumerate(first.rows) if row["verdict"] == INCONCLUSIVE]
        planned = plan_power(Pilot.of([first]), repeats=40, times=(1, 1.5, 2, 3, 4, 8, 16), seed=simulation)
        size = planned.examples(planned.settled[1]) if open_heads else math.inf
        if math.isinf(size):
            continue
        more = scored(math.ceil(size) - 150, noise_V, generator)
        again = swept_scores(tuple(np.concatenate(parts, axis=-1) for parts in zip(seen, more, strict=True)))
        undecided += len(open_heads)
        settled += sum(again.rows[v]["verdict"] != INCONCLUSIVE for v in open_heads)
    assert undecided > 100
    assert 0.74 <= settled / undecided <= 0.88


def test_the_spread_between_seeds_is_found_and_settles_what_it_can() -> None:
    """Ten seeds of heads whose effects differ by seed with a standard deviation of 1 point."""
    generator = np.random.default_rng(2)
    sweeps = []
    for _ in range(10):
        effect_V = generator.normal(0, 0.01, 40).clip(-0.04, 0.04)
        lost_V, won_V = draw_flips(2000, (0.04 - effect_V) / 2, (0.04 + effect_V) / 2, generator)
        data = predictions(lost_V, won_V, 2000)
        sweeps.append(swept((INCONCLUSIVE,) * 40, *data))
    shown = Pilot.of(sweeps)
    _, _, spread_V = seed_model(Pilot(**{**vars(shown), "shared": 0.0}))
    assert spread_V.mean() == pytest.approx(0.01, rel=0.2)
    planned = plan_power(shown, repeats=10, times=(1, 4))
    # One checkpoint is settled by examples; their mean over seeds, whose spread examples do not narrow, by seeds.
    assert planned.settled[10][1] > planned.settled[3][1] + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("flips", [0.004, 0.02])
def test_the_promised_share_is_settled(flips: float) -> None:
    """Pilots of a known population, planned and grown to as many examples as the plan promises for 80 %."""
    generator = np.random.default_rng(5)
    settled, undecided = 0, 0
    for simulation in range(40):
        flips_V = generator.gamma(1.0, flips, 48)
        effect_V = generator.normal(-0.001, 0.004, 48).clip(-flips_V, flips_V)
        rates = ((flips_V - effect_V) / 2, (flips_V + effect_V) / 2)
        seen = draw_flips(400, *rates, generator)
        data = predictions(*seen, 400)
        first = judge(METRICS["accuracy"], PairedPredictions(*data), Judging(resamples=100)).verdict
        if INCONCLUSIVE not in first:
            continue
        planned = plan_power(Pilot.of([swept(first, *data)]), repeats=30, seed=simulation)
        examples = planned.examples(planned.settled[1])
        if math.isinf(examples):
            continue
        size = math.ceil(examples)
        more = draw_flips(size - 400, *rates, generator)
        data = predictions(seen[0] + more[0], seen[1] + more[1], size)
        again = judge(METRICS["accuracy"], PairedPredictions(*data), Judging(resamples=100)).verdict
        open_heads = [v for v, code in enumerate(first) if code == INCONCLUSIVE]
        undecided += len(open_heads)
        settled += sum(again[v] in (NEEDED, DISPENSABLE) for v in open_heads)
    assert 0.76 <= settled / undecided <= 0.86


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "matthews"])
def test_lost_and_won_examples_are_those_of_the_predictions(metric: str) -> None:
    generator = np.random.default_rng(0)
    label_N, clean_N, other_N = generator.integers(0, 2, (3, 200)).astype(float)
    lost, won = PairedPredictions(label_N, clean_N, other_N[None]).discordant(METRICS[metric])
    right_N, now_N = clean_N == label_N, other_N == label_N
    assert (lost[0], won[0]) == ((right_N & ~now_N).sum(), (~right_N & now_N).sum())
