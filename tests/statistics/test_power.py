"""The smallest detectable loss: its power by enumeration and by simulation."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest, multinomial, norm

from benchmarks.verdicts import power
from bertsecrets.statistics.power import (
    detectable_change,
    detectable_loss,
    examples_to_rule_out,
    loss_ruled_out,
    mcnemar_power,
)


@pytest.mark.parametrize(("lost", "won", "alpha"), [(0.3, 0.1, 0.05), (0.5, 0.0, 0.01), (0.2, 0.2, 0.05)])
def test_power_equals_a_loop_over_all_outcomes(lost: float, won: float, alpha: float) -> None:
    examples, expected = 18, 0.0
    for losses in range(examples + 1):
        for wins in range(examples + 1 - losses):
            if wins < losses and binomtest(wins, losses + wins, 0.5).pvalue <= alpha:
                kept = examples - losses - wins
                expected += multinomial.pmf([losses, wins, kept], examples, [lost, won, 1 - lost - won])
    assert mcnemar_power(lost, won, examples, alpha) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(60, 3000), st.floats(0, 0.3), st.integers(1, 156))
def test_the_smallest_loss_is_found_four_times_in_five(examples: int, flips: float, variants: int) -> None:
    alpha = 0.05 / variants
    loss = detectable_loss(flips, examples, alpha)
    if math.isnan(loss):
        assert mcnemar_power(1 - flips / 2, flips / 2, examples, alpha) < 0.8
    else:
        assert loss <= 1
        assert mcnemar_power(flips / 2 + loss, flips / 2, examples, alpha) == pytest.approx(0.8, abs=2e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5000), st.floats(0.5, 0.999))
def test_a_loss_is_ruled_out_by_the_limit_of_no_changed_answer(examples: int, confidence: float) -> None:
    loss = loss_ruled_out(examples, confidence)
    # Clopper and Pearson's upper limit of no success.
    assert loss == pytest.approx(beta.ppf(confidence, 1, examples))
    if loss < 0.99:
        assert examples_to_rule_out(loss, confidence) == pytest.approx(examples)


def test_with_many_flips_it_is_close_to_the_formula() -> None:
    assert detectable_loss(0.1, 5000, 0.05 / 72) == pytest.approx(
        detectable_change((0.1 / 5000) ** 0.5, 1 / 5000, 5000, 0.05 / 72), rel=0.02
    )


@pytest.mark.parametrize(("stderr", "step", "examples"), [(0.01, 0.0, 10**9), (0.01, 0.004, 10**9), (0.02, 0.01, 300)])
def test_the_smallest_change_solves_its_equation(stderr: float, step: float, examples: int) -> None:
    change = detectable_change(stderr, step, examples, 0.01)
    level, reach = norm.isf(0.005), norm.ppf(0.8)
    spread = math.sqrt(stderr**2 + step * change)
    assert change == pytest.approx(level * math.hypot(spread, change / math.sqrt(examples)) + reach * spread, rel=1e-6)
    formula = (
        (level + reach) ** 2 * step + math.sqrt((level + reach) ** 4 * step**2 + 4 * (level + reach) ** 2 * stderr**2)
    ) / 2
    assert (change == pytest.approx(formula, rel=1e-4)) == (examples == 10**9)


def test_no_change_is_large_enough_for_few_examples() -> None:
    assert math.isnan(detectable_change(0.1, 0.05, 9, 0.05 / 72))


def test_five_examples_show_nothing() -> None:
    assert math.isnan(detectable_loss(0.0, 5, 0.05))
    # Six of six are enough for p = 2 / 64, but not for 72 variants.
    assert detectable_loss(0.0, 6, 0.05) == pytest.approx(binom.isf(0.8, 6, 0.9635) / 6, abs=0.05)
    assert math.isnan(detectable_loss(0.0, 6, 0.05 / 72))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "pearson", "spearman"])
@pytest.mark.parametrize(
    ("count", "flips", "variants"), [(277, 0.02, 3), (1000, 0.02, 3), (1000, 0.02, 72), (1000, 0.1, 3)]
)
def test_simulated_power_of_every_metric(metric: str, count: int, flips: float, variants: int) -> None:
    loss, result = power(metric, flips, count, variants, 20_000 if metric == "accuracy" else 1600)
    assert 0 < loss <= 1
    assert 0.78 <= result <= 0.90
