"""Heads chosen on some units and tested on others: against naive loops, and the errors by simulation."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.statistics.corrections import holm
from bertsecrets.statistics.splits import choose_and_score, choosing_units, combined_p, ratios, scored_ratios

Array = NDArray[np.float64]


def answers(generator: np.random.Generator, units: int, heads: int, words: float) -> tuple[Array, Array, Array]:
    """Words of each unit, right answers of heads and of two baselines; no head is better than the first baseline."""
    total_N = generator.poisson(words, units)
    # Units differ in how hard their words are, alike for everyone.
    ease_N1 = generator.beta(1.2, 1.2, (units, 1))
    right_NC = generator.binomial(total_N[:, None], np.repeat(ease_N1, heads, 1))
    baseline_NB = generator.binomial(total_N[:, None], ease_N1 * [1.0, 0.5])
    return total_N.astype(float), right_NC.astype(float), baseline_NB.astype(float)


def p_values(total_N: Array, right_NC: Array, baseline_NB: Array, splits: int, seed: int) -> Array:
    """P-values of each split of the best head against every baseline."""
    chosen = choose_and_score(right_NC, baseline_NB, total_N, choosing_units(len(total_N), splits, seed))
    return chosen.gains.exceeds_zero().max(1)


def test_ratios_equal_a_loop_over_splits_and_units() -> None:
    generator = np.random.default_rng(0)
    total_N, right_NC, baseline_NB = answers(generator, 60, 5, 1.0)
    chooses_SN = choosing_units(60, 7, 3)
    assert chooses_SN.sum(1).tolist() == [20] * 7
    assert len({row.tobytes() for row in chooses_SN}) == 7
    chosen = choose_and_score(right_NC, baseline_NB, total_N, chooses_SN)
    choice_S, gains = chosen.choice_S, chosen.gains
    for split, chooses_N in enumerate(chooses_SN):
        sums = [sum(right_NC[unit, head] for unit in np.flatnonzero(chooses_N)) for head in range(5)]
        assert choice_S[split] == sums.index(max(sums))
        scoring = [unit for unit in range(60) if not chooses_N[unit] and total_N[unit] > 0]
        for position in range(2):
            parts = [right_NC[unit, choice_S[split]] - baseline_NB[unit, position] for unit in scoring]
            ratio = sum(parts) / sum(total_N[scoring])
            residuals = [part - ratio * total_N[unit] for part, unit in zip(parts, scoring, strict=True)]
            # The t test of the mean residual, whose scale the total is.
            stderr = stats.sem(residuals) * len(scoring) / sum(total_N[scoring])
            assert gains.value_SX[split, position] == pytest.approx(ratio)
            assert gains.stderr_SX[split, position] == pytest.approx(stderr)
            assert gains.exceeds_zero()[split, position] == pytest.approx(stats.t.sf(ratio / stderr, len(scoring) - 1))
            assert gains.differs_from_zero()[split, position] == pytest.approx(
                2 * stats.t.sf(abs(ratio) / stderr, len(scoring) - 1)
            )
        assert chosen.accuracy.value_SX[split, 0] == pytest.approx(
            right_NC[scoring, choice_S[split]].sum() / total_N[scoring].sum()
        )
    assert chosen.candidate == np.bincount(choice_S).argmax()
    assert chosen.share == np.mean(choice_S == chosen.candidate)
    assert (chosen.on_all, chosen.accuracy_on_all) == (
        right_NC.sum(0).argmax(),
        pytest.approx(right_NC.sum(0).max() / total_N.sum()),
    )
    # Two units are left to score by, of which one has nothing to answer.
    assert choose_and_score(right_NC[:3], baseline_NB[:3], np.array([1.0, 1.0, 0.0]), np.eye(3, dtype=bool)) is None


def test_few_units_that_all_agree_are_not_certain() -> None:
    chooses_SN = np.array([[True, False, False, False]])
    few = scored_ratios(np.ones((4, 1, 1)), np.ones(4), chooses_SN)
    assert few.stderr_SX.item() == 0
    assert few.exceeds_zero().item() == 1 / 8
    assert few.differs_from_zero().item() == 1 / 4
    alone = scored_ratios(np.ones((2, 1, 1)), np.ones(2), np.array([[True, False]]))
    assert alone.exceeds_zero().item() == 1


def test_numbers_over_splits_by_hand() -> None:
    chooses_SN = np.array([[False] * 4, [True, True, False, False], [False, False, True, True]])
    part_NSX = np.array([0.0, 2.0, 1.0, 5.0])[:, None, None].repeat(3, 1)
    scored = scored_ratios(part_NSX, np.ones(4), chooses_SN)
    assert scored.value_SX[:, 0].tolist() == [2.0, 3.0, 1.0]
    assert (
        ratios(part_NSX[:, 0], np.ones(4)).over_splits()
        == scored_ratios(part_NSX[:, :1], np.ones(4), chooses_SN[:1]).over_splits()
    )
    value, low, high = scored.over_splits(level=0.9)
    # Means 2, 3 and 1 with standard errors sqrt(14 / 12), 2 and 1; each interval has half of the error.
    reaches = [
        float(stats.t.ppf(0.975, degrees)) * error for degrees, error in ((3, (14 / 12) ** 0.5), (1, 2.0), (1, 1.0))
    ]
    assert value == 2.0
    assert low == pytest.approx(np.median([2 - reaches[0], 3 - reaches[1], 1 - reaches[2]]))
    assert high == pytest.approx(np.median([2 + reaches[0], 3 + reaches[1], 1 + reaches[2]]))
    assert combined_p([[0.01, 0.9], [0.02, 0.7], [0.5, 0.6]]).tolist() == [0.04, 1.0]
    with pytest.raises(ValueError, match="1 units cannot be split"):
        choosing_units(1, 5, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("units", "words"), [(300, 2.0), (1500, 0.05)])
def test_relations_without_a_better_head_are_rarely_called_better(units: int, words: float) -> None:
    """29 relations, 72 heads as good as the best baseline: that any relation is called better has at most 5 %."""
    wrong, single = 0, 0
    for repeat in range(60):
        generator = np.random.default_rng(repeat)
        p_SR = np.stack([p_values(*answers(generator, units, 72, words), 10, repeat) for _ in range(29)], 1)
        wrong += bool((holm(combined_p(p_SR)) <= 0.05).any())
        single += int((p_SR[0] <= 0.05).sum())
    assert wrong <= stats.binom.ppf(0.99, 60, 0.05)
    # The test of one split has its level, which choosing and scoring on the same units would exceed by far.
    assert single <= stats.binom.ppf(0.999, 60 * 29, 0.05)
