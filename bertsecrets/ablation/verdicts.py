"""Which of the many small changes of score are more than noise, and which are shown to be no loss that matters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertsecrets.ablation.scoring import (
    CLASS_METRICS,
    Array,
    check_metric,
    influences,
    largest_flip,
    largest_moves,
    score_changes,
    scores,
    typical_harm,
)
from bertsecrets.ablation.significance import bootstrap_changes, mcnemar_exact, swap_test
from bertsecrets.errors import UserError
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.intervals import (
    Limits,
    Tail,
    at_many_tails,
    exceeds,
    exceeds_each,
    influenced_change,
    paired_proportions,
    with_unseen,
)
from bertsecrets.statistics.power import detectable_change, detectable_loss
from bertsecrets.statistics.sequential import ONLY_LOOK, Look
from bertsecrets.statistics.simultaneous import error_correlation, joint_draws, simultaneous_tail, step_down

VERDICTS = (NEEDED, DISPENSABLE, INCONCLUSIVE)
"""A loss is shown; a loss of the margin is ruled out; neither. A loss that is both is dispensable."""

Correction = Literal["family_wise", "false_discovery"]
"""What *needed* keeps over all variants: the chance that any is falsely needed, or the share of the needed that are."""

FAMILY_WISE: Correction = "family_wise"
FALSE_DISCOVERY: Correction = "false_discovery"

_UNSEEN = 32
"""More unseen changes than this count as all."""

_RANGE = {"accuracy": 1.0, "f1": 1.0, "macro_f1": 1.0, "matthews": 2.0, "pearson": 2.0, "spearman": 2.0}
_FEW_MOVED = 30
"""Fewer moved predictions do not show how much one of them can do to a correlation."""


@dataclass(frozen=True)
class Unseen:
    """What a screened sweep left out, and what its audit says about that.

    Args:
        left_V: Number of examples on which each variant was not evaluated.
        audited: Number of random pairs of a variant and an example that were evaluated as a check.
        missed: How many of them had another prediction.
    """

    left_V: NDArray[np.int64]
    audited: int
    missed: int

    def rows(self, rows: Sequence[int]) -> "Unseen":
        """The same of some of the variants."""
        return Unseen(self.left_V[list(rows)], self.audited, self.missed)

    def chances_VK(self) -> Array:
        """Probability that 0 to K - 1 changes of each variant were not seen.

        Beta-binomial: the rate of changes among the pairs left out is what the audit leaves open from Jeffreys' prior.
        """
        changes_K = np.arange(_UNSEEN)
        open_ = (self.missed + 0.5, self.audited - self.missed + 0.5)
        return np.asarray(stats.betabinom.pmf(changes_K, self.left_V[:, None], *open_))


@dataclass(frozen=True)
class Effects:
    """The effects of V variants on the same examples, each for itself.

    Args:
        baseline: Score of the unedited model, the same for all.
        score, delta: Score of each variant, and its difference from the baseline.
        stderr: Bootstrap standard error of ``delta``.
        low, high: Confidence limits of ``delta``, which hold where few predictions change.
        p_value: P-values of the paired test of no change.
        p_loss: One-sided p-values of a loss of the margin or more.
        flips, smallest_effect: As in :class:`Verdicts`.
        joint: How their errors go together.
    """

    baseline: Array
    score: Array
    delta: Array
    stderr: Array
    low: Array
    high: Array
    p_value: Array
    p_loss: Array
    flips: Array
    smallest_effect: Array
    joint: "JointErrors"


@dataclass(frozen=True)
class JointErrors:
    """How the errors of V effects on the same examples go together.

    Args:
        correlation_VV: Their correlation.
        limits: Limits of the effects as a function of the tail.
        alpha: Probability with which limits may fail, allowing for all looks.
    """

    correlation_VV: Array
    limits: Tail
    alpha: float


@dataclass(frozen=True)
class PairedTests:
    """The tests of V variants on the same examples, each for itself.

    Args:
        baseline: Score of the unedited model.
        score, delta, p_value, p_loss: As in :class:`Effects`.
    """

    baseline: float
    score: Array
    delta: Array
    p_value: Array
    p_loss: Array


@dataclass(frozen=True)
class Verdicts:
    """The judged effects of V variants.

    Args:
        baseline: Score of the unedited model on each variant's examples.
        score, delta: Score of each variant, and its difference from the baseline.
        stderr: Bootstrap standard error of ``delta``.
        low, high: Confidence limits of ``delta``, which hold where few predictions change, each for itself.
        low_simultaneous, high_simultaneous: The same, which hold for all V variants together: those of a variant that was picked
            for its ``delta``.
        p_value, p_bh: P-values of the paired test, raw and adjusted over the V variants to the false discovery rate.
        p_needed: One-sided p-values of no loss, adjusted over the V variants as ``correction`` says.
        flips: Share of examples with another predicted class; for scores, mean absolute change of the prediction.
        smallest_effect: The smallest loss that the test finds with 80 % power at the level corrected for V tests, given
            how many predictions the variant changes; NaN where it cannot be estimated, or where no loss is large enough.
        significant: Whether ``p_bh`` is at most the false discovery rate.
        p_margin: One-sided p-values of a loss of the margin or more, adjusted over the V variants.
        verdict: ``needed``, ``dispensable`` or ``inconclusive``.
        margin: The loss that matters, as a difference of scores.
        level, correction, false_discovery_rate: The requested level, correction and rate.
    """

    baseline: Array
    score: Array
    delta: Array
    stderr: Array
    low: Array
    high: Array
    low_simultaneous: Array
    high_simultaneous: Array
    p_value: Array
    p_bh: Array
    p_needed: Array
    flips: Array
    smallest_effect: Array
    significant: NDArray[np.bool_]
    p_margin: Array
    verdict: tuple[str, ...]
    margin: float
    level: float
    correction: Correction
    false_discovery_rate: float


def judge(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    *,
    margin: float = 0.01,
    level: float = 0.95,
    correction: Correction = FAMILY_WISE,
    false_discovery_rate: float = 0.05,
    resamples: int = 2000,
    permutations: int = 9999,
    seed: int = 0,
) -> Verdicts:
    """Judge the change of score from the clean predictions to those of each variant.

    P-values come from McNemar's exact test for accuracy and from random swaps of predictions for every other metric;
    intervals from :mod:`bertsecrets.statistics.intervals`. A variant is *dispensable* if the same intervals, one-sided and
    corrected for V variants, rule out a loss of the margin or more (a test of non-inferiority: of the two one-sided
    tests of equivalence, the one against loss); else *needed* if a loss is shown (one-sided); else *inconclusive*. A variant's
    results do not depend on the other variants, except for the adjusted p-values, the smallest effect and the verdict.

    Args:
        metric: ``accuracy``, ``f1``, ``macro_f1``, ``matthews``, ``pearson`` or ``spearman``.
        label_N: Gold labels: class indices or scores.
        clean_N: Predictions of the unedited model, of the same kind.
        prediction_VN: Predictions of each variant.
        margin: The loss that matters, as a difference of scores: 0.01 is one point.
        level: Level of the intervals, between 0 and 1.
        correction: ``family_wise``: any variant is falsely needed with probability 1 - ``level`` at most (step-down max-t; Romano and
            Wolf 2005). ``false_discovery``: the expected share of the needed that are not, ``false_discovery_rate`` (Benjamini and
            Hochberg 1995). Both by one-sided tests, so that gains of other variants make no loss more likely to be shown.
        false_discovery_rate: Largest significant ``p_bh``, and largest ``p_margin`` of a dispensable variant.
        resamples, permutations: Number of bootstrap resamples, and of random swaps.
        seed: Seed of both.

    Raises:
        UserError: If shapes do not fit, there is nothing to judge, or a setting is out of its range.
    """
    _check_rates(level, false_discovery_rate)
    effects = effects_of(
        metric,
        label_N,
        clean_N,
        prediction_VN,
        margin=margin,
        level=level,
        resamples=resamples,
        permutations=permutations,
        seed=seed,
        needed=level_of_needed(level, correction, false_discovery_rate),
    )
    return judge_together(
        [effects], margin=margin, level=level, correction=correction, false_discovery_rate=false_discovery_rate
    )


def effects_of(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    *,
    margin: float,
    level: float,
    resamples: int,
    permutations: int,
    seed: int,
    needed: float,
    look: Look = ONLY_LOOK,
    family: int | None = None,
    unseen: Unseen | None = None,
) -> Effects:
    """The effects of variants on the same examples, before any correction for their number.

    Args:
        metric, label_N, clean_N, prediction_VN, margin, level, resamples, permutations, seed: As for :func:`judge`.
        needed: Level of *needed* over all variants (:func:`level_of_needed`), for ``smallest_effect``.
        look: Which of several looks at growing examples this is: p-values and limits allow for the others.
        family: Number of variants for whose correction ``smallest_effect`` allows; None for V.
        unseen: What a screened sweep left out: limits and ``p_loss`` allow for it. Losses are not shown by what was not seen, so that
            ``p_value`` does not depend on it.

    Raises:
        UserError: As for :func:`judge`.
    """
    check_metric(metric)
    label_N, clean_N, prediction_VN = (
        np.asarray(array, dtype=np.float64) for array in (label_N, clean_N, prediction_VN)
    )
    _check(label_N, clean_N, prediction_VN, margin, resamples, permutations)
    variants = len(prediction_VN)
    tests = paired_tests(
        metric,
        label_N,
        clean_N,
        prediction_VN,
        margin=margin,
        permutations=permutations,
        seed=seed,
        look=look,
        unseen=unseen,
    )
    change_RV = bootstrap_changes(metric, label_N, clean_N, prediction_VN, resamples, np.random.default_rng([seed, 0]))
    # A resample whose score is undefined is left out; a variant without two others has no standard error.
    several_V = np.isfinite(change_RV).sum(0) > 1
    stderr_V = np.full(variants, np.nan)
    stderr_V[several_V] = np.nanstd(change_RV[:, several_V], axis=0, ddof=1)
    limits = change_limits(metric, label_N, clean_N, prediction_VN, unseen)
    low_V, high_V = limits(np.full(variants, look.level(1 - level) / 2))
    moved_VN = prediction_VN - clean_N
    influence_VN = change_influences(metric, label_N, clean_N, prediction_VN)
    # Either direction: errors are symmetric here, unlike the limits above.
    largest_V = np.maximum(*_largest(metric, label_N, clean_N, prediction_VN, influence_VN))
    return Effects(
        baseline=np.full(variants, tests.baseline),
        score=tests.score,
        delta=tests.delta,
        stderr=stderr_V,
        low=low_V,
        high=high_V,
        p_value=tests.p_value,
        p_loss=tests.p_loss,
        flips=np.mean(moved_VN != 0 if metric in CLASS_METRICS else np.abs(moved_VN), axis=-1),
        smallest_effect=smallest_effects(
            metric, label_N, clean_N, prediction_VN, look.level(2 * needed / (family or variants)), permutations
        ),
        joint=JointErrors(error_correlation(influence_VN, largest_V), limits, look.level(1 - level)),
    )


def paired_tests(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    *,
    margin: float,
    permutations: int,
    seed: int,
    look: Look = ONLY_LOOK,
    unseen: Unseen | None = None,
) -> PairedTests:
    """The two tests of each variant: of no change, and of a loss of the margin or more.

    Args:
        metric, label_N, clean_N, prediction_VN, margin, permutations, seed: As for :func:`judge`, of type float64.
        look, unseen: As for :func:`effects_of`.
    """
    baseline, score_V = _scores(metric, label_N, clean_N, prediction_VN)
    if metric == "accuracy":
        p_V = mcnemar_exact(clean_N == label_N, prediction_VN == label_N)
    else:
        p_V = swap_test(metric, label_N, clean_N, prediction_VN, permutations, np.random.default_rng([seed, 1]))
    loss_V = p_against_margin(metric, label_N, clean_N, prediction_VN, margin, unseen)
    return PairedTests(baseline, score_V, score_V - baseline, look.two_sided(p_V), look.one_sided(loss_V))


def p_against_margin(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    margin: float,
    unseen: Unseen | None = None,
) -> Array:
    """One-sided p-values of a loss of the margin or more, ``[V]``; arguments as for :func:`judge` and :func:`effects_of`."""
    if metric == "accuracy" and (unseen is None or not unseen.left_V.any()):
        return p_of_margin(*discordant(label_N, clean_N, prediction_VN), len(label_N), margin)
    baseline, score_V = _scores(metric, label_N, clean_N, prediction_VN)
    return exceeds(change_limits(metric, label_N, clean_N, prediction_VN, unseen), score_V - baseline, -margin)


def p_against_margins(
    metric: str,
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    margin_M: Array,
    unseen: Unseen | None = None,
) -> Array:
    """The p-values of :func:`p_against_margin` for several margins, ``[M, V]``, within 1 % of them."""
    if metric == "accuracy" and unseen is None:
        # Many variants share their counts, and so their p-values.
        cells_2V = np.stack(discordant(label_N, clean_N, prediction_VN))
        (lost_U, won_U), which_V = np.unique(cells_2V, axis=1, return_inverse=True)
        count = len(label_N)
        p_MU = exceeds_each(paired_proportions(lost_U, won_U, count), (won_U - lost_U) / count, -margin_M)
        return np.asarray(p_MU[:, which_V.ravel()])
    baseline, score_V = _scores(metric, label_N, clean_N, prediction_VN)
    return exceeds_each(change_limits(metric, label_N, clean_N, prediction_VN, unseen), score_V - baseline, -margin_M)


def _scores(metric: str, label_N: Array, clean_N: Array, prediction_VN: Array) -> tuple[float, Array]:
    """The score of the unedited model, and those of the variants, ``[V]``."""
    baseline, score_V = float(scores(metric, label_N, clean_N[None])[0]), scores(metric, label_N, prediction_VN)
    # Sums in another order may differ in the last digit: unchanged predictions get exactly the baseline.
    return baseline, np.where((prediction_VN == clean_N).all(-1), baseline, score_V)


_P_OF_LOSS: dict[tuple[int, int, int, float], float] = {}
"""P-values by numbers of lost, won and all examples and the margin: many variants share theirs, and each takes milliseconds."""

_MOST_KEPT = 100_000
"""The cache is emptied when it holds more, so that thousands of sweeps in one process do not fill the memory."""


def p_of_margin(lost_V: NDArray[np.int64], won_V: NDArray[np.int64], count: ArrayLike, margin: float) -> Array:
    """One-sided p-values of a loss of accuracy of the margin or more, ``[V]``; ``count`` examples for all or for each."""
    count_V = np.broadcast_to(np.asarray(count), np.shape(lost_V))
    keys = [(int(lost), int(won), int(of), margin) for lost, won, of in zip(lost_V, won_V, count_V, strict=True)]
    # All at once: the search takes as long for one as for hundreds.
    missing = sorted(set(keys) - _P_OF_LOSS.keys())
    if missing:
        lost_M, won_M, count_M = (np.array([key[column] for key in missing]) for column in range(3))
        p_M = exceeds(paired_proportions(lost_M, won_M, count_M), (won_M - lost_M) / count_M, -margin)
        _P_OF_LOSS.update(zip(missing, p_M.tolist(), strict=True))
    p_V = np.array([_P_OF_LOSS[key] for key in keys])
    if len(_P_OF_LOSS) > _MOST_KEPT:
        _P_OF_LOSS.clear()
    return p_V


def judge_together(
    parts: Sequence[Effects], *, margin: float, level: float, correction: Correction, false_discovery_rate: float
) -> Verdicts:
    """Correct the effects of all variants for their number, and judge them.

    Effects on different examples count as independent, which widens their limits at most.

    Args:
        parts: Effects of variants, which may come from different examples.
        margin, level, correction, false_discovery_rate: As for :func:`judge`.
    """
    names = [field.name for field in fields(Effects) if field.name != "joint"]
    effects = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    # A fixed seed: the same effects get the same verdicts, whatever the seed of the resamples.
    generator = np.random.default_rng([0, 3])
    draw_VR = np.concatenate([joint_draws(part.joint.correlation_VV, generator) for part in parts])
    tails = [np.full(len(part.delta), simultaneous_tail(draw_VR, part.joint.alpha)) for part in parts]
    simultaneous = [part.joint.limits(tail_V) for part, tail_V in zip(parts, tails, strict=True)]
    p_bh_V = corrected(effects["p_value"])
    p_needed_V, p_margin_V, verdict = verdicts_together(
        p_of_losses(effects["delta"], effects["p_value"]),
        effects.pop("p_loss"),
        draw_VR,
        level=level,
        correction=correction,
        false_discovery_rate=false_discovery_rate,
    )
    return Verdicts(
        **effects,
        p_bh=p_bh_V,
        p_needed=p_needed_V,
        low_simultaneous=np.concatenate([low_V for low_V, _ in simultaneous]),
        high_simultaneous=np.concatenate([high_V for _, high_V in simultaneous]),
        significant=p_bh_V <= false_discovery_rate,
        p_margin=p_margin_V,
        verdict=verdict,
        margin=margin,
        level=level,
        correction=correction,
        false_discovery_rate=false_discovery_rate,
    )


def level_of_needed(level: float, correction: Correction, false_discovery_rate: float) -> float:
    """The largest ``p_needed`` of a variant that is needed."""
    return 1 - level if correction == FAMILY_WISE else false_discovery_rate


def verdicts_together(
    p_loss_V: Array,
    p_margin_V: Array,
    draw_VR: Array,
    *,
    level: float,
    correction: Correction,
    false_discovery_rate: float,
) -> tuple[Array, Array, tuple[str, ...]]:
    """Correct the tests of V variants for their number: the p-values of no loss and of the margin, and the verdicts.

    Args:
        p_loss_V: One-sided p-values of no loss.
        p_margin_V: One-sided p-values of a loss of the margin or more.
        draw_VR: Draws from the joint distribution of the variants' errors.
        level, correction, false_discovery_rate: As for :func:`judge`.
    """
    p_needed_V = step_down(p_loss_V, draw_VR) if correction == FAMILY_WISE else corrected(p_loss_V)
    p_margin_V = corrected(p_margin_V)
    alpha = level_of_needed(level, correction, false_discovery_rate)
    return p_needed_V, p_margin_V, verdicts_of(p_needed_V, p_margin_V, alpha, false_discovery_rate)


def p_of_losses(delta_V: Array, p_V: Array) -> Array:
    """One-sided p-values of no loss from two-sided ones of tests that are symmetric under no change, ``[V]``; 1 without a loss."""
    return np.where(delta_V < 0, p_V / 2, 1.0)


def verdicts_of(p_needed_V: Array, p_margin_V: Array, alpha: float, rate: float) -> tuple[str, ...]:
    """The verdict of each variant.

    Args:
        p_needed_V: Corrected one-sided p-values of no loss.
        p_margin_V: Corrected p-values of a loss of the margin or more.
        alpha: Largest ``p_needed_V`` of a variant that is needed.
        rate: Largest ``p_margin_V`` of one that is dispensable.
    """
    return tuple(
        DISPENSABLE if p_margin <= rate else NEEDED if p_needed <= alpha else INCONCLUSIVE
        for p_needed, p_margin in zip(p_needed_V, p_margin_V, strict=True)
    )


def change_limits(
    metric: str, label_N: Array, clean_N: Array, prediction_VN: Array, unseen: Unseen | None = None
) -> Tail:
    """Limits of each variant's change of score as a function of the tail (see :func:`judge`); NaN if all predictions score 0.

    They are at most as far apart as the metric reaches. They allow for what a screened sweep has not seen (see :func:`effects_of`).
    """
    limits, most = _unbounded_limits(metric, label_N, clean_N, prediction_VN), _RANGE[metric]
    if unseen is not None and unseen.left_V.any():
        if metric == "accuracy":
            # Many variants share their counts, and limits at many tails take long.
            cells_2U, which_V = np.unique(
                np.stack(discordant(label_N, clean_N, prediction_VN)), axis=1, return_inverse=True
            )
            lost_U, won_U = cells_2U
            of_U = at_many_tails(paired_proportions(lost_U, won_U, len(label_N)), len(lost_U))
            low_TV, high_TV = (of_TU[:, which_V.ravel()] for of_TU in of_U)
        else:
            low_TV, high_TV = at_many_tails(limits, len(prediction_VN))
        step = largest_flip(metric, label_N, clean_N)
        limits = with_unseen((low_TV, high_TV), step, unseen.chances_VK(), most)

    def within(tail: Array) -> Limits:
        low_V, high_V = limits(tail)
        return low_V.clip(-most, most), high_V.clip(-most, most)

    return within


def _unbounded_limits(metric: str, label_N: Array, clean_N: Array, prediction_VN: Array) -> Tail:
    if metric == "accuracy":
        return paired_proportions(*discordant(label_N, clean_N, prediction_VN), len(label_N))
    influence_VN = change_influences(metric, label_N, clean_N, prediction_VN)
    largest = _largest(metric, label_N, clean_N, prediction_VN, influence_VN)
    change_V = np.where(_is_always_0(metric, label_N), np.nan, score_changes(metric, label_N, clean_N, prediction_VN))
    return influenced_change(change_V, influence_VN, *largest)


def _is_always_0(metric: str, label_N: Array) -> bool:
    """Whether every prediction of these labels scores 0: F1 without a positive label, Matthews with labels of one class."""
    if metric == "f1":
        return not (label_N == 1).any()
    return metric == "matthews" and len(np.unique(label_N)) < 2


def discordant(label_N: Array, clean_N: Array, prediction_VN: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of examples that each variant loses, and wins, ``[V]`` each."""
    right_N, right_VN = clean_N == label_N, prediction_VN == label_N
    return (right_N & ~right_VN).sum(-1), (~right_N & right_VN).sum(-1)


def smallest_effects(
    metric: str, label_N: Array, clean_N: Array, prediction_VN: Array, alpha: float, permutations: int
) -> Array:
    """The smallest loss of each variant that the test finds with 80 % power, ``[V]``; NaN where it cannot be estimated.

    Args:
        metric, label_N, clean_N, prediction_VN, permutations: As for :func:`judge`.
        alpha: Level of the test, corrected for the number of variants.
    """
    count = len(label_N)
    if metric == "accuracy":
        lost_V, won_V = discordant(label_N, clean_N, prediction_VN)
        return np.array([detectable_loss(float(flips), count, alpha) for flips in (lost_V + won_V) / count])
    # Random swaps need a p-value a little below alpha, as the observed order counts as one of them.
    alpha = _level_of_swaps(alpha, permutations)
    if alpha <= 0:
        return np.full(len(prediction_VN), np.nan)
    influence_VN = change_influences(metric, label_N, clean_N, prediction_VN)
    variance_V = (influence_VN**2).mean(-1) / count
    if metric in CLASS_METRICS:
        harm_V = np.full(len(prediction_VN), typical_harm(metric, label_N, clean_N))
    else:
        # A loss moves predictions further: noise that loses as much as the observed moves would, doubles their variance.
        agreement_V = scores(metric, clean_N, prediction_VN)
        baseline = abs(float(scores(metric, label_N, clean_N[None])[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            harm_V = variance_V / (baseline * (1 - agreement_V))
    smallest = []
    for variance, step in zip(variance_V, harm_V, strict=True):
        effect = math.nan
        if metric in CLASS_METRICS and step > 0:
            # An example weighs ``step`` instead of 1 / N: the same test on as many examples, with flips of that weight.
            flips = min(float(variance / (count * step**2)), 1.0)
            effect = count * step * detectable_loss(round(flips, 6), count, alpha)
        elif metric not in CLASS_METRICS and np.isfinite(step) and variance > 0:
            effect = detectable_change(math.sqrt(variance), float(step), count, alpha)
        smallest.append(effect if effect <= _RANGE[metric] else math.nan)
    return np.array(smallest)


def _level_of_swaps(alpha: float, permutations: int) -> float:
    """The median p-value of an exact test at which as many random swaps give ``alpha``; 0 or less if they cannot.

    ``(b + 1) / (R + 1)`` is at most alpha for b swaps out of R as extreme as observed; the median of a Poisson count is
    about a third below its mean.
    """
    return (math.floor(alpha * (permutations + 1) + 1e-9) - 1 / 3) / permutations


def change_influences(metric: str, label_N: Array, clean_N: Array, prediction_VN: Array) -> Array:
    """Influence of every example on the change of score from the clean predictions to each variant's, ``[V, N]``."""
    influence_VN = influences(metric, label_N, np.concatenate([clean_N[None], prediction_VN]))
    return np.asarray(influence_VN[1:] - influence_VN[0])


def _largest(
    metric: str, label_N: Array, clean_N: Array, prediction_VN: Array, influence_VN: Array
) -> tuple[Array, Array]:
    """The largest loss and gain that one example can make, ``[V]`` each.

    Either the unedited model's prediction or the variant's may flip, to any class. Scores move as far as observed if enough of
    them move, else from the lowest to the highest.
    """
    if metric in CLASS_METRICS:
        clean = largest_flip(metric, label_N, clean_N)
        flip_V = np.array([max(clean, largest_flip(metric, label_N, variant_N)) for variant_N in prediction_VN])
        return flip_V, flip_V
    largest_V2 = np.tile(largest_moves(metric, label_N, clean_N), (len(prediction_VN), 1))
    observed_V2 = np.stack([-influence_VN.min(-1), influence_VN.max(-1)], -1).clip(min=0) / len(label_N)
    many_V = (prediction_VN != clean_N).sum(-1) >= _FEW_MOVED
    largest_V2 = np.where(many_V[:, None], observed_V2, largest_V2)
    return largest_V2[:, 0], largest_V2[:, 1]


def _check(
    label_N: Array,
    clean_N: Array,
    prediction_VN: Array,
    margin: float,
    resamples: int,
    permutations: int,
) -> None:
    if prediction_VN.ndim != 2 or not len(prediction_VN):
        raise UserError(
            f"Predictions of shape {list(prediction_VN.shape)} cannot be judged; give [variants, examples]."
        )
    if len(label_N) < 2:
        raise UserError(f"{len(label_N)} examples are too few to judge a change by; give at least two.")
    if clean_N.shape != label_N.shape or prediction_VN.shape[1:] != label_N.shape:
        raise UserError(
            f"There are {len(label_N)} labels, {len(clean_N)} clean predictions and {prediction_VN.shape[1]} of each "
            "variant; give the same examples to all."
        )
    if not (margin > 0 and math.isfinite(margin)):
        raise UserError(f"The margin is {100 * margin:g} points; expected a positive number, e.g. ablation.margin=1.")
    for name, number in (("resamples", resamples), ("permutations", permutations)):
        if number < 100:
            raise UserError(f"{name} is {number}; expected at least 100.")


def _check_rates(level: float, rate: float) -> None:
    for name, value in (("level", level), ("false_discovery_rate", rate)):
        if not 0 < value < 1:
            raise UserError(f"{name} is {value}; expected a number between 0 and 1.")
